//! Keeps the last state of a process that ends because its replica has lost another process.
//!
//! The state of the other processes is as good as before: a connection was lost, or two replicas
//! have lost different processes. If the parts of all processes are in the volumes of the pods that
//! start together next, training continues from there and repeats no step. A part that is of no use
//! is deleted with the next copy.

use roundhouse_contract::Phase;
use roundhouse_elastic::state::Layout;
use roundhouse_elastic::{CheckpointId, Origin};
use roundhouse_report::{say, say_error};

use super::file::{self, Kind};
use super::volumes::VolumesError;
use super::writer::NotWritten;
use super::{LocalCopies, MIB};
use crate::group::Rendezvous;
use crate::member::Member;
use crate::state::State;

/// What became of the last part.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
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
    /// Keeps this process' part of the last committed state in the volume of its pod, if the job
    /// keeps copies and the replica has several pods. Call it before the process ends because its
    /// replica has lost a process, when nothing changes the state any more. Failures are logged:
    /// training then continues from an earlier state.
    pub fn keep_part<S: State>(&mut self, state: &S) {
        let is_live = self.local_state.claim().origin == Origin::Live;
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
        // The agent waits for a process that says so.
        self.reporter.enter(Phase::Parting);
        let step = id.step;
        match copies.keep_part(id, layout, &words, state) {
            Ok(Kept::Written) => say(&format!(
                "this process keeps its part of step {step} for the next life of its replica"
            )),
            Ok(Kept::Known) => {}
            Ok(Kept::NoRoom { needed, limit }) => say_error(&format!(
                "this process cannot keep its part of step {step}: its pod needs {} MiB for it and its copies, and \
                 checkpoint.local.sizeLimit is {} MiB",
                needed.div_ceil(MIB),
                limit / MIB,
            )),
            Err(error) => say_error(&format!(
                "this process cannot keep its part of step {step}: {error}"
            )),
        }
    }
}

impl LocalCopies {
    fn keep_part<S: State>(
        &mut self,
        id: CheckpointId,
        layout: &Layout,
        words: &[u8],
        state: &S,
    ) -> Result<Kept, NotWritten> {
        // A copy in progress must not delete this part.
        self.orders.keep_all();
        let shard = layout.shard();
        if self.directory.path(shard, id).exists() {
            return Ok(Kept::Known);
        }
        let kind: Kind = self.kind(state)?;
        let own = |error| VolumesError::Own {
            path: self.directory.path(shard, id),
            error,
        };
        if let Some(limit) = self.settings.max_bytes {
            // The other processes of this pod keep theirs at the same time.
            let own_bytes = file::most_bytes(&kind, words);
            let new = own_bytes.saturating_mul(self.local_world_size.into());
            let needed = self.directory.num_bytes().map_err(own)?.saturating_add(new);
            if needed > limit {
                return Ok(Kept::NoRoom { needed, limit });
            }
        }
        let mut row = state.snapshot(0..kind.state_bytes, self.buffer.take())?;
        let row = row.bytes()?;
        let write = |path: &std::path::Path| file::write(path, &kind, words, row);
        let written = self.directory.complete_beside_copies(shard, id, write);
        written.map_err(own)?;
        Ok(Kept::Written)
    }
}
