//! Metric of the transports that NCCL uses.

use prometheus::{IntGaugeVec, Opts, Registry};

use crate::transports::Transports;

/// One series, of value 1, for each transport that the present generation uses.
#[derive(Debug)]
pub struct TransportMetrics {
    used: IntGaugeVec,
}

impl TransportMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let options = Opts::new(
            "roundhouse_train_nccl_transport",
            "1 for each transport that this rank's connections over NCCL use in this generation",
        );
        let used = super::register(registry, IntGaugeVec::new(options, &["transport"])?)?;
        Ok(Self { used })
    }

    /// Sets the transports of this generation's connections. Those of earlier generations become
    /// absent.
    pub(crate) fn set(&self, transports: &Transports) {
        self.used.reset();
        for transport in transports.connections.keys() {
            self.used.with_label_values(&[transport.as_str()]).set(1);
        }
    }
}
