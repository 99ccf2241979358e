//! Retries what a worker cannot do now, for example on a full volume.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use roundhouse_contract::earlier::Earlier;
use roundhouse_contract::{Action, Membership, paths};

use super::{LaunchPlan, Worker};

/// Time before the next attempt.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// A problem that a worker has now.
#[derive(Debug)]
pub(super) enum Problem {
    New(String),
    Reported,
}

impl Worker {
    /// Restarts the agent and rewrites the membership if they are due. A failure is retried and
    /// does not end other workers.
    pub(super) fn retry(&mut self, plan: &LaunchPlan) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
        let starts = is_due(self.restart_at);
        if !starts && !is_due(self.write_again_at) {
            return;
        }
        let started = if starts { self.spawn(plan) } else { Ok(()) };
        if let Err(error) = &started {
            self.cannot_start(error);
        }
        if self.write_membership(plan) && started.is_ok() {
            self.problem = None;
        }
    }

    /// Schedules another start of the agent.
    pub(super) fn cannot_start(&mut self, error: &anyhow::Error) {
        self.restart_at = Some(Instant::now() + RETRY);
        self.set_problem(error);
    }

    fn set_problem(&mut self, error: &anyhow::Error) {
        if self.problem.is_none() {
            let words = format!("{}: {error:#}; trying again every second", self.name);
            self.problem = Some(Problem::New(words));
        }
    }

    /// The present problem, once.
    pub(crate) fn new_problem(&mut self) -> Option<String> {
        match std::mem::replace(self.problem.as_mut()?, Problem::Reported) {
            Problem::New(words) => Some(words),
            Problem::Reported => None,
        }
    }

    /// Issues a membership document. As in a pod, the agent may read it later.
    pub(crate) fn issue(&mut self, plan: &LaunchPlan, membership: Membership, earlier: &[Earlier]) {
        self.earlier = earlier.to_vec();
        self.printed.is_outdated = membership.action == Action::Join;
        self.membership = Some(membership);
        self.write_membership(plan);
    }

    /// Writes the membership file, if there is a membership. Returns whether that succeeded.
    fn write_membership(&mut self, plan: &LaunchPlan) -> bool {
        let file = self.dir(plan).join(paths::MEMBERSHIP_FILE);
        let written = self.membership.as_ref().map(|it| write(&file, it));
        let error = written.and_then(Result::err);
        self.write_again_at = error.is_some().then(|| Instant::now() + RETRY);
        if let Some(error) = &error {
            self.set_problem(error);
        }
        error.is_none()
    }
}

/// Replaces the membership file atomically.
fn write(file: &Path, membership: &Membership) -> anyhow::Result<()> {
    let partial = file.with_extension("partial");
    std::fs::write(&partial, membership.to_json()?)
        .and_then(|()| std::fs::rename(&partial, file))
        .with_context(|| format!("cannot write {}", file.display()))
}
