//! Explains exit codes in words.

use roundhouse_contract::ExitCode;

/// The meaning of an exit code, without a full stop. `reason` is Kubernetes' reason, which shows
/// whether the container ran out of memory.
pub(crate) fn words(code: i32, reason: &str) -> String {
    if reason == "OOMKilled" {
        return "killed: it used more memory than its limit".to_owned();
    }
    match ExitCode::from_code(code) {
        Some(ours) => of_ours(ours).to_owned(),
        None => of_others(code),
    }
}

const fn of_ours(code: ExitCode) -> &'static str {
    match code {
        ExitCode::Done => "completed",
        ExitCode::ConfigInvalid => "the configuration is wrong",
        ExitCode::DataInvalid => "the data is missing or corrupt",
        ExitCode::Internal => "a defect of Roundhouse",
        ExitCode::VolumeFailed => "the checkpoint volume did not answer",
        ExitCode::PeerLost => "lost a peer",
        ExitCode::Stalled => "no step for too long",
        ExitCode::HardwareFault => "a device or the node is faulty",
        ExitCode::Left => "left on request (SIGTERM)",
    }
}

fn of_others(code: i32) -> String {
    match code {
        126 => "the command cannot be executed".to_owned(),
        127 => "the command was not found".to_owned(),
        129..=192 => {
            let signal = code - 128;
            signal_name(signal).map_or_else(
                || format!("ended by signal {signal}"),
                |name| format!("ended by {name}"),
            )
        }
        _ => "the program ended with its own error code".to_owned(),
    }
}

const fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_has_its_own_meaning() {
        let ours = ExitCode::ALL.map(|code| words(code.code(), "Error"));
        let distinct: std::collections::BTreeSet<_> = ours.iter().collect();
        assert_eq!(distinct.len(), ours.len(), "{ours:?}");
        assert_eq!(words(137, "Error"), "ended by SIGKILL");
        assert_eq!(words(159, "Error"), "ended by signal 31");
        assert!(words(137, "OOMKilled").contains("memory"));
        assert!(words(1, "Error").contains("its own error code"));
    }
}
