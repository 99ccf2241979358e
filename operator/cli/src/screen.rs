//! Shows a job that runs: a bar on a terminal, lines in other output, documents for programs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::out::{self, Format};
use crate::render::View;

/// Time between two lines of numbers without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) enum Screen {
    Bar(ProgressBar),
    Lines {
        head: String,
        last: Option<Instant>,
    },
    Documents {
        format: Format,
        last: Option<Box<View>>,
    },
}

impl Screen {
    /// Prints a document for each change; messages go to standard error.
    pub(crate) const fn of_documents(format: Format) -> Self {
        Self::Documents { format, last: None }
    }

    pub(crate) fn new() -> Self {
        if !std::io::stdout().is_terminal() {
            return Self::Lines {
                head: String::new(),
                last: None,
            };
        }
        let bar = bar();
        bar.enable_steady_tick(Duration::from_millis(200));
        Self::Bar(bar)
    }

    /// Shows the last state of a job. Only documents need it, because [`Self::close`] prints the
    /// end for users.
    ///
    /// # Errors
    /// The reader has closed standard output.
    pub(crate) fn show_last(&mut self, view: &View) -> anyhow::Result<()> {
        match self {
            Self::Documents { .. } => self.show(view),
            Self::Bar(_) | Self::Lines { .. } => Ok(()),
        }
    }

    /// Shows the present state of a job.
    ///
    /// # Errors
    /// The reader has closed standard output.
    pub(crate) fn show(&mut self, view: &View) -> anyhow::Result<()> {
        match self {
            Self::Bar(bar) => {
                bar.set_prefix(view.head());
                bar.set_message(view.numbers());
                let progress = view.progress.as_ref();
                if let Some(progress) = progress.filter(|it| it.total_steps > 0) {
                    // Show the bar only once the number of steps is known.
                    if bar.length().is_none() {
                        bar.set_style(style("{prefix}\n{bar:40} {pos}/{len}  {msg}  {elapsed}"));
                    }
                    bar.set_length(progress.total_steps);
                    bar.set_position(progress.step);
                }
            }
            Self::Lines { head, last } => {
                let due = last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL);
                if *head != view.head() || (view.progress.is_some() && due) {
                    out::line(&view.line())?;
                    *head = view.head();
                    *last = Some(Instant::now());
                }
            }
            Self::Documents { format, last } => {
                if last.as_deref() != Some(view) {
                    out::write(&document(*format, view)?)?;
                    *last = Some(Box::new(view.clone()));
                }
            }
        }
        Ok(())
    }

    /// Prints a line above the bar. If the reader has closed standard output, the next
    /// [`Self::show`] returns the error.
    pub(crate) fn note(&self, text: &str) {
        match self {
            Self::Bar(bar) => bar.println(text),
            Self::Lines { .. } => {
                let _ = out::line(text);
            }
            Self::Documents { .. } => out::aside(text),
        }
    }

    pub(crate) fn close(&self, text: &str) {
        match self {
            Self::Bar(bar) => bar.finish_and_clear(),
            Self::Lines { .. } => {}
            Self::Documents { .. } => return out::aside(text),
        }
        let _ = out::line(text);
    }
}

/// A bar without a length, for the time before the number of steps is known.
fn bar() -> ProgressBar {
    ProgressBar::no_length().with_style(style("{prefix}  {msg}  {elapsed}"))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// One document of a stream: a line of JSON, or YAML after `---`.
fn document(format: Format, view: &View) -> anyhow::Result<String> {
    Ok(match format {
        Format::Json => serde_json::to_string(view)?,
        Format::Yaml => format!("---\n{}", serde_saphyr::to_string(view)?),
    })
}

#[cfg(test)]
mod tests {
    use indicatif::{InMemoryTerm, ProgressDrawTarget};
    use roundhouse_contract::Progress;

    use super::*;

    #[test]
    fn bar_appears_once_the_number_of_steps_is_known() {
        let terminal = InMemoryTerm::new(10, 120);
        let bar = bar();
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        let mut screen = Screen::Bar(bar);
        let mut view = View {
            state: "Starting".to_owned(),
            message: "0 of 2 workers ready".to_owned(),
            ..View::default()
        };
        screen.show(&view).unwrap();
        let shown = terminal.contents();
        assert!(shown.contains("0 of 2 workers ready"), "{shown}");
        assert!(!shown.contains('/'), "{shown}");
        view.progress = Some(Progress {
            step: 5,
            total_steps: 10,
            ..Progress::default()
        });
        screen.show(&view).unwrap();
        let shown = terminal.contents();
        assert!(shown.contains("5/10"), "{shown}");
    }

    #[test]
    fn documents_of_a_stream_are_separable() {
        let view = View {
            state: "Training".to_owned(),
            message: "a\n---\nb".to_owned(),
            ..View::default()
        };
        let json = document(Format::Json, &view).unwrap();
        assert_eq!(json.lines().count(), 1);
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["state"], "Training");
        let yaml = document(Format::Yaml, &view).unwrap();
        let text = format!("{yaml}\n{yaml}\n");
        let read: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read[1]["message"], "a\n---\nb");
    }
}
