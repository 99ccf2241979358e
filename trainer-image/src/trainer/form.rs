//! Entering a generation: meet, agree, share the state, hook the gradients.

use roundhouse_contract::Phase;
use roundhouse_elastic::{Event, Place};
use tch::Tensor;

use super::lobby::listen;
use super::{Peers, Trainer};
use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::strategy::DataParallel;
use crate::world::World;

impl Trainer<'_> {
    /// The same script whoever it is for, a first generation or a later one: meet, agree who has
    /// the state, send it to those who lack it, hook the gradients.
    pub(super) fn form(&mut self, place: &Place) -> Result<Option<Event>, Failure> {
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
        if let Err(failure) = self.share_state(&world) {
            world.abandon();
            return Err(failure);
        }
        self.replicas = Some(DataParallel::new(
            world,
            self.model.parameters(),
            &self.config.ddp,
            self.config.micro_batch_size,
        )?);
        self.reporter.join(place, self.committed_steps);
        self.reporter.enter(Phase::Training);
        Ok(Some(Event::Formed))
    }

    /// Gives the state of the rank that has come furthest to those who lack it. Who is cut off while
    /// receiving has half of it, and says so the next time.
    fn share_state(&mut self, world: &World) -> Result<(), Failure> {
        faults::point(Point::Share, world.rank(), self.committed_steps);
        let own = (!self.is_torn).then_some(self.committed_steps);
        let source = world.agree_on_state(own)?;
        if source.must_send {
            let sender = u32::try_from(source.rank).unwrap_or_default();
            self.is_torn = world.rank() != sender;
            world.broadcast(&mut self.state(), sender)?;
            self.is_torn = false;
        }
        self.committed_steps = source.step;
        Ok(())
    }

    /// Handles of all tensors that a rank without the state has to be sent.
    fn state(&self) -> Vec<Tensor> {
        let parameters = self.model.parameters().tensors().iter();
        parameters
            .chain(self.optimizer.state())
            .map(Tensor::shallow_clone)
            .collect()
    }
}
