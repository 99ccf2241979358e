//! Checks that the loaded NCCL is the version that this program was compiled for. The options of a
//! group contain a struct of NCCL, which another version may read wrongly.

use crate::failure::Failure;

/// Compares the two versions, each in the form of `NCCL_VERSION_CODE`.
///
/// # Errors
/// [`Failure::NcclVersion`] if the versions differ.
pub(super) fn check(loaded: u32, compiled: u32) -> Result<(), Failure> {
    if loaded == compiled {
        return Ok(());
    }
    Err(Failure::NcclVersion {
        loaded: words(loaded),
        compiled: words(compiled),
    })
}

/// Formats a version: 22809 is 2.28.9. Before 2.9 the minor version had one digit: 2804 is 2.8.4.
fn words(code: u32) -> String {
    let scale = if code < 10_000 { 1_000 } else { 10_000 };
    let (major, minor, patch) = (code / scale, code % scale / 100, code % 100);
    format!("{major}.{minor}.{patch}")
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::ExitCode;

    use super::*;

    #[test]
    fn only_the_compiled_version_is_accepted() {
        assert!(check(22809, 22809).is_ok());
        for (loaded, compiled, names) in [
            (22809, 22703, ["2.28.9", "2.27.3"]),
            (22703, 22809, ["2.27.3", "2.28.9"]),
            (22807, 22809, ["2.28.7", "2.28.9"]),
            (30001, 22809, ["3.0.1", "2.28.9"]),
            (2804, 22809, ["2.8.4", "2.28.9"]),
            (0, 22809, ["0.0.0", "2.28.9"]),
        ] {
            let failure = check(loaded, compiled).unwrap_err();
            assert_eq!(failure.exit_code(), ExitCode::ConfigInvalid);
            let text = failure.to_string();
            assert!(names.iter().all(|name| text.contains(name)), "{text}");
            assert!(text.contains("LD_LIBRARY_PATH"), "{text}");
        }
    }
}
