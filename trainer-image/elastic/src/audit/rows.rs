//! What each generation adds to a proof.

use std::collections::{BTreeMap, HashSet};

use super::File;
use crate::ledger::{Header, Line, Start};

/// What one generation adds to the proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The generation.
    pub generation: u64,
    /// First and last step that it committed and that count; `None` if there are none.
    pub steps: Option<(u64, u64)>,
    /// First and last epoch of them.
    pub epochs: Option<(u64, u64)>,
    /// Samples of them.
    pub num_samples: u64,
    /// Lines of superseded branches: steps that were committed, lost, and done again.
    pub num_superseded: u64,
    /// First and last step of them.
    pub superseded: Option<(u64, u64)>,
    /// The generation that did the first of them again, and the state that it began with; `None` if its file is of an earlier
    /// version, which does not say so.
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

    /// Takes in a line of a superseded branch.
    fn add_superseded(&mut self, line: &Line) {
        let (first, last) = self.superseded.unwrap_or((line.step, line.step));
        self.superseded = Some((first.min(line.step), last.max(line.step)));
        self.num_superseded += 1;
    }

    /// Takes in the next line that counts.
    fn add(&mut self, line: &Line) {
        let first = |span: Option<(u64, u64)>, now| span.map_or(now, |(first, _)| first);
        self.steps = Some((first(self.steps, line.step), line.step));
        self.epochs = Some((first(self.epochs, line.epoch), line.epoch));
        self.num_samples += line.end - line.start;
    }
}

/// What was not yet durable when a generation ended stands in the next one's file; it counts for the generation
/// that committed it.
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
    // A line may be written twice, by the rank that was lost and by its successor: it counts once, and is superseded only
    // if neither of them counts.
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

/// The first newer generation that committed a step, and began with a state from before the steps that were superseded.
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
