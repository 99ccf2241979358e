//! Steps that were committed, lost and done again, counted when a generation begins.
//!
//! The audit counts them from all files of a ledger. A process that trains cannot read so much. So the header of each file has
//! the count up to its generation, and the next generation adds the lines that it supersedes itself: those after the line
//! from which it continues, and those of newer files that do not lead to it.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{Head, Header, Line};
use crate::audit::File;
use crate::digest::Digest;

/// With what state a generation began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// The last committed step of the state.
    pub head: Head,
    /// Where the state was.
    pub source: Source,
    /// What was done again until then, this generation's share included; `None` if an older file could not be read. The next
    /// generation counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
}

/// Where the state was that a generation began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// Initial weights.
    Initial,
    /// The checkpoint that has the name of the state.
    Checkpoint,
    /// The memory of the process with this rank.
    Rank(u32),
}

/// Steps that were committed, lost and done again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repeats {
    /// All of the ledger.
    pub total: u64,
    /// Those of earlier jobs in the same directory.
    pub before_run: u64,
    /// The newest of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<Repeat>,
}

/// Steps that one generation does again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repeat {
    /// The generation.
    pub generation: u64,
    /// How many. Two branches that were both lost may have the same steps.
    pub num_steps: u64,
    /// First step.
    pub first: u64,
    /// Last step.
    pub last: u64,
    /// Step of the state that the generation began with.
    pub after: u64,
    /// Where that was.
    pub source: Source,
}

impl Repeats {
    /// Those of the present job.
    #[must_use]
    pub const fn of_run(&self) -> u64 {
        self.total.saturating_sub(self.before_run)
    }
}

/// A generation that begins its file.
#[derive(Clone, Copy, Debug)]
pub struct Beginning {
    /// The generation.
    pub generation: u64,
    /// The present job's generations are above this.
    pub first_generation: u64,
    /// The line that its file continues from.
    pub previous: Option<Head>,
    /// The last line of the state that it begins with.
    pub head: Head,
    /// Where that state was.
    pub source: Source,
}

/// What was done again, given that a generation commits a step. `carried` are the lines from [`Beginning::previous`] to
/// [`Beginning::head`], `older` the generations that have files, in order. `read` reads of a file the header and the lines
/// from a step on. `None`: no file has the line that the generation continues from.
///
/// # Errors
/// A file cannot be read.
pub fn count<'a, E>(
    beginning: &Beginning,
    carried: impl IntoIterator<Item = &'a Line>,
    older: &[u64],
    mut read: impl FnMut(u64, u64) -> Result<Option<File>, E>,
) -> Result<Option<Repeats>, E> {
    let carried: Vec<&Line> = carried.into_iter().collect();
    count_with(beginning, &carried, older, &mut read, MOST_UNCOUNTED)
}

/// So many generations, one after the other, that could not count are counted by a later one. What was before them is not.
const MOST_UNCOUNTED: u32 = 32;

/// Reads of a file the header and the lines from a step on.
type Read<'a, E> = dyn FnMut(u64, u64) -> Result<Option<File>, E> + 'a;

fn count_with<E>(
    beginning: &Beginning,
    carried: &[&Line],
    older: &[u64],
    read: &mut Read<'_, E>,
    num_left: u32,
) -> Result<Option<Repeats>, E> {
    let Some(base) = base(beginning.previous, older, read)? else {
        return Ok(None);
    };
    let before = before(&base, beginning.first_generation, older, read, num_left)?;
    let after: HashSet<Digest> = base.after.iter().map(|line| line.hash).collect();
    let earlier = earlier(&base, carried, older, read)?;
    let is_earlier = |line: &Line| earlier.contains(&line.hash) && !after.contains(&line.hash);
    // The base's generation left these for an older state, and this one continues with them after all.
    let num_returned = carried.iter().filter(|line| is_earlier(line)).count() as u64;
    let mut counted: HashSet<Digest> = carried.iter().map(|line| line.hash).collect();
    let beside = base.beside.iter().filter(|line| !is_earlier(line));
    let new: Vec<u64> = base
        .after
        .iter()
        .chain(beside)
        .filter(|line| counted.insert(line.hash))
        .map(|line| line.step)
        .collect();
    let newest = new
        .iter()
        .min()
        .zip(new.iter().max())
        .map(|(first, last)| Repeat {
            generation: beginning.generation,
            num_steps: new.len() as u64,
            first: *first,
            last: *last,
            after: beginning.head.step,
            source: beginning.source,
        });
    let is_same_run = base.generation > beginning.first_generation;
    Ok(Some(Repeats {
        total: (before.total + new.len() as u64).saturating_sub(num_returned),
        before_run: if is_same_run {
            before.before_run
        } else {
            before.total
        },
        newest: newest.or(before.newest),
    }))
}

/// What a generation continues from.
#[derive(Debug, Default)]
struct Base {
    /// The generation whose file has the line; 0 if there is none before the first.
    generation: u64,
    /// The first line of that file.
    header: Option<Header>,
    /// The lines of that file after this one.
    after: Vec<Line>,
    /// The lines of newer files.
    beside: Vec<Line>,
}

/// Looks for the line that a file continues from, from the newest file backwards, as the audit does.
fn base<E>(
    previous: Option<Head>,
    older: &[u64],
    read: &mut Read<'_, E>,
) -> Result<Option<Base>, E> {
    let mut beside = Vec::new();
    for generation in older.iter().rev() {
        if let Some(head) = previous {
            if *generation < head.generation {
                return Ok(None);
            }
            let Some(file) = read(*generation, head.step)? else {
                continue;
            };
            // A file that was cut off in the lines that it writes once more made none of them durable: an older file has
            // the line, too.
            if let Some(place) = file.position_of(&head).filter(|_| is_whole(&file)) {
                let after = file.lines[place + 1..].to_vec();
                return Ok(Some(Base {
                    generation: *generation,
                    header: Some(file.header),
                    after,
                    beside,
                }));
            }
        }
        let Some(file) = read(*generation, 0)? else {
            continue;
        };
        // Another file that begins with the first line has counted those before it.
        let begins = previous.is_none() && file.header.previous.is_none() && is_whole(&file);
        if begins && repeats_of(&file).is_some() {
            return Ok(Some(Base {
                generation: *generation,
                header: Some(file.header),
                after: file.lines,
                beside,
            }));
        }
        // All of its lines lead elsewhere.
        beside.extend(file.lines);
    }
    Ok(previous.is_none().then(|| Base {
        beside,
        ..Base::default()
    }))
}

fn repeats_of(file: &File) -> Option<Repeats> {
    file.header.start.and_then(|start| start.repeats)
}

/// What was done again when the base's generation began. If it could not count that, it is counted now, as far as there are
/// files. A file of an earlier version has no count.
fn before<E>(
    base: &Base,
    first_generation: u64,
    older: &[u64],
    read: &mut Read<'_, E>,
    num_left: u32,
) -> Result<Repeats, E> {
    let begun = base.header.and_then(|it| Some((it.previous, it.start?)));
    let (Some((previous, start)), Some(num_left)) = (begun, num_left.checked_sub(1)) else {
        return Ok(Repeats::default());
    };
    if let Some(repeats) = start.repeats {
        return Ok(repeats);
    }
    let beginning = Beginning {
        generation: base.generation,
        first_generation,
        previous,
        head: start.head,
        source: start.source,
    };
    let from = previous.map_or(0, |head| head.step);
    let file = read(base.generation, from)?;
    let lines = file.map(|file| file.lines).unwrap_or_default();
    let carried = lines.iter().take_while(|line| line.step <= start.head.step);
    let carried: Vec<&Line> = carried.collect();
    let num_older = older.partition_point(|generation| *generation < base.generation);
    let counted = count_with(&beginning, &carried, &older[..num_older], read, num_left)?;
    Ok(counted.unwrap_or_default())
}

/// Whether a file has all lines of the state that its generation began with.
fn is_whole(file: &File) -> bool {
    let start = file.header.start;
    start.is_none_or(|start| start.head.step <= file.head().step)
}

/// Lines that the base's file and older ones have, as far as the same lines may be in newer files or in `carried`: a generation
/// writes once more what may not be durable.
fn earlier<E>(
    base: &Base,
    carried: &[&Line],
    older: &[u64],
    read: &mut Read<'_, E>,
) -> Result<HashSet<Digest>, E> {
    let carried = carried.iter().copied();
    let twice: Vec<&Line> = (base
        .beside
        .iter()
        .filter(|line| line.generation <= base.generation))
    .chain(carried.filter(|line| line.generation < base.generation))
    .collect();
    let oldest = twice.iter().map(|line| line.generation).min();
    let first = twice.iter().map(|line| line.step).min();
    let Some((oldest, first)) = oldest.zip(first) else {
        return Ok(HashSet::new());
    };
    let mut hashes = HashSet::new();
    for generation in older {
        if (oldest..=base.generation).contains(generation) {
            let file = read(*generation, first)?;
            hashes.extend(
                file.into_iter()
                    .flat_map(|file| file.lines)
                    .map(|line| line.hash),
            );
        }
    }
    Ok(hashes)
}

#[cfg(test)]
mod tests;
