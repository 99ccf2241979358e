//! Files beside the data that are not used because they are of another kind. The log names them, so
//! that users notice if a data set is smaller than its directory.

use serde::{Deserialize, Serialize};

/// The number of unused files, and an example.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    number: u64,
    /// The first file by name, so that it does not depend on the order in which a
    /// directory lists its files.
    example: String,
}

impl LeftOut {
    /// Adds a file by its name or path.
    pub fn add(&mut self, name: String) {
        if self.number == 0 || name < self.example {
            self.example = name;
        }
        self.number += 1;
    }

    /// Adds the files of another part of the data.
    pub fn join(&mut self, other: &Self) {
        if other.number == 0 {
            return;
        }
        if self.number == 0 || other.example < self.example {
            self.example.clone_from(&other.example);
        }
        self.number += other.number;
    }

    /// Formats the files for a sentence: `, 3 files of other kinds left out (e.g. a.webp)`; empty
    /// if there is none.
    #[must_use]
    pub fn files(&self) -> String {
        self.words("file of another kind", "files of other kinds")
    }

    /// Formats the counts like [`Self::files`], with another noun.
    #[must_use]
    pub fn words(&self, one: &str, many: &str) -> String {
        if self.number == 0 {
            return String::new();
        }
        let counted = counted(self.number, one, many);
        format!(", {counted} left out (e.g. {})", self.example)
    }
}

/// Formats a number with its noun.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    let noun = if number == 1 { one } else { many };
    format!("{number} {noun}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_files_are_counted_and_the_first_is_named() {
        let mut left_out = LeftOut::default();
        assert_eq!(left_out.files(), "");
        left_out.add("b.webp".to_owned());
        assert_eq!(
            left_out.files(),
            ", 1 file of another kind left out (e.g. b.webp)"
        );
        let mut all = LeftOut::default();
        all.join(&LeftOut::default());
        left_out.add("a.webp".to_owned());
        all.join(&left_out);
        all.join(&left_out);
        assert_eq!(
            all.files(),
            ", 4 files of other kinds left out (e.g. a.webp)"
        );
    }
}
