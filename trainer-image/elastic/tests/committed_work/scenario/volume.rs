//! The volume: saves, their names, retention, and the fence against older generations.

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::checkpoint::superfluous;
use roundhouse_elastic::saving::Carried;

use super::{KEEP, Late, Scenario, Violation};
use crate::Rule;
use crate::process::Process;

impl Scenario {
    pub(super) fn save(&mut self) -> Result<(), Violation> {
        self.begin_late_save();
        self.complete_late_save()
    }

    pub(super) fn begin_late_save(&mut self) {
        if let Some(first) = self.world.first().filter(|_| self.answers) {
            let Process {
                head, generation, ..
            } = self.processes[*first];
            if head.step > 0 {
                let save = Carried {
                    writer: generation,
                    hash: head.hash.number(),
                    num_parts: u32::try_from(self.world.len()).unwrap_or_default(),
                };
                for index in &self.world {
                    self.processes[*index].carried = Some(save);
                }
                self.late.push(Late {
                    save,
                    generation,
                    nonce: self.nonce,
                    head,
                });
            }
        }
    }

    /// The numbers of ledgers and checkpoints are the fence against older generations.
    pub(super) fn complete_late_save(&mut self) -> Result<(), Violation> {
        if !self.answers {
            return Ok(());
        }
        let Some(Late {
            save,
            generation,
            nonce,
            head,
        }) = self.late.pop()
        else {
            return Ok(());
        };
        if self.is_fenced(generation, nonce) {
            return Ok(());
        }
        self.ledgers.insert(generation, nonce);
        let id = if self.has(Rule::Name) {
            CheckpointId::of(&head)
        } else {
            CheckpointId {
                generation: save.writer,
                step: head.step,
            }
        };
        let earlier = self.checkpoints.insert(id, head);
        if earlier.is_some_and(|earlier| earlier != head) {
            return Err(Violation::TwoContents);
        }
        self.delete_old()
    }

    pub(super) fn delete_old(&mut self) -> Result<(), Violation> {
        let Some((newest, _)) = self.newest() else {
            return Ok(());
        };
        let all: Vec<_> = self.checkpoints.keys().map(|id| (*id, true)).collect();
        for old in superfluous(&all, KEEP, None) {
            if old >= newest || old.step > newest.step {
                return Err(Violation::Deleted);
            }
            self.checkpoints.remove(&old);
        }
        Ok(())
    }

    /// Whether a newer generation, or another process group of this number, has written.
    pub(super) fn is_fenced(&self, generation: u64, nonce: u64) -> bool {
        let is_other = self
            .ledgers
            .get(&generation)
            .is_some_and(|own| *own != nonce);
        let is_newer = self.written() > generation || is_other;
        self.answers && is_newer
    }

    pub(super) fn written(&self) -> u64 {
        let saved = self.checkpoints.keys().map(|id| id.generation);
        let all = saved.chain(self.ledgers.keys().copied());
        all.max().unwrap_or(0)
    }
}
