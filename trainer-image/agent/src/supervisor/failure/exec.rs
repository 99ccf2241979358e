//! Explains why a program cannot be started and what to change, and decides whether the error is
//! permanent.

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Longest first line that the kernel reads, in bytes.
const FIRST_LINE: u64 = 256;

/// Whether the same command will fail in the same way again, according to its error.
pub(crate) fn is_permanent(error: &Error) -> bool {
    let Some(errno) = Errno::from_io_error(error) else {
        // The argument contains a NUL byte, so the program cannot be started.
        return error.kind() == ErrorKind::InvalidInput;
    };
    [
        Errno::NOENT,
        Errno::ACCESS,
        Errno::PERM,
        Errno::NOEXEC,
        Errno::TOOBIG,
        Errno::NAMETOOLONG,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::LOOP,
        Errno::INVAL,
        Errno::LIBBAD,
    ]
    .contains(&errno)
}

/// Whether a file is a text without an interpreter line. The kernel refuses it, but `exec` of the C
/// library runs it with `sh`.
pub(crate) fn is_text_without_interpreter(program: &str) -> bool {
    let file = find(program, std::env::var_os("PATH").as_deref());
    let Some(file) = file.filter(|file| file.is_file() && is_executable(file)) else {
        return false;
    };
    // The file may be a binary for which this machine has a loader.
    first_line(&file).is_some_and(|line| !line.starts_with(b"#!") && !line.contains(&0))
}

/// Formats the error of a program that could not be started.
pub(crate) fn words(program: &str, error: &Error) -> String {
    let file = find(program, std::env::var_os("PATH").as_deref());
    let why = why(program, file.as_deref(), error);
    format!("cannot start {program}: {why}")
}

fn why(program: &str, file: Option<&Path>, error: &Error) -> String {
    match (Errno::from_io_error(error), file) {
        (Some(Errno::NOENT), Some(file)) => missing_interpreter(file),
        (Some(Errno::NOENT), None) if program.contains('/') => {
            format!("{error}: there is no such file in the container; check the command")
        }
        (Some(Errno::NOENT), None) => {
            format!("{error}: no directory of the PATH has it; check the command")
        }
        (Some(Errno::NOEXEC), _) => format!(
            "{error}: it has no first line with #! and the path of an interpreter, and it is not a program for this \
             machine's architecture ({})",
            std::env::consts::ARCH
        ),
        (Some(Errno::ACCESS | Errno::PERM), Some(file)) if file.is_dir() => {
            format!("{error}: it is a directory; check the command")
        }
        (Some(Errno::ACCESS | Errno::PERM), Some(file)) if !is_executable(file) => format!(
            "{error}: the file is not executable: set its mode (chmod +x), or start it with its interpreter, as in \
             [python, {program}]"
        ),
        (Some(Errno::TOOBIG), _) => {
            format!(
                "{error}: its arguments and variables are larger than the kernel allows; put them into a file"
            )
        }
        (Some(Errno::NOTDIR), _) => {
            format!("{error}: a part of the path is a file; check the command")
        }
        _ => format!("{error}; check the command"),
    }
}

/// Explains a missing file although the program itself exists: its interpreter
/// or loader is missing.
fn missing_interpreter(file: &Path) -> String {
    let line = first_line(file).unwrap_or_default();
    let Some(interpreter) = interpreter(&line) else {
        return "the file exists, but its loader of shared libraries does not: it was built for another C \
                library (glibc, musl)"
            .to_owned();
    };
    let shown = interpreter.escape_default();
    if interpreter.ends_with('\r') {
        return format!(
            "its first line names the interpreter \"{shown}\", which does not exist: the line ends with a carriage return \
             (\\r); save the file with Unix line ends (dos2unix)"
        );
    }
    format!("its first line names the interpreter {shown}, which does not exist in the container")
}

fn first_line(file: &Path) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    File::open(file)
        .ok()?
        .take(FIRST_LINE)
        .read_to_end(&mut line)
        .ok()?;
    let end = line.iter().position(|byte| *byte == b'\n');
    line.truncate(end.unwrap_or(line.len()));
    Some(line)
}

/// Parses the interpreter as the kernel does: up to the first blank. A carriage return does not
/// count as a blank.
fn interpreter(line: &[u8]) -> Option<String> {
    let rest = String::from_utf8_lossy(line.strip_prefix(b"#!")?).into_owned();
    let rest = rest.trim_start_matches([' ', '\t']);
    let word = rest.split([' ', '\t']).next()?;
    (!word.is_empty()).then(|| word.to_owned())
}

fn find(program: &str, path: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    let exists = |file: &PathBuf| file.symlink_metadata().is_ok();
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(exists);
    }
    std::env::split_paths(path?)
        .map(|directory| directory.join(program))
        .find(exists)
}

fn is_executable(file: &Path) -> bool {
    let mode = file.metadata().map(|it| it.permissions().mode());
    mode.is_ok_and(|mode| mode & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns the error of starting a file with this text.
    fn error_of(text: &[u8], mode: u32) -> (bool, String) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        refused(file.to_str().unwrap())
    }

    fn refused(program: &str) -> (bool, String) {
        let error = Command::new(program).spawn().unwrap_err();
        (is_permanent(&error), words(program, &error))
    }

    #[test]
    fn unstartable_file_is_permanent_and_has_advice() {
        for (text, mode, expected) in [
            (&b"echo hi\n"[..], 0o755, "no first line with #!"),
            (b"#!/bin/bash\r\necho hi\r\n", 0o755, "Unix line ends"),
            (
                b"#!/opt/no/python -u\n",
                0o755,
                "interpreter /opt/no/python,",
            ),
            (b"#!/bin/sh\n", 0o644, "chmod +x"),
        ] {
            let (is_permanent, words) = error_of(text, mode);
            assert!(is_permanent && words.contains(expected), "{words}");
        }
    }

    #[test]
    fn text_without_an_interpreter_is_recognized() {
        let is_text = |text: &[u8], mode: u32| {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("program");
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            is_text_without_interpreter(file.to_str().unwrap())
        };
        assert!(is_text(b"echo hi\n", 0o755) && is_text(b"", 0o755));
        assert!(!is_text(b"#!/bin/sh\n", 0o755));
        assert!(!is_text(b"\x7fELF\x02\0", 0o755));
        // These files have their own errors.
        assert!(!is_text(b"echo hi\n", 0o644));
        assert!(
            !is_text_without_interpreter("/etc") && !is_text_without_interpreter("no-such-program")
        );
        assert!(!is_text_without_interpreter("env"));
    }

    #[test]
    fn other_permanent_exec_errors_are_recognized() {
        for (program, expected) in [
            ("/no/such/program", "no such file in the container"),
            ("no-such-program", "PATH"),
            ("/etc/passwd/program", "a part of the path is a file"),
            ("/etc", "it is a directory"),
            (&format!("/{}", "n".repeat(5_000)), "check the command"),
        ] {
            let (is_permanent, words) = refused(program);
            assert!(is_permanent && words.contains(expected), "{words}");
        }
        let long = "n".repeat(200_000);
        let error = Command::new("true").arg(&long).spawn().unwrap_err();
        assert!(is_permanent(&error) && words("true", &error).contains("put them into a file"));
        for errno in [
            Errno::AGAIN,
            Errno::NOMEM,
            Errno::MFILE,
            Errno::TXTBSY,
            Errno::IO,
        ] {
            assert!(!is_permanent(&errno.into()), "{errno}");
        }
    }
}
