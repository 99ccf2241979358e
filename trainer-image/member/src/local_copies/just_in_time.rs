//! Copies just in time: a process that ends because its replica has lost another one first saves
//! its part of the last state.
//!
//! The states of the processes that are left are as good as before: a connection has failed, or two
//! replicas have lost different processes. If the parts of all processes are in the volumes of the
//! pods that start together next, training continues from there and repeats no step. The next copy
//! deletes a part that is of no use.

use roundhouse_contract::Phase;
use roundhouse_elastic::state::Layout;
use roundhouse_elastic::{CheckpointId, Origin};
use roundhouse_report::{say, say_error};

use super::file;
use super::volumes::VolumesError;
use super::writer::NotWritten;
use super::{LocalCopies, MIB};
use crate::group::Rendezvous;
use crate::member::Member;
use crate::state::State;

/// What became of the part.
#[derive(Debug, PartialEq, Eq)]
enum Saved {
    Written,
    /// The last copy has the same state.
    Known,
    /// The copies and this part need more bytes than the volume has.
    NoRoom {
        needed: u64,
        limit: u64,
    },
}

impl<R: Rendezvous> Member<'_, R> {
    /// Writes this process' part of the last committed state into the volume of its pod, if the job
    /// keeps copies and the replica has several pods. Call it when the replica has lost a process,
    /// just before this process ends and after the last change of the state. Failures are logged:
    /// training then continues from an earlier state.
    pub fn save_part<S: State>(&mut self, state: &S) {
        let is_live = self.local_state.claim().origin == Origin::Live;
        // A state that was received in part, or a step that was cut short, is no committed state.
        if !is_live || self.local_state.is_cut_short {
            return;
        }
        let (head, words) = (self.local_state.chain.head(), self.local_state.words());
        let id = CheckpointId::of(&head);
        let Some(layout) = state.layout() else { return };
        let Some(copies) = self.checkpointing.as_mut().and_then(super::copies_of) else {
            return;
        };
        if copies.pods.is_none() {
            return;
        }
        // The agent waits longer for a process in this phase.
        self.reporter.enter(Phase::SavingPart);
        let step = id.step;
        match copies.save_part(id, layout, &words, state) {
            Ok(Saved::Written) => say(&format!("this process has saved its part of step {step}")),
            Ok(Saved::Known) => {}
            Ok(Saved::NoRoom { needed, limit }) => say_error(&format!(
                "this process cannot save its part of step {step}: its pod needs {} MiB for it and its copies, and \
                 checkpoint.local.sizeLimit is {} MiB",
                needed.div_ceil(MIB),
                limit / MIB,
            )),
            Err(error) => say_error(&format!(
                "this process cannot save its part of step {step}: {error}"
            )),
        }
    }
}

impl LocalCopies {
    fn save_part<S: State>(
        &mut self,
        id: CheckpointId,
        layout: &Layout,
        words: &[u8],
        state: &S,
    ) -> Result<Saved, NotWritten> {
        let shard = layout.shard();
        let path = self.directory.path(shard, id);
        if path.exists() {
            return Ok(Saved::Known);
        }
        let kind = self.kind(state)?;
        let procs = self.local_world_size.max(1);
        if let Some(limit) = self.settings.max_bytes {
            // The other processes of this pod save theirs at the same time, and may have done so.
            let is_of_this_pod = |other: u32| other / procs == shard / procs;
            let others = self.directory.num_bytes_beside(id, is_of_this_pod);
            let others = others.map_err(|error| VolumesError::Own {
                path: self.directory.root().to_owned(),
                error,
            })?;
            let new = file::most_bytes(&kind, words).saturating_mul(procs.into());
            let needed = others.saturating_add(new);
            if needed > limit {
                return Ok(Saved::NoRoom { needed, limit });
            }
        }
        let mut row = state.snapshot(0..kind.state_bytes, self.buffer.take())?;
        let row = row.bytes()?;
        let write = |path: &std::path::Path| file::write(path, &kind, words, row);
        let written = self.directory.complete_beside_copies(shard, id, write);
        written.map_err(|error| VolumesError::Own { path, error })?;
        Ok(Saved::Written)
    }
}
