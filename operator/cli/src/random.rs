//! Random text that nobody can guess.

use std::fs::File;
use std::io::{self, Read};

/// So many random bytes of the kernel, in hexadecimal.
///
/// # Errors
/// The kernel gives none.
pub(crate) fn hex<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.map(|byte| format!("{byte:02x}")).concat())
}
