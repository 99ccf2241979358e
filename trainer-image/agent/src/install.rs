//! Puts the agent where an image that does not bring it can run it: the program is static, so any
//! image will do.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use roundhouse_contract::paths;

/// Copies this program into a directory, so that a process that finds it there finds all of it.
///
/// # Errors
/// The program cannot be read, or the directory not be written.
pub fn install(directory: &Path) -> io::Result<()> {
    let (program, partial) = (
        directory.join(paths::AGENT),
        directory.join(format!("{}.partial", paths::AGENT)),
    );
    std::fs::create_dir_all(directory)?;
    std::fs::copy(std::env::current_exe()?, &partial)?;
    // The trainer's container may run as another user.
    std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&partial, &program)
}
