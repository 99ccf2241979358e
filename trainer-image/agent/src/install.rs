//! Copies the agent to a place where an image without it can run it. The program is static, so it
//! runs in any image.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use roundhouse_contract::paths;

/// Copies this program into a directory, atomically, so that a process never
/// finds an incomplete copy.
///
/// # Errors
/// Returns an error if the program cannot be read or the directory cannot be written.
pub fn install(directory: &Path) -> io::Result<()> {
    let (program, partial) = (
        directory.join(paths::AGENT),
        directory.join(format!("{}.partial", paths::AGENT)),
    );
    std::fs::create_dir_all(directory)?;
    std::fs::copy(std::env::current_exe()?, &partial)?;
    // The container of the trainer may run as another user.
    std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&partial, &program)
}
