//! The reports of a training process: its status and metrics as files of the run directory, and log
//! lines. No error here may end training: a file that cannot be written is reported once.

use std::path::Path;
use std::time::{Duration, Instant};

use roundhouse_contract::environment::nccl::NCCL_DEBUG_FILE;
use roundhouse_contract::{Phase, Progress, RankStatus};
use roundhouse_elastic::best::Scores;
use roundhouse_elastic::{LossScale, Place, Skips};

pub mod board;
mod checkpoints;
mod comparison;
mod ending;
pub mod files;
mod lines;
pub mod meter;
pub mod metrics;
mod nccl_log;
mod repeats;
pub mod sections;
mod status_file;
pub mod transports;
pub mod work;

use board::Board;
pub use checkpoints::CheckpointReport;
use checkpoints::Problems;
use comparison::Comparison;
pub use ending::Ending;
use files::RunFiles;
use lines::skipped_line;
pub use lines::{say, say_error};
use meter::Meter;
use metrics::Metrics;
use nccl_log::NcclLog;
pub use sections::{Section, Sections};
pub use work::{DeviceMemory, MemoryProbe, Work};

const STATUS_INTERVAL: Duration = Duration::from_millis(100);
const METRICS_INTERVAL: Duration = Duration::from_millis(500);
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// The numbers of a committed step.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Number of committed steps, including this one.
    pub step: u64,
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Number of samples of this step over all ranks.
    pub num_samples: u64,
    /// Mean loss over these samples.
    pub loss: f64,
    /// Norm of the mean gradient.
    pub gradient_norm: f64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Steps that were committed without an update, including this one.
    pub skips: Skips,
    /// Factor for the loss of the next step; `None` without loss scaling.
    pub loss_scale: Option<LossScale>,
    /// Wall time of the step.
    pub duration: Duration,
    /// Wall time by section.
    pub sections: Sections,
}

/// Result of an evaluation over the whole test split, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Fraction of samples with the highest score at their label; `None` for samples without
    /// labels.
    pub accuracy: Option<f64>,
    /// Fraction of samples with one of the five highest scores at their label.
    pub top5: Option<f64>,
    /// `exp` of the mean negative log-likelihood of a token; `None` for samples without tokens.
    pub perplexity: Option<f64>,
    pub loss: f64,
    /// Number of evaluated samples.
    pub num_samples: u64,
}

impl Evaluation {
    /// The metrics by which checkpoints are compared.
    #[must_use]
    pub fn scores(&self) -> Scores {
        let Self {
            accuracy,
            top5,
            perplexity,
            loss,
            num_samples: _,
        } = *self;
        let scores = Scores {
            loss: Some(loss),
            top1: accuracy,
            top5,
            perplexity,
        };
        scores.finite()
    }

    /// Writes the result to the progress. JSON cannot hold numbers that are not finite.
    fn show_in(&self, progress: &mut Progress) {
        let finite = |number: Option<f64>| number.filter(|number| number.is_finite());
        progress.eval_accuracy = finite(self.accuracy);
        progress.eval_loss = finite(Some(self.loss));
        progress.eval_perplexity = finite(self.perplexity);
    }
}

/// The process that a [`Reporter`] reports about.
#[derive(Clone, Copy, Debug)]
pub struct Process<'path> {
    /// Directory of its status, metrics and failure files; `None`: it writes none.
    pub run_dir: Option<&'path Path>,
    /// Its number among the processes of its worker, from 0.
    pub local_rank: u32,
    /// Number of processes of its worker.
    pub local_world_size: u32,
    /// Counts its threads in calls that nothing waits for any more.
    pub num_abandoned_threads: fn() -> u64,
}

/// Reports about one process.
#[derive(Debug)]
pub struct Reporter {
    files: Option<RunFiles>,
    num_abandoned_threads: fn() -> u64,
    /// The log file of NCCL, if the agent has set one.
    nccl_log: Option<NcclLog>,
    /// Whether a step of this generation is committed. Then NCCL has connected all transports that
    /// it uses.
    has_stepped: bool,
    metrics: Metrics,
    meter: Meter,
    work: Work,
    probe: Option<Box<dyn MemoryProbe>>,
    board: Option<Board>,
    status: RankStatus,
    progress: Progress,
    status_due: Instant,
    metrics_due: Instant,
    line_due: Instant,
    problems: Problems,
    comparison: Comparison,
    /// Number of bytes of the state that have moved between ranks.
    num_state_bytes: u64,
    volume_moves: u64,
    num_waits: u64,
    /// Committed steps in the last local copy that this process has written or read.
    copied_step: Option<u64>,
    /// Whether it could not write its last local copy.
    has_failed_copy: bool,
}

impl Reporter {
    ///
    /// # Errors
    /// An error if two metrics have one name, which is a defect.
    pub fn new(process: Process<'_>) -> prometheus::Result<Self> {
        let Process {
            run_dir,
            local_rank,
            local_world_size,
            num_abandoned_threads,
        } = process;
        let metrics = Metrics::new()?;
        let now = Instant::now();
        let mut reporter = Self {
            files: run_dir.map(|directory| RunFiles::new(directory, local_rank)),
            num_abandoned_threads,
            nccl_log: run_dir.and_then(|directory| {
                let file = std::env::var_os(NCCL_DEBUG_FILE);
                NcclLog::of(directory, local_rank, file.as_deref())
            }),
            has_stepped: false,
            metrics,
            meter: Meter::default(),
            work: Work::default(),
            probe: None,
            board: None,
            status: RankStatus {
                phase: Phase::Preparing,
                rank: None,
                generation: 0,
                step: 0,
                forming: 0,
                volume_moves: 0,
                patience_seconds: 0,
                progress: None,
            },
            progress: Progress::default(),
            status_due: now,
            metrics_due: now,
            line_due: now + LINE_INTERVAL,
            problems: Problems::default(),
            comparison: Comparison::new(local_world_size),
            num_state_bytes: 0,
            volume_moves: 0,
            num_waits: 0,
            copied_step: None,
            has_failed_copy: false,
        };
        reporter.enter(Phase::Preparing);
        Ok(reporter)
    }

    /// Changes the phase and writes it at once.
    pub fn enter(&mut self, phase: Phase) {
        self.status.phase = phase;
        self.write_status();
        self.write_metrics();
    }

    /// Reports that a generation is forming. Its number is written before anything is sent to the
    /// peers.
    pub fn form(&mut self, generation: u64) {
        self.status.forming = generation;
        self.has_stepped = false;
        if let Some(log) = &mut self.nccl_log {
            log.begin_generation();
        }
        self.enter(Phase::Forming);
    }

    /// Reports a normal wait for peers, so that the agent's watchdog does not consider the process
    /// hung.
    pub fn waits(&mut self) {
        self.num_waits += 1;
        self.report_moves();
    }

    /// Allows the next phase to take up to `span`, whatever the watchdog has measured; zero: the
    /// usual time.
    pub const fn is_patient(&mut self, span: Duration) {
        self.status.patience_seconds = span.as_secs();
    }

    /// Reports that the process has the state after `step`, in a generation that may never form.
    pub fn set_step(&mut self, step: u64) {
        self.status.step = step;
        self.progress.step = step;
    }

    /// Reports that this process has joined a generation with the state after `step`.
    pub fn join(&mut self, place: &Place, step: u64) {
        let Place {
            generation,
            rank,
            world_size,
            procs_per_worker: _,
            master,
            nonce: _,
        } = place;
        self.status.rank = Some(*rank);
        self.status.generation = *generation;
        self.status.step = step;
        self.progress.step = step;
        self.progress.generation = *generation;
        self.progress.world_size = *world_size;
        self.meter = Meter::default();
        self.forget_comparison();
        self.metrics.set_place(*generation, *world_size);
        self.begin_events(*generation, step);
        let store = match world_size {
            1 => String::new(),
            _ => format!(", store at {}:{}", master.address, master.port),
        };
        say(&format!(
            "generation {generation}: rank {rank} of {world_size}{store}"
        ));
    }

    /// Logs the number of samples of a step with the present workers.
    pub fn batch(&self, num_samples: u64) {
        self.say_as_rank_zero(&format!("batches of {num_samples} samples"));
    }

    /// Counts the failure of this process' generation.
    pub fn generation_lost(&self) {
        self.metrics.generation_lost();
    }

    /// Sets the length of the training, if the batch size does not change.
    pub const fn set_total_steps(&mut self, total_steps: u64) {
        self.progress.total_steps = total_steps;
    }

    /// Reports a committed step. Files and lines are written at their own intervals.
    pub fn commit(&mut self, report: &StepReport) {
        self.meter.add(report, Instant::now());
        self.metrics.observe(report, &self.work, &self.meter);
        self.event_of_step(report);
        if !std::mem::replace(&mut self.has_stepped, true) {
            self.report_transports();
        }
        self.status.step = report.step;
        self.progress.step = report.step;
        self.progress.epoch = report.epoch;
        self.progress.skipped_steps = report.skips.total;
        self.progress.samples_per_second = self.meter.samples_per_second();
        if report.skips.in_a_row == 1 {
            self.say_as_rank_zero(&skipped_line(report));
        }
        let now = Instant::now();
        if now >= self.status_due {
            self.write_status();
        } else {
            self.write_status_later();
        }
        if now >= self.metrics_due {
            self.write_metrics();
        }
        if now >= self.line_due {
            self.line_due = now + LINE_INTERVAL;
            self.read_loss();
            self.say_as_rank_zero(&self.step_line(report.learning_rate));
        }
    }

    /// Reports how NCCL has connected this rank in the present generation.
    fn report_transports(&self) {
        let Some(log) = &self.nccl_log else { return };
        let transports = log.transports();
        self.metrics.transports.set(&transports);
        if let Some(line) = transports.to_line() {
            say(&format!("NCCL: {line}"));
        }
    }

    /// Reports an evaluation of the test split.
    pub fn evaluated(&mut self, evaluation: &Evaluation) {
        let Evaluation {
            accuracy,
            top5: _,
            perplexity,
            loss,
            num_samples,
        } = *evaluation;
        evaluation.show_in(&mut self.progress);
        self.metrics.set_evaluation(evaluation);
        self.event_of_evaluation(evaluation);
        let accuracy = accuracy.map(|share| format!("test accuracy {:.2} %, ", share * 100.0));
        let perplexity = perplexity.map(|perplexity| format!("test perplexity {perplexity:.2}, "));
        let words: String = [accuracy, perplexity].into_iter().flatten().collect();
        self.say_as_rank_zero(&format!(
            "step {} of {}: {words}test loss {loss:.4} ({num_samples} samples)",
            self.progress.step, self.progress.total_steps,
        ));
    }

    /// Computes the loss of the window, when it is to be shown. Before the first step of a
    /// generation it is that of the last one.
    fn read_loss(&mut self) {
        if !self.meter.is_empty() {
            self.progress.loss = Some(self.meter.loss()).filter(|loss| loss.is_finite());
        }
    }

    fn write_status(&mut self) {
        self.status_due = Instant::now() + STATUS_INTERVAL;
        self.read_loss();
        self.show_progress();
        if let Some(files) = &mut self.files {
            files.write_status(&self.status);
        }
    }

    /// Writes the status later, in case that no step follows for long. The loss is that of the last
    /// write, because the window has thousands of short steps.
    fn write_status_later(&mut self) {
        self.show_progress();
        if let Some(files) = &mut self.files {
            files.write_status_at(self.status_due, self.status.clone());
        }
    }

    fn show_progress(&mut self) {
        self.status.progress = (self.progress.step > 0).then(|| self.progress.clone());
    }

    fn write_metrics(&mut self) {
        self.metrics_due = Instant::now() + METRICS_INTERVAL;
        if let Some(files) = &mut self.files {
            let device = self.probe.as_ref().and_then(|probe| probe.device_memory());
            self.metrics.memory.read(device);
            self.metrics
                .set_abandoned_threads((self.num_abandoned_threads)());
            files.write_metrics(&self.metrics);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_perplexity_and_only_finite_numbers() {
        let of_words = Evaluation {
            accuracy: None,
            top5: None,
            perplexity: Some(7.5),
            loss: f64::INFINITY,
            num_samples: 10,
        };
        let mut progress = Progress::default();
        of_words.show_in(&mut progress);
        let shown = (
            progress.eval_accuracy,
            progress.eval_loss,
            progress.eval_perplexity,
        );
        assert_eq!(shown, (None, None, Some(7.5)));
        let of_images = Evaluation {
            accuracy: Some(0.5),
            perplexity: None,
            ..of_words
        };
        of_images.show_in(&mut progress);
        assert_eq!(
            (progress.eval_accuracy, progress.eval_perplexity),
            (Some(0.5), None)
        );
    }
}
