//! Real volumes that tests fill, make read-only or freeze. Mounting needs root and loop devices.
//! Without them the tests print a message and pass.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A mounted volume. A shell waits for the end of its input and then unmounts the volume, however
/// this process ends.
pub(crate) struct Volume {
    directory: TempDir,
    janitor: Child,
}

impl Volume {
    /// A volume in memory of this size in KiB.
    pub(crate) fn of_memory(kib: u32) -> Option<Self> {
        Self::mount(&format!("mount -t tmpfs -o size={kib}k tmpfs \"$0\""))
    }

    /// A file system on a disk image, which can be frozen: a process that writes to it then waits
    /// in the kernel, where no signal reaches it.
    pub(crate) fn of_disk() -> Option<Self> {
        Self::mount(
            "truncate -s 16M \"$0.image\" && mkfs.ext4 -q \"$0.image\" && mount -o loop,errors=remount-ro \"$0.image\" \"$0\"",
        )
    }

    fn mount(mount: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mountpoint = directory.path().join("volume");
        std::fs::create_dir(&mountpoint).unwrap();
        let made = quietly(Command::new("sh").args(["-c", mount]).arg(&mountpoint));
        if let Err(reason) = made {
            // Do not use a print macro: the test harness hides its output if the test passes.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: no volume could be mounted: {reason}"
            );
            return None;
        }
        let janitor = Command::new("sh")
            .args([
                "-c",
                "trap '' INT TERM; read -r _; fsfreeze -u \"$0\" 2>&-; umount -l \"$0\"",
            ])
            .arg(&mountpoint)
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        Some(Self { directory, janitor })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    /// Fills the volume with a file.
    pub(crate) fn fill(&self) {
        fill(&self.path().join("filler"));
    }

    /// Deletes the file that fills the volume.
    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.path().join("filler")).unwrap();
    }

    /// From now on no entry of the directory can be renamed or removed; new entries can be created.
    pub(crate) fn only_appends_to(directory: &Path) {
        run(Command::new("chattr").arg("+a").arg(directory));
    }

    /// Remounts the volume `ro` or `rw`. No file may be open for writing.
    pub(crate) fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        run(Command::new("mount")
            .args(["-o", &options])
            .arg(self.path()));
    }

    /// Simulates a disk error that the kernel finds: the volume becomes read-only.
    pub(crate) fn fail(&self) {
        let device = "$(basename \"$(findmnt -no SOURCE \"$0\")\")";
        let fail = format!("echo broken > /sys/fs/ext4/{device}/trigger_fs_error");
        run(Command::new("sh").args(["-c", &fail]).arg(self.path()));
    }

    /// Repairs and remounts the disk. No process may use it.
    pub(crate) fn repair(&self) {
        let repair =
            "umount \"$0\" && { fsck.ext4 -fy \"$0.image\"; mount -o loop \"$0.image\" \"$0\"; }";
        run(Command::new("sh").args(["-c", repair]).arg(self.path()));
    }

    /// Makes every write wait until [`Self::thaw`].
    pub(crate) fn freeze(&self) {
        run(Command::new("fsfreeze").arg("-f").arg(self.path()));
    }

    pub(crate) fn thaw(&self) {
        run(Command::new("fsfreeze").arg("-u").arg(self.path()));
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

/// Writes a file that fills its volume.
pub(crate) fn fill(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file: File = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    while file.write_all(&[0; 4_096]).is_ok() {}
}

fn quietly(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn run(command: &mut Command) {
    assert_eq!(quietly(command), Ok(()), "{command:?}");
}
