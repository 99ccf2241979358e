//! Random text for secrets.

use std::fs::File;
use std::io::{self, Read};

/// `BYTES` random bytes of the kernel, in hexadecimal.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub(crate) fn hex<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.map(|byte| format!("{byte:02x}")).concat())
}
