//! Real volumes to be full, read-only or frozen. They need root; without it, and where the kernel has no loop
//! devices, their tests say so and pass.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A mounted volume. A shell that waits for its input to end unmounts it, so that it goes however this
/// process ends.
pub(crate) struct Volume {
    directory: TempDir,
    janitor: Child,
}

impl Volume {
    /// Memory, so many KiB of it.
    pub(crate) fn of_memory(kib: u32) -> Option<Self> {
        Self::mount(&format!("mount -t tmpfs -o size={kib}k tmpfs \"$0\""))
    }

    /// A file system on a disk image, which can be frozen: a process that writes to it waits in the kernel, where no
    /// signal reaches it.
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
            // Not by a macro whose output the test's success would hide.
            let _ = writeln!(
                std::io::stderr(),
                "not tested, no volume could be mounted: {reason}"
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

    /// Takes all the room there is.
    pub(crate) fn fill(&self) {
        fill(&self.path().join("filler"));
    }

    /// Gives it back.
    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.path().join("filler")).unwrap();
    }

    /// Nothing in a directory can be renamed or removed from now on, and new names can be made.
    pub(crate) fn only_appends_to(directory: &Path) {
        run(Command::new("chattr").arg("+a").arg(directory));
    }

    /// `ro` or `rw`. Nobody may have a file open for writing.
    pub(crate) fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        run(Command::new("mount")
            .args(["-o", &options])
            .arg(self.path()));
    }

    /// What a kernel does that finds an error on the disk: nobody can write any more.
    pub(crate) fn fail(&self) {
        let device = "$(basename \"$(findmnt -no SOURCE \"$0\")\")";
        let fail = format!("echo broken > /sys/fs/ext4/{device}/trigger_fs_error");
        run(Command::new("sh").args(["-c", &fail]).arg(self.path()));
    }

    /// Mounts a disk anew that nobody uses any more.
    pub(crate) fn mend(&self) {
        let mend =
            "umount \"$0\" && { fsck.ext4 -fy \"$0.image\"; mount -o loop \"$0.image\" \"$0\"; }";
        run(Command::new("sh").args(["-c", mend]).arg(self.path()));
    }

    /// Whoever writes waits until [`Self::thaw`].
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

/// Writes a file that takes all the room there is.
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
