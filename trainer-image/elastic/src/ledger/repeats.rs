//! Steps that were committed, lost and done again, counted when a generation begins.
//!
//! The audit counts these steps from all files of a ledger. A training process cannot read that
//! much. So the header of each file contains the count up to its generation, and the next
//! generation adds the lines that it supersedes itself: those after the line from which it
//! continues, and those of newer files that do not lead to that line.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{Head, Header, Line};
use crate::audit::File;
use crate::digest::Digest;

/// The state with which a generation began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// The last committed step of the state.
    pub head: Head,
    /// Where the state came from.
    pub source: Source,
    /// Number of repeated steps so far, including those of this generation; `None` if an older file
    /// could not be read. Then the next generation counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
}

/// Where the state of a generation came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The initial weights of the model.
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
    /// Number of repeated steps of the whole ledger.
    pub total: u64,
    /// Number of them in earlier jobs that used the same directory.
    pub before_run: u64,
    /// The last generation that repeated steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<Repeat>,
}

/// The steps that one generation repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repeat {
    /// Number of the generation that repeats them.
    pub generation: u64,
    /// Number of repeated steps. Two lost branches may contain the same steps.
    pub num_steps: u64,
    pub first: u64,
    pub last: u64,
    /// Step of the state with which the generation began.
    pub after: u64,
    /// Where that state came from.
    pub source: Source,
}

impl Repeats {
    /// Number of repeated steps in the present job.
    #[must_use]
    pub const fn of_run(&self) -> u64 {
        self.total.saturating_sub(self.before_run)
    }
}

/// A generation that begins its ledger file.
#[derive(Clone, Copy, Debug)]
pub struct Beginning {
    /// Number of the generation that begins.
    pub generation: u64,
    /// Generations of the present job have numbers above this one.
    pub first_generation: u64,
    /// The line from which its file continues.
    pub previous: Option<Head>,
    /// The last line of the state with which it begins.
    pub head: Head,
    /// Where that state came from.
    pub source: Source,
}

/// Counts the repeated steps up to and including this generation, assuming that it commits a step.
/// `carried` are the lines from [`Beginning::previous`] to [`Beginning::head`]. `older` are the
/// generations that have files, in order. `read` returns the header of a file and its lines from a
/// step on. The result is `None` if no file has the line from which the generation continues.
///
/// # Errors
/// Returns the error of `read` if a file cannot be read.
pub fn count<'a, E>(
    beginning: &Beginning,
    carried: impl IntoIterator<Item = &'a Line>,
    older: &[u64],
    mut read: impl FnMut(u64, u64) -> Result<Option<File>, E>,
) -> Result<Option<Repeats>, E> {
    let carried: Vec<&Line> = carried.into_iter().collect();
    count_with(beginning, &carried, older, &mut read, MOST_UNCOUNTED)
}

/// Up to this many consecutive generations that could not count are counted by a later one. Steps
/// repeated before them are not counted.
const MOST_UNCOUNTED: u32 = 32;

/// Reads the header of a file and its lines from a step on.
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
    // The base's generation dropped these lines in favour of an older state, but this generation
    // continues with them.
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

/// The file and line from which a generation continues.
#[derive(Debug, Default)]
struct Base {
    /// Generation whose file has the line; 0 if there is no line before the first.
    generation: u64,
    /// Header of that file.
    header: Option<Header>,
    /// Lines of that file after this line.
    after: Vec<Line>,
    /// Lines of newer files, which do not lead to this line.
    beside: Vec<Line>,
}

/// Finds the line from which a file continues. Like the audit, it starts at the newest file.
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
            // A file may begin with copies of lines that an older file has too. If it was cut off
            // within them, none of its copies is durable, so use the older file.
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
        // Another file that begins with the first line has already counted the lines before it.
        let begins = previous.is_none() && file.header.previous.is_none() && is_whole(&file);
        if begins && repeats_of(&file).is_some() {
            return Ok(Some(Base {
                generation: *generation,
                header: Some(file.header),
                after: file.lines,
                beside,
            }));
        }
        // All lines of this file lead to another branch.
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

/// Returns the count at the start of the base's generation. If that generation could not count,
/// this function counts now, as far as files exist. Files of earlier versions have no count.
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

/// Whether a file has all lines of the state with which its generation began.
fn is_whole(file: &File) -> bool {
    let start = file.header.start;
    start.is_none_or(|start| start.head.step <= file.head().step)
}

/// Returns the hashes of lines in the base's file and older files that may also be in newer files
/// or in `carried`: a generation writes lines again if they may not be durable.
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
