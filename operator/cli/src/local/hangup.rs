//! SIGHUP: the terminal, or the connection to this machine, is gone.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signal, if this program is to end with its terminal: `nohup` has it ignored.
#[derive(Debug)]
pub(super) struct Hangup(Option<Signal>);

impl Hangup {
    pub(super) fn listen() -> std::io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        if is_ignored(&status) {
            return Ok(Self(None));
        }
        signal(SignalKind::hangup()).map(|signal| Self(Some(signal)))
    }

    pub(super) async fn recv(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

/// Whether the signals that `/proc/self/status` lists as ignored contain SIGHUP, which is number 1.
fn is_ignored(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_nohup_has_ignored_stays_ignored() {
        assert!(is_ignored("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!is_ignored("Name:\tx\nSigIgn:\t0000000000001000\n"));
        assert!(!is_ignored(""));
    }
}
