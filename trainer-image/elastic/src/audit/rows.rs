//! The contribution of each generation to a proof.

use std::collections::{BTreeMap, HashSet};

use super::File;
use crate::ledger::{Header, Line, Start};

/// The contribution of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of the generation in the name of its file, with the offset of its run.
    pub generation: u64,
    /// First and last of its committed steps that count; `None` if there are none.
    pub steps: Option<(u64, u64)>,
    /// First and last epoch of these steps.
    pub epochs: Option<(u64, u64)>,
    /// Number of samples of these steps.
    pub num_samples: u64,
    /// Number of superseded lines: steps that were committed, lost, and done again.
    pub num_superseded: u64,
    /// First and last superseded step.
    pub superseded: Option<(u64, u64)>,
    /// The generation that repeated the first of these steps, and the state with which it began;
    /// `None` if its file is of an earlier version, which does not contain this.
    pub superseded_by: Option<(u64, Start)>,
}

impl Row {
    const fn of(generation: u64) -> Self {
        Self {
            generation,
            steps: None,
            epochs: None,
            num_samples: 0,
            num_superseded: 0,
            superseded: None,
            superseded_by: None,
        }
    }

    /// Adds a line of a superseded branch.
    fn add_superseded(&mut self, line: &Line) {
        let (first, last) = self.superseded.unwrap_or((line.step, line.step));
        self.superseded = Some((first.min(line.step), last.max(line.step)));
        self.num_superseded += 1;
    }

    /// Adds the next line that counts.
    fn add(&mut self, line: &Line) {
        let first = |span: Option<(u64, u64)>, now| span.map_or(now, |(first, _)| first);
        self.steps = Some((first(self.steps, line.step), line.step));
        self.epochs = Some((first(self.epochs, line.epoch), line.epoch));
        self.num_samples += line.end - line.start;
    }
}

/// Computes the rows. Lines that were not durable when a generation ended are in the file of the
/// next generation; they count for the generation that committed them.
pub(super) fn of(files: &[File], lengths: &[usize]) -> Vec<Row> {
    let headers = files.iter().map(|file| file.header.generation);
    let mut rows: BTreeMap<u64, Row> = headers.map(|it| (it, Row::of(it))).collect();
    let (mut counted, mut others) = (HashSet::new(), Vec::<&Line>::new());
    for (file, length) in files.iter().zip(lengths) {
        let (lines, rest) = file.lines.split_at(*length);
        for line in lines {
            counted.insert(line.hash);
            let row = rows.entry(line.generation);
            row.or_insert_with_key(|it| Row::of(*it)).add(line);
        }
        others.extend(rest);
    }
    // A lost rank and its successor may both have written a line. It counts once, and is superseded
    // only if neither copy counts.
    for line in others.into_iter().filter(|it| counted.insert(it.hash)) {
        let row = rows.entry(line.generation);
        row.or_insert_with_key(|it| Row::of(*it))
            .add_superseded(line);
    }
    for row in rows.values_mut() {
        row.superseded_by = successor(files, row);
    }
    rows.into_values().collect()
}

/// Returns the first newer generation that committed a step and began with a state from
/// before the superseded steps.
fn successor(files: &[File], row: &Row) -> Option<(u64, Start)> {
    let (first, _) = row.superseded?;
    files.iter().find_map(|file| {
        let Header {
            generation, start, ..
        } = file.header;
        let has_committed = file.head().generation == generation;
        let start = start.filter(|start| start.head.step < first)?;
        (generation > row.generation && has_committed).then_some((generation, start))
    })
}
