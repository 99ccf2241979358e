//! Enters a generation: first the member forms it, then the trainer installs the gradient hooks.

use roundhouse_contract::Phase;
use roundhouse_elastic::{Event, Place};
use roundhouse_member::member::workers;
use roundhouse_report::say;

use super::{LastStep, Trainer};
use crate::failure::Failure;
use crate::ranks::Ranks;
use crate::{replica, sync};

impl Trainer<'_> {
    /// Enters a generation, the first or a later one. Returns `None` if a newer generation arrived
    /// meanwhile.
    pub(super) fn form(&mut self, place: &Place) -> Result<Option<Event>, Failure> {
        if let Some(replica) = &mut self.replica {
            replica.enters(place.generation);
        }
        // The old hooks call the group of the previous generation.
        self.leave_group();
        // The gradients may be views of the old group's buckets.
        self.work.task.parameters_mut().forget_gradients()?;
        // NCCL allocates outside libtorch's cache, and the old group may still hold its memory
        // while the next group is created.
        roundhouse_c10d::empty_cache(self.work.task.parameters().device())?;
        self.last_step = LastStep::default();
        self.longest_evaluation = None;
        // Forming begins from the state that this rank claims, so no earlier update is open.
        self.uncounted_updates = 0;
        let Some(origin) = self.member.form(place, &mut self.work.tensors)? else {
            return Ok(None);
        };
        // All ranks have the same position and the same number of workers now, so all compute the
        // same plan.
        let workers = workers(&self.launch, place.world_size);
        let position = self
            .plan
            .scaling
            .rescale(self.member.local_state.position, workers);
        let position = self.with_loss_scale(position);
        self.member.local_state.position = position;

        let expected = self.member.longest_step();
        self.set_timeout(self.launch.timeouts.of_first_step(expected))?;
        self.complete_weights(place.generation)?;
        let world = self.member.world()?;
        let ranks = world.shared().map(Ranks::of);
        let work = &self.work;
        let (parameters, group_size) = (work.task.parameters(), work.task.group_size());
        let layout = self.layout.as_deref();
        self.sync = Some(sync::build(
            &work.config,
            world,
            parameters,
            layout,
            group_size,
            self.commit,
            position.step,
        )?);
        self.work.task.train_among(ranks);

        let reporter = &mut *self.member.reporter;
        reporter.set_total_steps(position.step + self.plan.data_schedule.steps_to_come(&position));
        self.member
            .begin_training(place, origin, &self.work.tensors)?;
        if self.plan.scaling.is_on() {
            self.member
                .reporter
                .batch(self.plan.data_schedule.batch_size(&position));
        }
        if place.rank == 0
            && let Some(words) = self.data.take()
        {
            say(&words);
        }
        self.member.reporter.enter(Phase::Training);
        Ok(Some(Event::Formed))
    }

    /// Fetches the weights that other processes of the replica update: a part that was saved just
    /// before its process ended may have older ones.
    fn complete_weights(&mut self, generation: u64) -> Result<(), Failure> {
        let timeout = self.timeout_of_turn();
        let Some(replica) = &mut self.replica else {
            return Ok(());
        };
        if self.work.update.pieces().is_none() {
            return Ok(());
        }
        // The generation may have failed in another process, which takes no part then.
        replica.confirm(generation, timeout)?;
        self.work.update.complete().map_err(replica::explain)
    }
}
