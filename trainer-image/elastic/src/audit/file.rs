//! Reads the ledger file of a generation.

use crate::audit::Finding;
use crate::ledger::{Head, Header, Line};

/// The ledger file of one generation.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// First line of the file.
    pub header: Header,
    /// The other lines of the file.
    pub lines: Vec<Line>,
}

impl File {
    /// Parses the text of a generation's file. Text after the last newline was cut off while it was
    /// written, and is ignored. Returns `None` if there is no other text.
    ///
    /// # Errors
    /// Returns the first line that cannot be parsed, or an error if the file
    /// belongs to another generation.
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
            return Err(bad(
                1,
                format!("it belongs to generation {}", header.generation),
            ));
        }
        let lines = numbered.map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| bad(number, error.to_string()))
        });
        Ok(Some(Self {
            header,
            lines: lines.collect::<Result<_, _>>()?,
        }))
    }

    /// Returns the end of the chain to which the file belongs.
    #[must_use]
    pub fn head(&self) -> Head {
        let before = || {
            let start = Head::start(&self.header.identity);
            self.header.previous.unwrap_or(start)
        };
        self.lines.last().map_or_else(before, Line::head)
    }

    /// Returns the first line whose hash does not match its contents and the line before, with its
    /// number (1 is the line after the header).
    #[must_use]
    pub fn broken(&self) -> Option<(u64, &Line)> {
        let mut previous = self.header.hash_before();
        (1..).zip(&self.lines).find(|(_, line)| {
            let expected = line.hash_after(&previous);
            previous = line.hash;
            line.hash != expected
        })
    }

    /// Returns the index of the line at the end of a chain.
    #[must_use]
    pub fn position_of(&self, head: &Head) -> Option<usize> {
        // Steps are consecutive, so only this line can be it.
        let first = self.lines.first()?.step;
        let place = usize::try_from(head.step.checked_sub(first)?).ok()?;
        (self.lines.get(place)?.head() == *head).then_some(place)
    }
}
