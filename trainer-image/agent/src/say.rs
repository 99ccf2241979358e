//! What the agent says in the log of its container. `eprintln!` panics when standard error cannot be written, as on a
//! volume that is full, and an agent that panics ends healthy processes: a line that cannot be written is lost.

use std::io::Write;

/// A line of the agent.
pub(crate) fn say(line: &str) {
    say_plainly(&format!("[agent] {line}"));
}

/// A line of a program that runs in the place of the agent.
pub(crate) fn say_plainly(line: &str) {
    // One write per line, so that lines of different processes do not mix.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// A line of a result on standard output.
///
/// # Errors
/// Nobody can read it.
pub(crate) fn answer(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}
