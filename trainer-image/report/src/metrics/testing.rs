//! For tests: metrics with a series each, including those that are absent until their value is
//! known.

use std::time::{Duration, Instant};

use prometheus::Result;
use roundhouse_contract::{BestCheckpoint, BestMetric};
use roundhouse_elastic::{LossScale, Skips};

use super::Metrics;
use crate::meter::Meter;
use crate::sections::Sections;
use crate::transports::Transports;
use crate::{DeviceMemory, Evaluation, StepReport, Work};

impl Metrics {
    /// Creates metrics of which each has a series.
    ///
    /// # Errors
    /// An error if two metrics have one name, which is a defect.
    pub fn with_every_series() -> Result<Self> {
        let mut metrics = Self::new()?;
        metrics.set_place(1, 2);
        metrics.see_steps();
        metrics.set_evaluation(&Evaluation {
            accuracy: Some(0.5),
            top5: Some(0.75),
            perplexity: Some(9.0),
            loss: 1.0,
            num_samples: 4,
        });
        metrics.memory.read(Some(DeviceMemory::default()));
        metrics.data.set(1, &[("books".to_owned(), 2)]);
        let route = "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM";
        metrics.transports.set(&Transports::parse(route));
        let at = "2026-01-01T00:00:00Z";
        metrics
            .checkpoints
            .saved(2, 100, Duration::from_secs(1), at);
        metrics.checkpoints.ledger_is_durable(2);
        metrics.checkpoints.copy_begun(Duration::from_secs(1));
        metrics.checkpoints.has_copy(2);
        metrics.checkpoints.has_second_copy(1);
        metrics.checkpoints.copied(Duration::from_secs(1));
        metrics.checkpoints.best(&BestCheckpoint {
            step: 2,
            metric: BestMetric::Loss,
            value: 1.0,
        });
        Ok(metrics)
    }

    /// Records two steps of samples with tokens, with loss scaling, on a device with a known peak.
    fn see_steps(&self) {
        let work = Work {
            tokens_per_sample: Some(10),
            flops_per_sample: Some(100.0),
            peak_flops: Some(16_000.0),
        };
        let (mut meter, start) = (Meter::default(), Instant::now());
        for step in 1..=2 {
            let report = StepReport {
                step,
                epoch: 0,
                num_samples: 8,
                loss: 0.5,
                gradient_norm: 2.0,
                learning_rate: 0.1,
                skips: Skips::NONE,
                loss_scale: Some(LossScale {
                    scale: 512.0,
                    clean_steps: 1,
                }),
                duration: Duration::from_millis(3),
                sections: Sections::default(),
            };
            meter.add(&report, start + Duration::from_millis(3 * step));
            self.observe(&report, &work, &meter);
        }
    }
}
