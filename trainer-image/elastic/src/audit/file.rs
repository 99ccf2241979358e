//! Reads a generation's file.

use crate::audit::Finding;
use crate::ledger::{Head, Header, Line};

/// A generation's file.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// Its first line.
    pub header: Header,
    /// The others.
    pub lines: Vec<Line>,
}

impl File {
    /// Reads the text of a generation's file. What comes after the last newline was cut off while it
    /// was written, and counts for nothing; `None` when nothing else is there.
    ///
    /// # Errors
    /// The first line that is none, or the file is not that generation's.
    pub fn parse(generation: u64, text: &str) -> Result<Option<Self>, Finding> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut numbered = (1_u64..).zip(whole.split('\n'));
        let bad = |number: u64, reason: String| Finding::BadLine {
            generation,
            number,
            reason,
        };
        let Some((_, first)) = numbered.next().filter(|(_, first)| !first.is_empty()) else {
            return Ok(None);
        };
        let header: Header =
            serde_json::from_str(first).map_err(|error| bad(1, error.to_string()))?;
        if header.generation != generation {
            return Err(bad(1, format!("it is generation {}'s", header.generation)));
        }
        let lines = numbered.map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| bad(number, error.to_string()))
        });
        Ok(Some(Self {
            header,
            lines: lines.collect::<Result<_, _>>()?,
        }))
    }

    /// The end of the chain that the file belongs to.
    #[must_use]
    pub fn head(&self) -> Head {
        let before = || {
            let start = Head::start(&self.header.run);
            self.header.previous.unwrap_or(start)
        };
        self.lines.last().map_or_else(before, Line::head)
    }

    /// The first line whose hash is not that of its contents and the line before, and its number, from 1 after the header.
    #[must_use]
    pub fn broken(&self) -> Option<(u64, &Line)> {
        let mut previous = self.header.hash_before();
        (1..).zip(&self.lines).find(|(_, line)| {
            let expected = line.hash_after(&previous);
            previous = line.hash;
            line.hash != expected
        })
    }

    /// Where the line is that a chain ends with.
    #[must_use]
    pub fn position_of(&self, head: &Head) -> Option<usize> {
        // Steps follow each other, so this is where it is, if it is here.
        let first = self.lines.first()?.step;
        let place = usize::try_from(head.step.checked_sub(first)?).ok()?;
        (self.lines.get(place)?.head() == *head).then_some(place)
    }
}
