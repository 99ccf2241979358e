//! Parses one line of a log: its time, its writer and its text. Pure.

use std::collections::BTreeSet;
use std::str::FromStr;

use anstyle::{Ansi256Color, Style};
use jiff::Timestamp;
use serde::Serialize;

use crate::out::styled;

/// The writer of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Speaker {
    /// A rank of a generation.
    Rank(u32),
    /// A process outside a generation: index of the worker, and local rank.
    Process(u32, u32),
    /// The agent of a worker.
    Agent(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Time of the line by the node's clock.
    pub(crate) at: Option<Timestamp>,
    /// Name of the pod.
    pub(crate) pod: String,
    pub(crate) speaker: Speaker,
    /// The line without time and prefix.
    pub(crate) text: String,
}

impl Line {
    /// Parses a raw line of a worker's log.
    pub(crate) fn parse(raw: &str, pod: &str, worker: u32) -> Self {
        let (at, rest) = split_time(raw);
        let (speaker, text) = split_speaker(rest, worker);
        Self {
            at,
            pod: pod.to_owned(),
            speaker,
            text: text.to_owned(),
        }
    }

    /// The line for the terminal: a coloured prefix, then the text without control characters
    /// except tabs.
    pub(crate) fn shown(&self) -> String {
        let prefix = format!("[{}]", self.speaker.name());
        format!(
            "{} {}",
            styled(self.speaker.style(), &prefix),
            harmless(&self.text)
        )
    }
}

impl Speaker {
    /// `rank 3`; `worker 2.1` for a process without a rank, `worker 2` for the agent.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Rank(rank) => format!("rank {rank}"),
            Self::Process(worker, local) => format!("worker {worker}.{local}"),
            Self::Agent(worker) => format!("worker {worker}"),
        }
    }

    /// Each rank has one of 12 colours; other writers are dim.
    fn style(self) -> Style {
        const COLOURS: [u8; 12] = [39, 208, 78, 213, 220, 45, 203, 148, 141, 180, 51, 111];
        match self {
            Self::Rank(rank) => {
                let colour = COLOURS[rank as usize % COLOURS.len()];
                Style::new().fg_color(Some(Ansi256Color(colour).into()))
            }
            Self::Process(..) | Self::Agent(_) => Style::new().dimmed(),
        }
    }
}

/// Time and rest of a raw line; without a time, the rest is the whole line.
pub(super) fn split_time(raw: &str) -> (Option<Timestamp>, &str) {
    let (first, rest) = raw.split_once(' ').unwrap_or((raw, ""));
    match first.parse() {
        Ok(at) => (Some(at), rest),
        Err(_) => (None, raw),
    }
}

fn split_speaker(text: &str, worker: u32) -> (Speaker, &str) {
    let found = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "));
    let own = found.and_then(|(name, rest)| {
        if let Some(rank) = name.strip_prefix("rank ") {
            return Some((Speaker::Rank(rank.parse().ok()?), rest));
        }
        let (worker, local) = name.strip_prefix("worker ")?.split_once('.')?;
        Some((
            Speaker::Process(worker.parse().ok()?, local.parse().ok()?),
            rest,
        ))
    });
    own.unwrap_or((Speaker::Agent(worker), text))
}

fn harmless(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() && c != '\t' { ' ' } else { c })
        .collect()
}

/// A set of ranks, such as `0,3-5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranks(BTreeSet<u32>);

impl Ranks {
    /// Whether the writer is one of these ranks.
    pub(crate) fn contains(&self, speaker: Speaker) -> bool {
        matches!(speaker, Speaker::Rank(rank) if self.0.contains(&rank))
    }
}

impl FromStr for Ranks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: u32 = 100_000;
        let wrong =
            || format!("{text:?} is not a set of ranks: give numbers and ranges, such as 0,3-5");
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let mut ranks = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last > MOST {
                return Err(wrong());
            }
            ranks.extend(first..=last);
        }
        Ok(Self(ranks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_names_rank_process_or_agent() {
        for (raw, speaker, text) in [
            (
                "2026-01-01T00:00:00.25Z [rank 13] step 4",
                Speaker::Rank(13),
                "step 4",
            ),
            (
                "2026-01-01T00:00:00Z [worker 2.1] loads",
                Speaker::Process(2, 1),
                "loads",
            ),
            (
                "2026-01-01T00:00:00Z generation 3: joins",
                Speaker::Agent(7),
                "generation 3: joins",
            ),
            (
                "2026-01-01T00:00:00Z [rank x] odd",
                Speaker::Agent(7),
                "[rank x] odd",
            ),
            ("2026-01-01T00:00:00Z ", Speaker::Agent(7), ""),
            ("no time", Speaker::Agent(7), "no time"),
        ] {
            let line = Line::parse(raw, "p", 7);
            assert_eq!((line.speaker, line.text.as_str()), (speaker, text), "{raw}");
            assert_eq!(line.at.is_some(), raw.starts_with('2'));
        }
    }

    #[test]
    fn line_has_no_control_characters() {
        let line = Line::parse(
            "2026-01-01T00:00:00Z [rank 0] a\u{1b}[2J\tb\u{9b}1m",
            "p",
            0,
        );
        let shown = anstream::adapter::strip_str(&line.shown()).to_string();
        assert_eq!(shown, "[rank 0] a [2J\tb 1m");
    }

    #[test]
    fn rank_set_parses_numbers_and_ranges() {
        let ranks: Ranks = "0,3-5".parse().unwrap();
        let wanted: Vec<u32> = (0..8)
            .filter(|rank| ranks.contains(Speaker::Rank(*rank)))
            .collect();
        assert_eq!(wanted, [0, 3, 4, 5]);
        assert!(!ranks.contains(Speaker::Process(0, 0)));
        assert!(!ranks.contains(Speaker::Agent(0)));
        for wrong in ["", "a", "3-1", "1,,2", "-1", "0-4000000000"] {
            assert!(wrong.parse::<Ranks>().is_err(), "{wrong:?}");
        }
    }
}
