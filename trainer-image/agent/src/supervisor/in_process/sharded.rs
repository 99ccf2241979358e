//! A sharded worker: its processes end and restart together, as lives of one replica.

use roundhouse_contract::TerminationMessage;
use roundhouse_contract::environment::{LAST_SEEN_GENERATION, REPLICA_FILE};
use tokio::time::Instant;

use super::{Lives, Worker};
use crate::ranks;
use crate::say::say;
use crate::supervisor::environment;
use crate::supervisor::failure::Failure;
use crate::supervisor::processes::IfStuck;
use crate::supervisor::replica::Replica;
use crate::verdict::Ended;

impl Worker<'_> {
    /// Starts all processes. Those of a sharded worker are another life of its replica.
    pub(super) fn start_all(&mut self) -> Result<(), Failure> {
        let options = self.options;
        if options.is_sharded() && self.lives.is_none() {
            let begun = Replica::begin(&options.run_dir);
            self.replica = Some(begun.map_err(|source| Failure::RunDir {
                path: options.run_dir.display().to_string(),
                source,
            })?);
        }
        let (replica, former) = (&self.replica, self.restarts.newest_seen_generation());
        let of_life = self.lives.as_ref().map(Lives::environment);
        let of_life = of_life.unwrap_or_default();
        self.processes.start(options, self.metrics, |local_rank| {
            let mut environment = environment::of_process(options, local_rank);
            environment.extend(
                replica
                    .iter()
                    .map(|it| (REPLICA_FILE, it.file().display().to_string())),
            );
            environment.extend(of_life.clone());
            environment.extend((former > 0).then(|| (LAST_SEEN_GENERATION, former.to_string())));
            environment
        })
    }

    /// Whether the worker continues without the process that has ended, or restarts all.
    pub(super) fn accepts(&mut self, ended: &Ended) -> bool {
        let (siblings, step) = (self.siblings(), self.step());
        if self.replica.is_none() {
            return self.restarts.accepts(ended, &siblings, step);
        }
        let own = self.status(ended.local_rank);
        let mut all = siblings.iter().chain(&own);
        let has_trained = all.any(|status| status.generation > 0);
        // The end of a process in another pod counts there.
        if self.lives.is_some() && ended.end.is_peer_failure() {
            return true;
        }
        let is_one_of_several = self.options.procs > 1 || self.lives.is_some();
        is_one_of_several
            && self
                .restarts
                .accepts_all(ended, &siblings, has_trained, step)
    }

    /// Ends the siblings of a process of a sharded worker that has failed, unless the agent itself
    /// has killed the process for a sibling.
    pub(super) fn end_replica(&mut self, local_rank: u32, was_killed: bool) {
        let status = self.status(local_rank);
        let Some(replica) = &mut self.replica else {
            return;
        };
        replica.bury(&self.options.run_dir, local_rank, status);
        if !was_killed {
            self.end_siblings();
        }
    }

    /// Whether all processes of a sharded worker restart.
    pub(super) fn restarts_replica(&self) -> bool {
        self.replica.is_some() && self.restarts.due().is_some()
    }

    /// Whether processes may start. Those of a replica wait until the former ones are gone.
    pub(super) fn may_restart(&self) -> bool {
        self.replica.is_none() || self.processes.are_gone()
    }

    /// Counts and reports the end of a replica once its last process is gone. The others need the
    /// report for their next generation, so it does not wait for the restart.
    pub(super) async fn report_replica(&mut self) {
        let is_over = self.restarts_replica() && self.processes.are_gone();
        if !is_over || self.replica.as_ref().is_some_and(|it| it.is_reported) {
            return;
        }
        // The cause may be in the last lines of a log.
        self.processes.drain_logs().await;
        let waiting = self.restarts.waiting().to_vec();
        self.note_generations();
        // The siblings may have entered a generation that the first one had not seen, or all died
        // while it formed. It cannot train any more, because their successors join a newer one.
        let generation = self.restarts.newest_seen_generation();
        let causes: Vec<_> = waiting
            .into_iter()
            .map(|ended| {
                let message = TerminationMessage {
                    generation,
                    ..self.explain(&ended)
                };
                (message, ended)
            })
            .collect();
        let are_peers = causes.iter().all(|(_, ended)| {
            let is_killed = self.replica.as_ref();
            let is_killed = is_killed.is_some_and(|it| it.has_killed(ended.local_rank, ended.end));
            is_killed || ended.end.is_peer_failure()
        });
        if self.lives.is_some() && are_peers {
            self.restarts.begin_after_peer(&causes);
        } else {
            let has_large_replica = self.lives.is_some();
            self.restarts
                .begin_all(self.step(), &causes, has_large_replica);
        }
        if let Some(lives) = &self.lives {
            self.restarts.end_life(lives.present());
        }
        self.restarts.keep(self.options);
        self.metrics.count_restart();
        if let Some(replica) = &mut self.replica {
            replica.is_reported = true;
        }
    }

    /// Removes what is left of the former life: none of its processes may run beside new ones.
    pub(super) async fn clear_replica(&mut self) {
        self.processes.clear(Instant::now(), IfStuck::GiveUp).await;
        for local_rank in 0..self.options.procs {
            ranks::forget(&self.options.run_dir, local_rank);
            self.processes.last_lines.forget_one(local_rank);
        }
        self.watch.forget();
    }

    /// Restarts all processes of a sharded worker. In a replica of several pods they wait for its
    /// next life.
    pub(super) async fn restart_replica(&mut self) {
        self.report_replica().await;
        self.clear_replica().await;
        let waiting = self.restarts.give_up();
        if self.lives.is_some() {
            return;
        }
        if let Err(failure) = self.start_all() {
            say(&failure.to_string());
            self.ended.extend(waiting);
        }
    }
}
