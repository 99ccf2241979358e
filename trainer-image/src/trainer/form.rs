//! Entering a generation: meet, agree, share the state, hook the gradients.

use roundhouse_contract::Phase;
use roundhouse_elastic::{Chain, Claim, Event, Origin, Place};
use tch::{Device, Tensor};

use super::lobby::listen;
use super::{Peers, Trainer};
use crate::checkpoint::NamedTensors;
use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::strategy::DataParallel;
use crate::world::World;

impl Trainer<'_> {
    /// The same script whoever it is for, a first generation or a later one: meet, agree who has
    /// the state, send it to those who lack it, hook the gradients.
    pub(super) fn form(&mut self, place: &Place) -> Result<Option<Event>, Failure> {
        if let Some(keeping) = &mut self.keeping {
            keeping.leave();
        }
        self.replicas = None;
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
        let origin = match self.share_state(&world, self.token(place.generation)) {
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
        self.reporter.join(place, self.committed_steps);
        self.reporter.enter(Phase::Training);
        Ok(Some(Event::Formed))
    }

    /// Gives the state of the rank that has come furthest to those who lack it; returns where that one
    /// had it from. Who is cut off while receiving has half of it, and says so the next time.
    fn share_state(&mut self, world: &World, generation: u64) -> Result<Origin, Failure> {
        faults::point(Point::Share, world.rank(), self.committed_steps);
        let claim = Claim {
            origin: self.origin,
            generation: self.generation,
            step: self.committed_steps,
        };
        let chain = self.chain.to_bytes();
        let (source, chain_bytes) = world.agree_on_state(&claim, chain.len())?;
        if source.must_send {
            let sender = u32::try_from(source.rank).unwrap_or_default();
            if world.rank() == sender {
                self.send_state(world, sender, &chain)?;
            } else {
                self.origin = Origin::Torn;
                self.receive_state(world, sender, chain_bytes)?;
            }
        }
        self.committed_steps = source.claim.step;
        self.origin = Origin::Live;
        self.generation = generation;
        Ok(source.claim.origin)
    }

    fn send_state(&self, world: &World, sender: u32, chain: &[u8]) -> Result<(), Failure> {
        let chain = Tensor::f_from_slice(chain)?.f_to_device(world.device())?;
        let mut tensors = self.state();
        tensors.push(chain);
        world.broadcast(&mut tensors, sender)
    }

    fn receive_state(
        &mut self,
        world: &World,
        sender: u32,
        chain_bytes: usize,
    ) -> Result<(), Failure> {
        let chain = Tensor::f_from_slice(&vec![0_u8; chain_bytes])?;
        let chain = chain.f_to_device(world.device())?;
        let mut tensors = self.state();
        tensors.push(chain.shallow_clone());
        world.broadcast(&mut tensors, sender)?;
        let mut bytes = vec![0; chain_bytes];
        chain
            .f_to_device(Device::Cpu)?
            .f_copy_data_u8(&mut bytes, chain_bytes)?;
        self.chain = Chain::from_bytes(&bytes)
            .ok_or_else(|| Failure::Internal("a ledger that cannot be read".to_owned()))?;
        Ok(())
    }

    /// Handles of all tensors that a rank without the state has to be sent.
    fn state(&self) -> Vec<Tensor> {
        NamedTensors::of(self.model.parameters(), self.optimizer.as_ref()).into_tensors()
    }
}
