//! Steps that all members of the process group commit, or only some of them.

use roundhouse_elastic::Head;

use super::{Scenario, Violation, digest};

impl Scenario {
    pub(super) fn commit(&mut self) -> Result<(), Violation> {
        for _ in 0..=self.below(2) {
            let members = self.world.clone();
            self.step(&members)?;
        }
        if self.world.len() > 1 && self.in_a_hundred(25) {
            // The last sum succeeds on some ranks and fails on others.
            let first = self.one_of(self.world.len());
            let some: Vec<usize> = self.world.iter().copied().skip(first).collect();
            self.step(&some)?;
            self.world.clear();
        }
        Ok(())
    }

    pub(super) fn step(&mut self, members: &[usize]) -> Result<(), Violation> {
        let Some(first) = members.first() else {
            return Ok(());
        };
        let (former, generation) = (
            self.processes[*first].head,
            self.processes[*first].generation,
        );
        if self.is_fenced(generation, self.nonce) {
            self.world.clear();
            return Ok(());
        }
        self.num_commits += 1;
        let head = Head {
            generation,
            step: former.step + 1,
            hash: digest(self.num_commits),
        };
        self.former.insert(head.hash, former.hash);
        let earlier = self.committed.insert((generation, head.step), head.hash);
        // While the volume is silent, two process groups of one number can commit different steps,
        // but their checkpoints have different names.
        if earlier.is_some() && !self.was_restored {
            return Err(Violation::TwoContents);
        }
        for index in members {
            self.processes[*index].head = head;
        }
        Ok(())
    }
}
