//! Volumes that change during an audit, and volumes that cannot be read.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use roundhouse_member::checkpoint::complete::remove;

use super::*;

/// Appends the newest line of a chain to the first generation's file.
fn append(directory: &Directory, chain: &Chain) {
    let path = directory.ledger().join(file_name(1));
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    let line = chain.lines().back().unwrap().to_text();
    file.write_all(line.as_bytes()).unwrap();
}

/// A ledger without its end: there is a checkpoint of step 5, but the last line is of step 3.
fn cut_off() -> (tempfile::TempDir, Directory) {
    let (root, directory, chain) = committed(5);
    save(&directory, &chain);
    write(&directory, 1, None, &lines_of(&chain)[..3]);
    (root, directory)
}

/// The path of the only checkpoint.
fn checkpoint_of(directory: &Directory) -> std::path::PathBuf {
    directory.checkpoint(directory.list().unwrap()[0])
}

#[test]
fn unreadable_checkpoints_prove_nothing_and_name_the_file() {
    let manifest = |directory: &Directory| {
        let path = checkpoint_of(directory).join(FILE);
        std::fs::remove_file(&path).unwrap();
        path
    };
    let checkpoints = |directory: &Directory| {
        let path = directory.checkpoints();
        std::fs::remove_dir_all(&path).unwrap();
        path
    };
    // A loop of symbolic links has the effect of an I/O error or a missing permission.
    for unread in [manifest, checkpoints] {
        let (_root, directory) = cut_off();
        let path = unread(&directory);
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let reason = audited(&directory).unwrap_err();
        let Unproven::Unread(volume_error) = &reason else {
            panic!("{reason}");
        };
        assert_eq!(volume_error.path, path);
        assert_eq!(reason.exit_code(), ExitCode::VolumeFailed);
        let found = json::not_proven(&reason);
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["proven"], false);
        assert_eq!(found["unread"]["path"], path.to_str().unwrap());
        let error = found["unread"]["error"].as_str().unwrap();
        assert!(error.contains("symbolic links"), "{error}");
    }
}

#[test]
fn ledger_must_have_the_step_of_a_damaged_checkpoint() {
    let (_root, directory) = cut_off();
    std::fs::write(checkpoint_of(&directory).join(FILE), "{").unwrap();
    let reason = audited(&directory).unwrap_err();
    let words = reason.to_string();
    assert!(matches!(reason, Unproven::Lost(_)), "{words}");
    assert!(
        words.contains("step 5 of generation 1") && words.contains(FILE),
        "{words}"
    );
    let (_root, directory, chain) = committed(5);
    write(&directory, 1, None, &lines_of(&chain));
    save(&directory, &chain);
    std::fs::write(checkpoint_of(&directory).join(FILE), "{").unwrap();
    let (proof, damaged) = audited(&directory).unwrap();
    assert_eq!((proof.num_steps, damaged.len()), (5, 1));
    let found: serde_json::Value = serde_json::from_str(&json::proven(&proof, &damaged)).unwrap();
    let path = found["damagedCheckpoints"][0]["path"].as_str().unwrap();
    assert!(path.ends_with(FILE), "{path}");
}

#[test]
fn checkpoint_deleted_during_an_audit_is_ignored() {
    let (_root, directory) = cut_off();
    std::fs::remove_file(checkpoint_of(&directory).join(FILE)).unwrap();
    assert_eq!(proof(&directory).num_steps, 3);
}

#[test]
fn job_that_trains_during_an_audit_is_proven() {
    let (_root, directory, mut chain) = committed(1);
    write(&directory, 1, None, &lines_of(&chain));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The line is in the file before the checkpoint has its name. The newest two
            // checkpoints stay.
            for step in 2..400 {
                grow(&mut chain, 1, step);
                append(&directory, &chain);
                save(&directory, &chain);
                for old in directory.list().unwrap().into_iter().skip(2) {
                    remove(&directory.checkpoint(old)).unwrap();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            if let Err(reason) = audited(&directory) {
                panic!("{reason}");
            }
        }
    });
}
