//! The page of the plugin's commands, from the program's `--help`.

use std::fmt::Write;
use std::io;
use std::process::Command;

use crate::table::MARK;

const HEAD: &str = "# kubectl roundhouse

The plugin is the program `kubectl-roundhouse`. With `kubectl` on the PATH, too, `kubectl roundhouse` runs it. This page is what the
program says with `--help`.

";

/// # Errors
/// Fails if the program cannot be run or does not know `--help`.
pub(crate) fn page(program: &str) -> io::Result<String> {
    let mut text = format!("{MARK}{HEAD}");
    section(&mut text, program, &[])?;
    Ok(text)
}

/// Writes the help of a command, and of each command below it.
fn section(text: &mut String, program: &str, command: &[&str]) -> io::Result<()> {
    let help = help(program, command)?;
    let title = [&["kubectl", "roundhouse"], command].concat().join(" ");
    let _ = write!(text, "## {title}\n\n```text\n{}\n```\n\n", help.trim_end());
    for name in commands(&help) {
        section(text, program, &[command, &[name]].concat())?;
    }
    Ok(())
}

fn help(program: &str, command: &[&str]) -> io::Result<String> {
    let output = Command::new(program)
        .args(command)
        .arg("--help")
        .env("NO_COLOR", "1")
        .env_remove("KUBECONFIG")
        .output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{program} {command:?}: {words}")));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

/// Names of the commands that a help text lists, without `help` itself.
fn commands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    // A description may continue on the next line, which is indented further.
    let names = lines.filter_map(|line| line.strip_prefix("  ").filter(|it| !it.starts_with(' ')));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_from_help() {
        let help = "Does.\n\nCommands:\n  watch    Show\n             more\n  run      Run\n  help     Print\n\nOptions:\n  -h\n";
        assert_eq!(commands(help), ["watch", "run"]);
    }
}
