//! Log lines.

use std::io::Write;

use roundhouse_contract::Progress;

use super::{Reporter, StepReport};

impl Reporter {
    pub(super) fn step_line(&self, learning_rate: f64) -> String {
        let Progress {
            generation: _,
            world_size: _,
            step,
            total_steps,
            epoch,
            loss,
            skipped_steps: _,
            repeated_steps: _,
            last_repeat: _,
            samples_per_second,
            eval_accuracy: _,
            eval_loss: _,
            eval_perplexity: _,
            checkpoint_step: _,
            local_step: _,
            local_error: _,
            held_copy: _,
            checkpoint_at: _,
            best_checkpoint: _,
            checkpoint_error: _,
            straggler: _,
        } = &self.progress;
        let percent = 100 * step / (*total_steps).max(1);
        let loss = loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.4}"));
        format!(
            "step {step} of {total_steps} ({percent} %), epoch {epoch}: loss {loss}, \
             rate {learning_rate:.4}, {}",
            self.throughput(*samples_per_second)
        )
    }

    pub(super) fn say_as_rank_zero(&self, line: &str) {
        if self.status.rank.unwrap_or(0) == 0 {
            say(line);
        }
    }
}

/// The line for the first of consecutive skipped steps.
pub(super) fn skipped_line(report: &StepReport) -> String {
    let StepReport {
        step,
        loss,
        gradient_norm,
        skips,
        loss_scale,
        ..
    } = report;
    let scale = loss_scale.map(|it| format!(", next loss scale {}", it.scale));
    format!(
        "step {step}: loss {loss:.4}, gradient norm {gradient_norm:.4}: committed without an update; {} in all{}",
        skips.total,
        scale.unwrap_or_default()
    )
}

/// Writes a line to stdout. An error is ignored: a closed stdout is no reason to stop.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Writes an error line to stderr.
pub fn say_error(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {line}");
}
