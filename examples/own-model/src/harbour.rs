//! Reads the data: the harmonic constituents of a harbour's tide, as hydrographic offices publish
//! them.
//!
//! Each line has a name, a speed in degrees per hour, an amplitude in metres and a phase in
//! degrees. `#` starts a comment. The water level at hour t is the sum of
//! `amplitude · cos(speed · t - phase)`.

use std::path::Path;

use roundhouse_trainer::source::SourceError;

/// The tide of a harbour: a sum of cosines over time.
#[derive(Debug, PartialEq)]
pub struct Harbour {
    constituents: Vec<Constituent>,
}

#[derive(Debug, PartialEq)]
struct Constituent {
    /// The angular speed in radians per hour.
    speed: f64,
    /// The amplitude of the level in metres.
    amplitude: f64,
    /// The phase at hour 0 in radians.
    phase: f64,
}

impl Harbour {
    /// Reads a file of constituents.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not a constituent. The error names the file and the
    /// line, and becomes the message of the job.
    pub fn read(path: &Path) -> Result<Self, SourceError> {
        let refuse = |reason: String| SourceError::Data {
            path: path.to_owned(),
            reason,
        };
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        let mut constituents = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let words = line.split('#').next().unwrap_or_default();
            if words.trim().is_empty() {
                continue;
            }
            let constituent = Constituent::parse(words).ok_or_else(|| {
                refuse(format!(
                    "line {number}: expected a name, a speed in degrees per hour, an amplitude in metres and a phase in degrees"
                ))
            })?;
            constituents.push(constituent);
        }
        if constituents.is_empty() {
            return Err(refuse("has no constituent".to_owned()));
        }
        Ok(Self { constituents })
    }

    /// Returns the water level at an hour, in metres above the mean.
    pub fn level(&self, hour: u32) -> f64 {
        let hour = f64::from(hour);
        let levels = self.constituents.iter().map(|constituent| {
            constituent.amplitude * (constituent.speed * hour - constituent.phase).cos()
        });
        levels.sum()
    }
}

impl Constituent {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().skip(1);
        let mut number = || {
            words
                .next()?
                .parse::<f64>()
                .ok()
                .filter(|it| it.is_finite())
        };
        let (speed, amplitude, phase) = (number()?, number()?, number()?);
        words.next().is_none().then_some(Self {
            speed: speed.to_radians(),
            amplitude,
            phase: phase.to_radians(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Harbour, SourceError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("constituents.txt");
        std::fs::write(&path, text).unwrap();
        Harbour::read(&path)
    }

    #[test]
    fn levels_are_sums_of_cosines() {
        let harbour = read("# a comment\nA 90 2 0\n\nB 180 0.5 180  # and another\n").unwrap();
        for (hour, expected) in [(0, 1.5), (1, 0.5), (2, -2.5)] {
            assert!((harbour.level(hour) - expected).abs() < 1e-9, "hour {hour}");
        }
    }

    #[test]
    fn errors_name_file_and_line() {
        for wrong in ["B 1 2", "B 1 2 3 4", "B 1 two 3", "B 1 NaN 3"] {
            let error = read(&format!("A 90 2 0\n{wrong}\n"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("constituents.txt: line 2"), "{error}");
        }
        let empty = read("# nothing\n").unwrap_err().to_string();
        assert!(empty.contains("has no constituent"), "{empty}");
    }
}
