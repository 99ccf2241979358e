//! Where a job is shown: a bar on a terminal, lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::render::View;

/// Between two lines of numbers where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Where the job is shown.
pub(crate) enum Screen {
    Bar(ProgressBar),
    Lines { head: String, last: Option<Instant> },
}

impl Screen {
    pub(crate) fn new() -> Self {
        if !std::io::stdout().is_terminal() {
            return Self::Lines {
                head: String::new(),
                last: None,
            };
        }
        let bar = ProgressBar::no_length();
        let style =
            ProgressStyle::with_template("{prefix}\n{bar:40} {pos}/{len}  {msg}  {elapsed}");
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self::Bar(bar)
    }

    pub(crate) fn show(&mut self, view: &View) {
        match self {
            Self::Bar(bar) => {
                bar.set_prefix(view.head());
                bar.set_message(view.numbers());
                if let Some(progress) = &view.progress {
                    bar.set_length(progress.total_steps);
                    bar.set_position(progress.step);
                }
            }
            Self::Lines { head, last } => {
                let due = last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL);
                if *head != view.head() || (view.progress.is_some() && due) {
                    println!("{}", view.line());
                    *head = view.head();
                    *last = Some(Instant::now());
                }
            }
        }
    }

    /// A line that stays, above the bar.
    pub(crate) fn note(&self, text: &str) {
        match self {
            Self::Bar(bar) => bar.println(text),
            Self::Lines { .. } => println!("{text}"),
        }
    }

    pub(crate) fn close(&self, text: &str) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
        println!("{text}");
    }
}
