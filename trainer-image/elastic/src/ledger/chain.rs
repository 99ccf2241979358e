//! The end of the ledger, which every rank keeps in memory: the lines that may not be durable yet.
//!
//! Rank 0 writes the lines. If rank 0 is lost, its successor still has the lines that are not on
//! the disk.

use std::collections::VecDeque;

use super::{Head, Line};
use crate::digest::Digest;

/// Maximum number of lines in memory. If a volume fails for longer, the oldest lines are lost, and
/// the audit reports the gap.
const MAX_LINES: usize = 1 << 18;
const NUMBERS_PER_HEAD: usize = 2;
const NUMBERS_PER_LINE: usize = 7;

/// A durable head and the lines that follow it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    durable: Head,
    lines: VecDeque<Line>,
}

impl Chain {
    /// Creates a chain whose lines are all durable.
    #[must_use]
    pub const fn from(durable: Head) -> Self {
        Self {
            durable,
            lines: VecDeque::new(),
        }
    }

    /// Returns the head after the last line.
    #[must_use]
    pub fn head(&self) -> Head {
        self.lines.back().map_or(self.durable, Line::head)
    }

    /// Returns the head of the last durable line.
    #[must_use]
    pub const fn durable(&self) -> Head {
        self.durable
    }

    /// Returns the lines that may not be durable.
    #[must_use]
    pub const fn lines(&self) -> &VecDeque<Line> {
        &self.lines
    }

    /// Adds the line of a committed step.
    pub fn push(&mut self, line: Line) {
        self.lines.push_back(line);
        if self.lines.len() > MAX_LINES {
            self.forget_first();
        }
    }

    /// Drops the lines up to a step, because they are durable.
    pub fn forget_through(&mut self, step: u64) {
        while self.lines.front().is_some_and(|line| line.step <= step) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(line) = self.lines.pop_front() {
            self.durable = line.head();
        }
    }

    /// Serializes the chain for a rank that lacks it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Head {
            generation,
            step,
            hash,
        } = self.durable;
        put(&mut bytes, &[generation, step], &hash);
        for line in &self.lines {
            let Line {
                step,
                generation,
                epoch,
                start,
                end,
                loss,
                skipped,
                hash,
            } = line;
            let numbers = [
                *step,
                *generation,
                *epoch,
                *start,
                *end,
                loss.to_bits(),
                u64::from(*skipped),
            ];
            put(&mut bytes, &numbers, hash);
        }
        bytes
    }

    /// Parses [`Self::to_bytes`]; `None` for other bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let ([generation, step], hash) = take::<NUMBERS_PER_HEAD>(&mut rest)?;
        let mut chain = Self::from(Head {
            generation,
            step,
            hash,
        });
        while !rest.is_empty() {
            let (numbers, hash) = take::<NUMBERS_PER_LINE>(&mut rest)?;
            let [step, generation, epoch, start, end, loss, skipped] = numbers;
            chain.lines.push_back(Line {
                step,
                generation,
                epoch,
                start,
                end,
                loss: f64::from_bits(loss),
                skipped: skipped != 0,
                hash,
            });
        }
        Some(chain)
    }
}

fn put(bytes: &mut Vec<u8>, numbers: &[u64], hash: &Digest) {
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    bytes.extend(hash.bytes());
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<([u64; N], Digest)> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let (bytes, after) = rest.split_first_chunk()?;
        *number = u64::from_le_bytes(*bytes);
        *rest = after;
    }
    let (hash, after) = rest.split_first_chunk()?;
    *rest = after;
    Some((numbers, Digest::from_bytes(*hash)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_schedule::DataSchedule;
    use crate::ledger::LedgerIdentity;

    /// Returns the chain of a training's first steps.
    fn chain(steps: u64) -> Chain {
        let data_schedule = DataSchedule::of_steps(100, 30, u64::MAX);
        let mut chain = Chain::from(Head::start(&LedgerIdentity::of(&data_schedule, 7)));
        for step in 0..steps {
            let batch = data_schedule.next_batch(step).unwrap();
            let line = if step % 3 == 2 {
                chain.head().next_skipped(&batch, 2, step as f64)
            } else {
                chain.head().next(&batch, 2, 1.0 / (step + 1) as f64)
            };
            chain.push(line);
        }
        chain
    }

    #[test]
    fn chain_bytes_round_trip_and_others_are_refused() {
        for steps in [0, 1, 9] {
            let bytes = chain(steps).to_bytes();
            assert_eq!(Chain::from_bytes(&bytes), Some(chain(steps)));
            assert_eq!(Chain::from_bytes(&bytes[1..]), None);
        }
        assert_eq!(Chain::from_bytes(&[]), None);
    }

    #[test]
    fn durable_lines_are_dropped_except_for_their_head() {
        let all = chain(9);
        let mut chain = all.clone();
        chain.forget_through(4);
        assert_eq!(chain.durable(), all.lines()[3].head());
        assert_eq!(chain.lines().len(), 5);
        assert_eq!(chain.head(), all.head());
        chain.forget_through(2);
        assert_eq!(chain.durable().step, 4);
        chain.forget_through(100);
        assert_eq!(chain.durable(), all.head());
    }

    #[test]
    fn chain_that_never_becomes_durable_is_bounded() {
        let data_schedule = DataSchedule::of_steps(100, 30, u64::MAX);
        let mut chain = chain(1);
        let batch = data_schedule.next_batch(1).unwrap();
        let line = chain.head().next(&batch, 2, 0.5);
        for _ in 0..MAX_LINES + 5 {
            chain.push(line);
        }
        assert_eq!(chain.lines().len(), MAX_LINES);
    }
}
