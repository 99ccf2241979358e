//! Entering a generation: meet, agree, share the state, hook the gradients.

use std::time::Duration;

use roundhouse_contract::Phase;
use roundhouse_elastic::{Chain, Claim, Event, Mark, Origin, Place};
use tch::{Device, Tensor};

use super::keeping::Keeping;
use super::lobby::listen;
use super::{Peers, Trainer, transfer};
use crate::checkpoint::NamedTensors;
use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::strategy::DataParallel;
use crate::world::{Agreed, Own, World};

impl Trainer<'_> {
    /// The same script whoever it is for, a first generation or a later one: meet, agree who has
    /// the state, send it to those who lack it, hook the gradients.
    pub(super) fn form(&mut self, place: &Place) -> Result<Option<Event>, Failure> {
        if let Some(keeping) = &mut self.keeping {
            keeping.leave();
        }
        self.replicas = None;
        self.last_step = (Duration::ZERO, None);
        if let Some(peers) = &self.peers {
            peers.interrupter.release();
        }
        self.reporter.enter(Phase::Forming);
        let world = match &mut self.peers {
            None => World::alone(),
            Some(peers) => {
                let Peers {
                    watch,
                    rendezvous,
                    interrupter: _,
                } = peers;
                let (machine, leave) = (&mut self.machine, &self.leave);
                let is_pointless = || {
                    listen(machine, watch, leave);
                    machine.supersedes(place)
                };
                match rendezvous.form(place, is_pointless)? {
                    Some(world) => world,
                    None => return Ok(None),
                }
            }
        };
        if let Some(peers) = &self.peers {
            peers
                .interrupter
                .guard(place.generation, world.shared_group());
        }
        let origin = match self.share_state(&world, place.generation) {
            Ok(origin) => origin,
            Err(failure) => {
                world.abandon();
                return Err(failure);
            }
        };
        let replicas = DataParallel::new(
            world,
            self.model.parameters(),
            &self.config.ddp,
            self.config.micro_batch_size,
        )?;
        let replicas = self.replicas.insert(replicas);
        replicas.warm_up(self.model.as_mut(), &self.data.train)?;
        self.open_ledger(place, origin)?;
        let total_steps = self.mark.step + self.course.steps_to_come(&self.mark);
        self.reporter.set_total_steps(total_steps);
        self.reporter.join(place, self.mark.step);
        if self.scaling.is_on() {
            self.reporter.batch(self.mark.pace.batch);
        }
        self.reporter.enter(Phase::Training);
        Ok(Some(Event::Formed))
    }

    /// Gives the state of the rank that has come furthest to those who lack it; returns where that one
    /// had it from. Who is cut off while receiving has half of it, and says so the next time.
    fn share_state(&mut self, world: &World, generation: u64) -> Result<Origin, Failure> {
        faults::point(Point::Share, world.rank(), self.mark.step);
        let claim = Claim {
            origin: self.origin,
            generation: self.generation,
            step: self.mark.step,
        };
        let words = [self.mark.to_bytes(), self.chain.to_bytes()].concat();
        let first_generation = self.keeping.as_ref().map_or(0, Keeping::first_generation);
        let Agreed {
            source,
            chain_bytes,
            first_generation,
            evaluated,
        } = world.agree_on_state(&Own {
            claim,
            chain_bytes: words.len(),
            first_generation,
            evaluated: self.evaluated,
        })?;
        if let Some(keeping) = &mut self.keeping {
            keeping.count_from(first_generation);
        }
        faults::point(Point::State, world.rank(), self.mark.step);
        if source.must_send {
            let sender = u32::try_from(source.rank).unwrap_or_default();
            if world.rank() == sender {
                self.send_state(world, sender, &words)?;
            } else {
                self.origin = Origin::Torn;
                self.receive_state(world, sender, chain_bytes)?;
            }
        }
        // All have the same mark and the same number of workers now, so all go on alike.
        let workers = world.size() / self.launch.local_world_size.max(1);
        self.mark = self.scaling.go_on(self.mark, workers);
        self.evaluated = evaluated;
        self.origin = Origin::Live;
        self.generation = first_generation + generation;
        Ok(source.claim.origin)
    }

    fn send_state(&self, world: &World, sender: u32, words: &[u8]) -> Result<(), Failure> {
        let mut tensors = self.state();
        let digest = transfer::digest(&tensors, words)?;
        let words = [words, &digest].concat();
        tensors.push(Tensor::f_from_slice(&words)?.f_to_device(world.device())?);
        world.broadcast(&mut tensors, sender)?;
        // Nobody who sends takes harm from it, but an aborted group is left at once.
        world.check()
    }

    fn receive_state(
        &mut self,
        world: &World,
        sender: u32,
        num_bytes: usize,
    ) -> Result<(), Failure> {
        let mut bytes = vec![0_u8; num_bytes + transfer::DIGEST_BYTES];
        let words = Tensor::f_from_slice(&bytes)?.f_to_device(world.device())?;
        let mut tensors = self.state();
        tensors.push(words.shallow_clone());
        world.broadcast(&mut tensors, sender)?;
        let length = bytes.len();
        words
            .f_to_device(Device::Cpu)?
            .f_copy_data_u8(&mut bytes, length)?;
        let (words, digest) = bytes.split_at(num_bytes);
        let is_whole = transfer::digest(&self.state(), words)? == digest;
        world.check()?;
        if !is_whole {
            return Err(Failure::PeerLost(
                "a state that nobody has sent: a peer aborts the group".to_owned(),
            ));
        }
        let read = Mark::from_bytes(words);
        (self.mark, self.chain) = read
            .and_then(|(mark, chain)| Some((mark, Chain::from_bytes(chain)?)))
            .ok_or_else(|| Failure::Internal("a state that cannot be read".to_owned()))?;
        Ok(())
    }

    /// Handles of all tensors that a rank without the state has to be sent.
    fn state(&self) -> Vec<Tensor> {
        NamedTensors::of(self.model.parameters(), self.optimizer.as_ref()).into_tensors()
    }
}
