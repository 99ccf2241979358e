//! Where a job is shown: a bar on a terminal, lines elsewhere, documents for programs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::out::{self, Format};
use crate::render::View;

/// Between two lines of numbers where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Where the job is shown.
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
    /// A document for each change; words go to standard error.
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

    /// The last look at a job: documents have all of it, and people are told how it ended.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(crate) fn show_last(&mut self, view: &View) -> anyhow::Result<()> {
        match self {
            Self::Documents { .. } => self.show(view),
            Self::Bar(_) | Self::Lines { .. } => Ok(()),
        }
    }

    /// A look at a job.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(crate) fn show(&mut self, view: &View) -> anyhow::Result<()> {
        match self {
            Self::Bar(bar) => {
                bar.set_prefix(view.head());
                bar.set_message(view.numbers());
                let progress = view.progress.as_ref();
                if let Some(progress) = progress.filter(|it| it.total_steps > 0) {
                    // There is no bar before it is known how long it is.
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

    /// A line that stays, above the bar. If nobody reads it any more, the next look at the job says so.
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

/// A bar whose length is not known yet.
fn bar() -> ProgressBar {
    ProgressBar::no_length().with_style(style("{prefix}  {msg}  {elapsed}"))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// One of many documents: a line of JSON, or YAML behind its mark.
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
    fn there_is_no_bar_before_the_number_of_steps_is_known() {
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
    fn each_document_can_be_told_from_the_next_one() {
        let view = View {
            state: "Training".to_owned(),
            message: "a\n---\nb".to_owned(),
            ..View::default()
        };
        let json = document(Format::Json, &view).unwrap();
        assert_eq!(json.lines().count(), 1);
        let told: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(told["state"], "Training");
        let yaml = document(Format::Yaml, &view).unwrap();
        let text = format!("{yaml}\n{yaml}\n");
        let told: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert_eq!(told.len(), 2);
        assert_eq!(told[1]["message"], "a\n---\nb");
    }
}
