//! What the posts of one process say together.

use roundhouse_contract::ScriptProgress;

use super::report::Report;

/// A training loop, from its posts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Training {
    total_steps: Option<u64>,
    last: Option<Last>,
    is_complete: bool,
}

/// The last post with a step.
#[derive(Clone, Copy, Debug)]
struct Last {
    step: u64,
    epoch: Option<u64>,
    loss: Option<f64>,
    samples_per_second: Option<f64>,
}

impl Training {
    /// Takes a post into account. The posts at the beginning and at the end of a training have no
    /// step. A loop that resumes does not begin at step 0, and one that ends may have been stopped
    /// early, such as by SIGTERM: only posted steps count.
    pub(super) fn apply(&mut self, report: Report) {
        let Report {
            step,
            total_steps,
            epoch,
            loss,
            samples_per_second,
            is_complete,
        } = report;
        self.total_steps = total_steps.or(self.total_steps);
        self.is_complete = is_complete || (self.is_complete && step.is_none());
        let step = step.or(self.last.filter(|_| is_complete).map(|last| last.step));
        self.last = step.map_or(self.last, |step| {
            Some(Last {
                step,
                epoch,
                loss,
                samples_per_second,
            })
        });
    }

    /// The progress, once a post had a step.
    pub(super) fn progress(&self) -> Option<ScriptProgress> {
        let Last {
            step,
            epoch,
            loss,
            samples_per_second,
        } = self.last?;
        Some(ScriptProgress {
            step,
            total_steps: self.total_steps.unwrap_or(0),
            epoch: epoch.unwrap_or(0),
            loss,
            samples_per_second: samples_per_second.unwrap_or(0.0),
        })
    }

    /// Whether the loop has ended and no other one has done a step.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Report = Report {
        step: None,
        total_steps: Some(40),
        epoch: None,
        loss: None,
        samples_per_second: None,
        is_complete: false,
    };
    const END: Report = Report {
        total_steps: None,
        loss: Some(0.25),
        is_complete: true,
        ..BEGIN
    };

    fn at(step: u64) -> Report {
        let (step, loss) = (Some(step), Some(0.5));
        Report {
            step,
            loss,
            ..BEGIN
        }
    }

    fn after(reports: &[Report]) -> (Option<(u64, u64, Option<f64>)>, bool) {
        let mut training = Training::default();
        for report in reports {
            training.apply(*report);
        }
        let shown = training.progress();
        let shown = shown.map(|shown| (shown.step, shown.total_steps, shown.loss));
        (shown, training.is_complete())
    }

    #[test]
    fn resumed_training_is_not_shown_at_step_0() {
        assert_eq!(after(&[BEGIN]), (None, false));
        assert_eq!(after(&[BEGIN, at(31)]), (Some((31, 40, Some(0.5))), false));
    }

    #[test]
    fn end_of_training_does_not_invent_a_step() {
        let last = (Some((37, 40, Some(0.25))), true);
        assert_eq!(after(&[BEGIN, at(37), END]), last);
        assert_eq!(
            after(&[BEGIN, END]),
            (None, true),
            "a training shorter than 5 s"
        );
        let unknown = Report {
            total_steps: None,
            ..at(3)
        };
        assert_eq!(after(&[unknown, END]), (Some((3, 0, Some(0.25))), true));
    }

    #[test]
    fn second_training_starts_with_its_first_step() {
        let second = Report {
            total_steps: Some(60),
            ..BEGIN
        };
        let (shown, is_complete) = after(&[BEGIN, at(37), END, second]);
        assert_eq!((shown.map(|it| it.0), is_complete), (Some(37), true));
        let step = Report {
            step: Some(2),
            ..second
        };
        assert_eq!(
            after(&[BEGIN, at(37), END, second, step]),
            (Some((2, 60, None)), false)
        );
    }
}
