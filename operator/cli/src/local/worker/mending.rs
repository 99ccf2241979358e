//! What a worker cannot do now, as on a volume that is full, it does later.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use roundhouse_contract::{Membership, paths};

use super::{Setting, Worker};

/// Before something that has failed is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// What a worker cannot do.
#[derive(Debug)]
pub(super) enum Trouble {
    New(String),
    Said,
}

impl Worker {
    /// Starts it again if it is time to, and tells its place if it could not be told. What fails is tried again: nobody
    /// else ends for it.
    pub(super) fn mend(&mut self, setting: &Setting) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
        let starts = is_due(self.restart_at);
        if !starts && !is_due(self.tell_at) {
            return;
        }
        let started = if starts { self.spawn(setting) } else { Ok(()) };
        if let Err(error) = &started {
            self.cannot_start(error);
        }
        if self.write_place(setting) && started.is_ok() {
            self.trouble = None;
        }
    }

    /// Its agent is to be started later.
    pub(super) fn cannot_start(&mut self, error: &anyhow::Error) {
        self.restart_at = Some(Instant::now() + RETRY);
        self.have_trouble(error);
    }

    fn have_trouble(&mut self, error: &anyhow::Error) {
        if self.trouble.is_none() {
            let words = format!("{}: {error:#}; it is tried again", self.name);
            self.trouble = Some(Trouble::New(words));
        }
    }

    /// What it cannot do, the first time that this is asked.
    pub(crate) fn trouble(&mut self) -> Option<String> {
        match std::mem::replace(self.trouble.as_mut()?, Trouble::Said) {
            Trouble::New(words) => Some(words),
            Trouble::Said => None,
        }
    }

    /// Gives it a place. Its agent may read it later, as in a pod.
    pub(crate) fn tell(&mut self, setting: &Setting, membership: Membership) {
        self.membership = Some(membership);
        self.write_place(setting);
    }

    /// Whether its agent can read its place now, if it has one.
    fn write_place(&mut self, setting: &Setting) -> bool {
        let file = self.dir(setting).join(paths::MEMBERSHIP_FILE);
        let written = self.membership.as_ref().map(|it| write(&file, it));
        let error = written.and_then(Result::err);
        self.tell_at = error.is_some().then(|| Instant::now() + RETRY);
        if let Some(error) = &error {
            self.have_trouble(error);
        }
        error.is_none()
    }
}

/// Writes a place to a file that is there at once as a whole.
fn write(file: &Path, membership: &Membership) -> anyhow::Result<()> {
    let partial = file.with_extension("partial");
    std::fs::write(&partial, membership.to_json()?)
        .and_then(|()| std::fs::rename(&partial, file))
        .with_context(|| format!("cannot write {}", file.display()))
}
