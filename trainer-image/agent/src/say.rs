//! Writes the agent's log. `eprintln!` panics if standard error cannot be written, for example on a
//! full volume, and an agent that panics ends healthy processes. So a line that cannot be written
//! is dropped.

use std::io::Write;

/// Writes a log line of the agent.
pub(crate) fn say(line: &str) {
    say_plainly(&format!("[agent] {line}"));
}

/// Writes a log line of a program that replaces the agent.
pub(crate) fn say_plainly(line: &str) {
    // One write per line keeps the lines of different processes apart.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Writes a line of a result to standard output.
///
/// # Errors
/// Returns an error if standard output is closed.
pub(crate) fn answer(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}
