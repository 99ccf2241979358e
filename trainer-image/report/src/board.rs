//! Writes `TensorBoard` event files in a thread: a slow or full volume costs points of a curve and
//! delays no step.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use super::{Evaluation, Reporter, StepReport, say_error};

pub mod event;
mod writer;

use event::{Event, What};

/// Minimum time between two points of a curve: ten days have a million of them.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of waiting events. Further events are dropped.
const MOST_WAITING: usize = 1_024;
/// How long the process waits at its end for the last events.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A drop is logged again after this time without a drop.
const QUIET: Duration = Duration::from_mins(1);

/// Message to the thread.
#[derive(Debug)]
enum Message {
    /// Begin the file of a generation.
    Begin { generation: u64, step: u64 },
    /// Write an event to the file.
    Event(Event),
    /// Answer when all earlier messages are processed.
    Flush(Sender<()>),
}

/// The connection to the thread.
#[derive(Debug)]
pub(super) struct Board {
    events: SyncSender<Message>,
    due: Instant,
    last_drop: Option<Instant>,
}

impl Reporter {
    /// Starts to write event files for `TensorBoard` to a directory, on rank 0.
    pub fn write_events(&mut self, directory: PathBuf) {
        let (events, received) = sync_channel(MOST_WAITING);
        let thread = std::thread::Builder::new().name("tensorboard".to_owned());
        match thread.spawn(move || writer::write_all(directory, &received)) {
            Ok(_) => {
                self.board = Some(Board {
                    events,
                    due: Instant::now(),
                    last_drop: None,
                });
            }
            Err(error) => say_error(&format!(
                "cannot start the TensorBoard thread; no event files are written: {error}"
            )),
        }
    }

    pub(super) fn begin_events(&mut self, generation: u64, step: u64) {
        if let Some(board) = self.own_board() {
            board.due = Instant::now();
            board.send(Message::Begin { generation, step });
        }
    }

    pub(super) fn event_of_step(&mut self, report: &StepReport) {
        let is_due = self
            .board
            .as_ref()
            .is_some_and(|board| Instant::now() >= board.due);
        if !is_due {
            return;
        }
        let samples_per_second = self.meter.samples_per_second();
        let tokens = self.work.tokens_per_sample;
        let known = [
            ("train/loss", Some(report.loss)),
            ("train/learning_rate", Some(report.learning_rate)),
            ("train/gradient_norm", Some(report.gradient_norm)),
            ("speed/samples_per_second", Some(samples_per_second)),
            (
                "speed/tokens_per_second",
                tokens.map(|tokens| samples_per_second * tokens as f64),
            ),
            (
                "speed/model_flops_utilization",
                self.work
                    .utilization(samples_per_second, self.progress.world_size),
            ),
        ];
        if let Some(board) = self.own_board() {
            board.due = Instant::now() + INTERVAL;
            board.send_scalars(report.step, &known);
        }
    }

    pub(super) fn event_of_evaluation(&mut self, evaluation: &Evaluation) {
        let Evaluation {
            accuracy,
            top5,
            perplexity,
            loss,
            num_samples: _,
        } = *evaluation;
        let known = [
            ("eval/loss", Some(loss)),
            ("eval/accuracy", accuracy),
            ("eval/top5_accuracy", top5),
            ("eval/perplexity", perplexity),
        ];
        let step = self.progress.step;
        if let Some(board) = self.own_board() {
            board.send_scalars(step, &known);
        }
    }

    /// Waits briefly until the last events are written.
    pub(super) fn finish_events(&self) {
        let Some(board) = &self.board else { return };
        let (written, all_written) = channel();
        // A full queue means that the volume is not keeping up, so do not wait.
        if board.events.try_send(Message::Flush(written)).is_ok() {
            match all_written.recv_timeout(LAST_WORDS) {
                Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// The board on rank 0, which alone writes.
    fn own_board(&mut self) -> Option<&mut Board> {
        let is_writer = self.status.rank == Some(0);
        self.board.as_mut().filter(|_| is_writer)
    }
}

impl Board {
    fn send_scalars(&mut self, step: u64, known: &[(&'static str, Option<f64>)]) {
        let scalars = known
            .iter()
            .filter_map(|(tag, value)| Some((*tag, (*value)?)));
        self.send(Message::Event(Event {
            wall_time: now(),
            step,
            what: What::Scalars(scalars.collect()),
        }));
    }

    fn send(&mut self, message: Message) {
        let is_full = matches!(self.events.try_send(message), Err(TrySendError::Full(_)));
        if is_full && self.is_first_drop(Instant::now()) {
            say_error("event files: the volume is too slow; dropping events");
        }
    }

    /// Records a drop. Returns whether there was none for a while before.
    fn is_first_drop(&mut self, now: Instant) -> bool {
        let last = self.last_drop.replace(now);
        last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET)
    }
}

/// The current time in seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests;
