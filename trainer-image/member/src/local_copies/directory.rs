//! The copies in the volume of one pod: a directory for each shard, a file for each copy.

use std::io;
use std::path::{Path, PathBuf};

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::local_copies::Contents;

use crate::checkpoint::directory::{parsed, sync_directory};

/// Extension of a copy while it is written.
const PARTIAL: &str = "partial";
/// Extension of the part that a process saves before it ends, while it is written. The thread may
/// write a copy of the same state.
const LAST: &str = "last";
/// Extension of a copy that could not be read.
const UNREADABLE: &str = "unreadable";
/// What the name of a shard's directory begins with.
const SHARD: &str = "shard-";

/// The volume of this pod.
#[derive(Clone, Debug)]
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) const fn new(root: PathBuf) -> Self {
        Self(root)
    }

    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    /// The complete copies of all shards.
    pub(super) fn contents(&self) -> io::Result<Contents> {
        let mut contents = Contents::new();
        for shard in self.shards()? {
            let copies = parsed(&self.of_shard(shard), CheckpointId::parse)?;
            contents.insert(shard, copies.into_iter().collect());
        }
        Ok(contents)
    }

    pub(super) fn path(&self, shard: u32, id: CheckpointId) -> PathBuf {
        self.of_shard(shard).join(id.name())
    }

    /// Writes a copy with `write`, which gets the path of an incomplete one. The copy has its name,
    /// and is durable, when this returns.
    ///
    /// # Errors
    /// Those of `write` and of the file system. Then nothing is left of the copy.
    pub(super) fn complete(
        &self,
        shard: u32,
        id: CheckpointId,
        write: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        self.complete_as(PARTIAL, shard, id, write)
    }

    /// As [`Self::complete`], also while another thread may write a copy of the same state.
    pub(super) fn complete_beside_copies(
        &self,
        shard: u32,
        id: CheckpointId,
        write: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        self.complete_as(LAST, shard, id, write)
    }

    fn complete_as(
        &self,
        extension: &str,
        shard: u32,
        id: CheckpointId,
        write: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = self.path(shard, id);
        let partial = path.with_extension(extension);
        let directory = self.of_shard(shard);
        let written = || {
            std::fs::create_dir_all(&directory)?;
            write(&partial)?;
            std::fs::rename(&partial, &path)?;
            sync_directory(&directory)
        };
        written().inspect_err(|_| {
            let _ = std::fs::remove_file(&partial);
        })
    }

    /// Deletes all copies of a shard except one.
    pub(super) fn keep(&self, shard: u32, kept: Option<CheckpointId>) -> io::Result<()> {
        self.remove_all(shard, |id| Some(id) != kept)
    }

    /// Deletes the copies of a shard that are older than `id`, except one.
    pub(super) fn keep_newer(
        &self,
        shard: u32,
        id: CheckpointId,
        kept: Option<CheckpointId>,
    ) -> io::Result<()> {
        self.remove_all(shard, |it| it < id && Some(it) != kept)
    }

    fn remove_all(
        &self,
        shard: u32,
        is_superseded: impl Fn(CheckpointId) -> bool,
    ) -> io::Result<()> {
        let copies = parsed(&self.of_shard(shard), CheckpointId::parse)?;
        let mut superseded = copies.into_iter().filter(|id| is_superseded(*id));
        superseded.try_for_each(|id| self.remove(shard, id))
    }

    /// Number of bytes of all files.
    pub(super) fn num_bytes(&self) -> io::Result<u64> {
        self.num_bytes_of(|_, _| true)
    }

    /// Number of bytes of all files without those of this state in the shards that `are_own`,
    /// complete or not.
    pub(super) fn num_bytes_beside(
        &self,
        id: CheckpointId,
        are_own: impl Fn(u32) -> bool,
    ) -> io::Result<u64> {
        let state = id.name();
        let is_of_state = |name: &str| name.split('.').next() == Some(&state);
        self.num_bytes_of(|shard, name| !(are_own(shard) && is_of_state(name)))
    }

    fn num_bytes_of(&self, counts: impl Fn(u32, &str) -> bool) -> io::Result<u64> {
        let mut sum = 0;
        for shard in self.shards()? {
            let directory = self.of_shard(shard);
            let counted = |name: &str| counts(shard, name).then(|| name.to_owned());
            for name in parsed(&directory, counted)? {
                // Another process may delete it.
                let file = std::fs::metadata(directory.join(name));
                sum += file.map_or(0, |file| file.len());
            }
        }
        Ok(sum)
    }

    /// Deletes a copy, if it exists.
    pub(super) fn remove(&self, shard: u32, id: CheckpointId) -> io::Result<()> {
        remove(&self.path(shard, id))
    }

    /// Renames a copy that cannot be read now.
    pub(super) fn set_aside(&self, shard: u32, id: CheckpointId) -> io::Result<()> {
        let path = self.path(shard, id);
        std::fs::rename(&path, path.with_extension(UNREADABLE))
    }

    /// Removes what an earlier process has not completed or could not read, of the shards that
    /// `are_own`.
    pub(super) fn remove_partial(&self, are_own: impl Fn(u32) -> bool) -> io::Result<()> {
        let shard = |name: &str| name.strip_prefix(SHARD)?.parse::<u32>().ok();
        for shard in parsed(&self.0, shard)?
            .into_iter()
            .filter(|it| are_own(*it))
        {
            let directory = self.of_shard(shard);
            let is_of_no_use = |name: &str| {
                [PARTIAL, LAST, UNREADABLE]
                    .iter()
                    .any(|it| name.ends_with(it))
            };
            let partial = |name: &str| is_of_no_use(name).then(|| directory.join(name));
            let partial = parsed(&directory, partial)?;
            partial.iter().try_for_each(|path| remove(path))?;
        }
        Ok(())
    }

    fn shards(&self) -> io::Result<Vec<u32>> {
        parsed(&self.0, |name| name.strip_prefix(SHARD)?.parse().ok())
    }

    fn of_shard(&self, shard: u32) -> PathBuf {
        self.0.join(format!("{SHARD}{shard}"))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(step: u64) -> CheckpointId {
        CheckpointId {
            generation: 1,
            step,
        }
    }

    fn shown(directory: &Directory) -> Vec<(u32, Vec<u64>)> {
        let contents = directory.contents().unwrap();
        let of_shard = |(shard, ids): (u32, std::collections::BTreeSet<CheckpointId>)| {
            (shard, ids.into_iter().map(|id| id.step).collect())
        };
        contents.into_iter().map(of_shard).collect()
    }

    #[test]
    fn copy_counts_once_it_is_complete() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().join("copies"));
        assert_eq!(shown(&directory), []);
        let write = |path: &Path| std::fs::write(path, "copy");
        for (shard, step) in [(0, 1), (0, 2), (5, 1)] {
            directory.complete(shard, id(step), write).unwrap();
        }
        let fails = |path: &Path| {
            std::fs::write(path, "half")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        directory.complete(5, id(2), fails).unwrap_err();
        assert_eq!(shown(&directory), [(0, vec![1, 2]), (5, vec![1])]);
        assert_eq!(std::fs::read_dir(directory.of_shard(5)).unwrap().count(), 1);
        directory.keep(0, Some(id(2))).unwrap();
        directory.keep(5, None).unwrap();
        assert_eq!(shown(&directory), [(0, vec![2]), (5, vec![])]);
    }

    #[test]
    fn incomplete_copies_of_other_processes_stay() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let dies = |path: &Path| {
            std::fs::write(path, "half")?;
            std::fs::rename(path, path.with_extension("kept"))?;
            Err(io::ErrorKind::Other.into())
        };
        for shard in 0..2 {
            for extension in [PARTIAL, LAST] {
                let written = directory.complete_as(extension, shard, id(1), dies);
                written.unwrap_err();
                let path = directory.path(shard, id(1));
                std::fs::rename(path.with_extension("kept"), path.with_extension(extension))
                    .unwrap();
            }
        }
        directory.remove_partial(|shard| shard == 1).unwrap();
        let left = |shard| {
            std::fs::read_dir(directory.of_shard(shard))
                .unwrap()
                .count()
        };
        assert_eq!((left(0), left(1)), (2, 0));
    }

    #[test]
    fn newer_copies_stay_and_do_not_count_twice() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let write = |path: &Path| std::fs::write(path, "1234");
        for shard in [0, 1, 2] {
            for step in [1, 2, 3] {
                directory.complete(shard, id(step), write).unwrap();
            }
        }
        // Another thread has written the same state.
        directory.complete_beside_copies(0, id(3), write).unwrap();
        directory.keep_newer(0, id(3), Some(id(1))).unwrap();
        let contents = directory.contents().unwrap();
        assert_eq!(contents[&0], [id(1), id(3)].into());
        let is_own = |shard| shard < 2;
        // Two copies less of 4 bytes.
        assert_eq!(directory.num_bytes().unwrap(), 32);
        assert_eq!(directory.num_bytes_beside(id(3), is_own).unwrap(), 24);
    }
}
