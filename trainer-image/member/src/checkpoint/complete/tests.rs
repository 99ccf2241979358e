use roundhouse_elastic::Digest;
use roundhouse_elastic::best::Scores;
use roundhouse_elastic::ledger::{Head, LedgerIdentity};
use roundhouse_elastic::{Growth, Skips};
use safetensors::Dtype;

use super::*;
use crate::checkpoint::Damage;
use crate::checkpoint::manifest::{Identity, SCHEMA_VERSION};
use crate::state::Record;

/// A checkpoint of one rank that has written its part of eight bytes.
fn written(root: &Path) -> (Directory, Manifest) {
    let (directory, manifest) = (Directory::new(root.to_owned()), manifest_of(ID));
    write_part(&directory.partial(ID, 1), &manifest);
    (directory, manifest)
}

/// The manifest of a state with one tensor, written in one part by one rank.
pub(crate) fn manifest_of(id: CheckpointId) -> Manifest {
    let identity = LedgerIdentity {
        num_samples: 100,
        global_batch: 10,
        seed: 7,
        total_steps: 50,
        reference_replicas: None,
        growth: Growth::default(),
        blocks: None,
    };
    let tensors = Table::from(vec![Record {
        name: "a".to_owned(),
        dtype: Dtype::F32,
        shape: vec![2],
        bytes: 8,
    }]);
    let ledger = Head {
        generation: id.generation,
        step: id.step,
        ..Head::start(&identity)
    };
    let training = Identity {
        model: "mlp".to_owned(),
        optimizer: "sgd".to_owned(),
        ledger: identity,
        settings: std::collections::BTreeMap::new(),
    };
    Manifest {
        schema_version: SCHEMA_VERSION,
        saved_at: String::new(),
        generation: id.generation,
        step: id.step,
        epoch: 0,
        cursor: 20,
        pace: None,
        skips: Skips::NONE,
        loss_scale: None,
        scores: None,
        world_size: 1,
        config_hash: training.hash(&tensors),
        training,
        ledger,
        tail: None,
        tensors,
        shards: Vec::new(),
    }
}

const ID: CheckpointId = CheckpointId {
    generation: 1,
    step: 2,
};

#[test]
fn a_checkpoint_with_all_its_bytes_gets_its_name() {
    let root = tempfile::tempdir().unwrap();
    let (directory, manifest) = written(root.path());
    complete(&directory, manifest, 1).unwrap();
    assert_eq!(directory.list().unwrap(), [ID]);
}

/// Writes the only part of a checkpoint.
pub(crate) fn write_part(partial: &Path, manifest: &Manifest) {
    let part = shard::Part {
        id: manifest.id(),
        rank: 0,
        world_size: 1,
        table: &manifest.tensors,
        pieces: &shard::records(&manifest.tensors, 0, 1),
        bytes: &[1; 8],
        io_watch: &super::super::IoWatch::default(),
    };
    shard::write(partial, &part).unwrap();
}

#[test]
fn second_save_keeps_checkpoint_and_adds_scores() {
    let root = tempfile::tempdir().unwrap();
    let (directory, manifest) = written(root.path());
    let first = complete(&directory, manifest.clone(), 1).unwrap();
    let scores = Some(Scores {
        loss: Some(0.5),
        ..Scores::default()
    });
    for (writer, added, expected) in [(2, None, None), (3, scores, scores), (4, None, scores)] {
        write_part(&directory.partial(ID, writer), &manifest);
        let again = Manifest {
            saved_at: "later".to_owned(),
            scores: added,
            ..manifest.clone()
        };
        let found = complete(&directory, again, writer).unwrap();
        let expected = Manifest {
            scores: expected,
            ..first.clone()
        };
        assert_eq!(found, expected);
        assert_eq!(Manifest::read(&directory.checkpoint(ID)).unwrap(), expected);
    }
    assert_eq!(directory.list().unwrap(), [ID]);
    let names = std::fs::read_dir(directory.checkpoints()).unwrap();
    assert_eq!(names.count(), 1, "no partial checkpoint stays");
}

#[test]
fn truncated_checkpoint_gets_no_name() {
    let root = tempfile::tempdir().unwrap();
    let (directory, manifest) = written(root.path());
    let part = directory.partial(ID, 1).join(shard::file_name(0, 1));
    let size = std::fs::metadata(&part).unwrap().len();
    let file = std::fs::File::options().write(true).open(&part).unwrap();
    file.set_len(size - 1).unwrap();
    let error = complete(&directory, manifest, 1).unwrap_err();
    let is_cut = matches!(&error.reason, Reason::CutShort { found, whole, .. } if (*found, *whole) == (size - 1, size));
    assert!(is_cut, "{error}");
    assert_eq!(directory.list().unwrap(), []);
}

#[test]
fn unopenable_part_is_volume_error_unless_absent() {
    let root = tempfile::tempdir().unwrap();
    let (directory, manifest) = written(root.path());
    let path = directory.partial(ID, 1);
    let name = shard::file_name(0, 1);
    let size_of = |manifest: &Manifest| {
        let part = Shard {
            file: name.clone(),
            sha256: Digest::of(&[]),
            pieces: Vec::new(),
        };
        check_size(&path, &manifest.tensors, &part).map_err(VolumeError::with(&path))
    };
    std::fs::remove_file(path.join(&name)).unwrap();
    let gone = size_of(&manifest).unwrap_err();
    assert!(!gone.is_of_the_volume(), "{gone}");
    // A symbolic link to itself cannot be opened.
    std::os::unix::fs::symlink(&name, path.join(&name)).unwrap();
    let unopened = size_of(&manifest).unwrap_err();
    assert!(unopened.is_of_the_volume(), "{unopened}");
}

fn evaluated(root: &Path, step: u64, loss: f64) -> CheckpointId {
    let id = CheckpointId {
        generation: 1,
        step,
    };
    let (directory, mut manifest) = (Directory::new(root.to_owned()), manifest_of(id));
    write_part(&directory.partial(id, 1), &manifest);
    manifest.scores = Some(Scores {
        loss: Some(loss),
        ..Scores::default()
    });
    complete(&directory, manifest, 1).unwrap();
    id
}

#[test]
fn best_checkpoint_is_kept_and_former_best_deleted() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let retention = Retention {
        keep: 2,
        best: Some(BestMetric::Loss),
    };
    let mut ids = Vec::new();
    for (step, loss, best) in [
        (10, 0.5, 10),
        (20, 0.25, 20),
        (30, 0.75, 20),
        (40, 0.25, 20),
        (50, 0.125, 50),
    ] {
        ids.push(evaluated(root.path(), step, loss));
        delete_old(&directory, ids[ids.len() - 1], retention).unwrap();
        let named = best_file::read(&directory).unwrap();
        assert_eq!(named.step, best, "after step {step}");
    }
    // The two newest checkpoints, one of which is the best.
    assert_eq!(directory.list().unwrap(), [ids[4], ids[3]]);
}

/// The best checkpoint and two newer ones on a volume that keeps two; returns the newest and the
/// path of the best one's manifest.
fn best_of_three(root: &Path) -> (Directory, CheckpointId, std::path::PathBuf) {
    let directory = Directory::new(root.to_owned());
    let ids = [(10, 0.125), (20, 0.5), (30, 0.25)].map(|(step, loss)| {
        let id = evaluated(root, step, loss);
        delete_old(&directory, id, BY_LOSS).unwrap();
        id
    });
    let manifest = directory.checkpoint(ids[0]).join(manifest::FILE);
    (directory, ids[2], manifest)
}

const BY_LOSS: Retention = Retention {
    keep: 2,
    best: Some(BestMetric::Loss),
};

#[test]
fn unreadable_manifest_stops_naming_and_deletion() {
    let root = tempfile::tempdir().unwrap();
    let (directory, newest, manifest) = best_of_three(root.path());
    let named = best_file::read(&directory);
    // Reading a directory is an error of the operating system, like a temporary error of a network
    // volume.
    let aside = root.path().join("aside");
    std::fs::rename(&manifest, &aside).unwrap();
    std::fs::create_dir(&manifest).unwrap();
    let volume_error = delete_old(&directory, newest, BY_LOSS).unwrap_err();
    assert!(volume_error.is_of_the_volume(), "{volume_error}");
    make_room(&directory, newest, 1, BY_LOSS);
    best(&directory, BestMetric::Loss).unwrap_err();
    assert_eq!(directory.list().unwrap().len(), 3);
    assert_eq!(best_file::read(&directory), named);

    std::fs::remove_dir(&manifest).unwrap();
    std::fs::rename(&aside, &manifest).unwrap();
    delete_old(&directory, newest, BY_LOSS).unwrap();
    assert_eq!(directory.list().unwrap().len(), 3);
}

#[test]
fn missing_or_broken_manifest_does_not_count() {
    for text in [None, Some("{")] {
        let root = tempfile::tempdir().unwrap();
        let (directory, newest, manifest) = best_of_three(root.path());
        match text {
            None => std::fs::remove_file(&manifest).unwrap(),
            Some(text) => std::fs::write(&manifest, text).unwrap(),
        }
        delete_old(&directory, newest, BY_LOSS).unwrap();
        assert_eq!(best_file::read(&directory).unwrap().step, 30, "{text:?}");
    }
}

/// A checkpoint that is truncated or known to be damaged cannot be loaded.
#[test]
fn retention_counts_only_loadable_checkpoints() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let ids = [10, 20, 30, 40].map(|step| evaluated(root.path(), step, 0.5));
    let part = directory.checkpoint(ids[3]).join(shard::file_name(0, 1));
    let file = std::fs::File::options().write(true).open(part).unwrap();
    file.set_len(9).unwrap();
    directory.damaged().mark(ids[2], Damage::Bytes);
    let retention = Retention {
        keep: 1,
        best: None,
    };
    make_room(&directory, ids[3], 1, retention);
    assert_eq!(directory.list().unwrap(), [ids[3], ids[2], ids[1]]);
}

/// A checkpoint that a rank failed to read, or with a part that cannot be opened, must not fill the
/// volume.
#[test]
fn unreadable_checkpoint_does_not_stop_deletion() {
    let retention = Retention {
        keep: 1,
        best: None,
    };
    for is_marked in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let ids = [10, 20, 30, 40].map(|step| evaluated(root.path(), step, 0.5));
        if is_marked {
            directory.damaged().mark(ids[1], Damage::Unread);
        } else {
            let part = directory.checkpoint(ids[1]).join(shard::file_name(0, 1));
            std::fs::remove_file(&part).unwrap();
            // A symbolic link to itself exists but cannot be opened.
            std::os::unix::fs::symlink(&part, &part).unwrap();
        }
        delete_old(&directory, ids[3], retention).unwrap();
        assert_eq!(directory.list().unwrap(), [ids[3]], "{is_marked}");
    }
}

#[test]
fn best_json_is_removed_before_former_best_checkpoint() {
    let none_evaluated = Some(BestMetric::Top1);
    for metric in [None, none_evaluated] {
        let root = tempfile::tempdir().unwrap();
        let (directory, newest, _) = best_of_three(root.path());
        let retention = Retention {
            keep: 2,
            best: metric,
        };
        // A directory at the path of the file cannot be removed as a file.
        let file = root.path().join(best_file::FILE);
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        delete_old(&directory, newest, retention).unwrap_err();
        assert_eq!(directory.list().unwrap().len(), 3, "{metric:?}");

        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, "{}").unwrap();
        delete_old(&directory, newest, retention).unwrap();
        assert_eq!(directory.list().unwrap().len(), 2, "{metric:?}");
        assert!(!file.exists(), "{metric:?}");
    }
}

#[test]
fn unwritable_best_json_stops_deletion() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    for step in [10, 20, 30] {
        evaluated(root.path(), step, 1.0 / step as f64);
    }
    // A directory at the path of the file.
    std::fs::create_dir_all(root.path().join(best_file::FILE).join("x")).unwrap();
    let retention = Retention {
        keep: 2,
        best: Some(BestMetric::Loss),
    };
    let newest = directory.list().unwrap()[0];
    delete_old(&directory, newest, retention).unwrap_err();
    assert_eq!(directory.list().unwrap().len(), 3);
}
