//! SIGHUP: the terminal or the connection to this machine was closed.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives SIGHUP, unless the parent has ignored it, as `nohup` does.
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

/// Whether `/proc/self/status` lists SIGHUP (signal 1, bit 0 of the mask) as ignored.
fn is_ignored(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sighup_stays_ignored_under_nohup() {
        assert!(is_ignored("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!is_ignored("Name:\tx\nSigIgn:\t0000000000001000\n"));
        assert!(!is_ignored(""));
    }
}
