//! The page of exit codes.

use roundhouse_api::failures;
use roundhouse_contract::{ExitCode, Reason};

use crate::failures::cost;
use crate::table::{MARK, code, table};

const HEAD: &str = "# Exit codes

The trainer and the agent end with one of these codes. A program built on `roundhouse-trainer` uses the same codes.
In [restart mode](../guides/own-script.md) the worker ends with the code of your script.

*By default* is what happens if no rule of `failurePolicy.rules` matches: see the
[failure handbook](../failures.md#what-a-failure-costs).

";

const FOOT: &str = "
An exit code above 128 that is not in the table means that a signal ended the process: 128 plus the number of the signal,
for example 137 for SIGKILL. Such a failure has the reason `Killed`, or `OOMKilled` if the kernel killed the container for
its memory. Any other code has the reason `Crashed`.

The exit codes of the plugin are in [its reference](plugin.md).
";

pub(crate) fn page() -> String {
    let rows = ExitCode::ALL.map(|exit| {
        let entry = failures::of_exit_code(exit);
        let reason = Reason::of(exit).as_str();
        [
            exit.code().to_string(),
            code(reason),
            entry.meaning.to_owned(),
            cost(entry.action).to_owned(),
        ]
    });
    let rows = table(["code", "reason", "meaning", "by default"], rows);
    format!("{MARK}{HEAD}{rows}{FOOT}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_has_a_row() {
        let page = page();
        for exit in ExitCode::ALL {
            let start = format!("\n| {} | `{}` |", exit.code(), Reason::of(exit).as_str());
            assert!(page.contains(&start), "{start}");
        }
    }
}
