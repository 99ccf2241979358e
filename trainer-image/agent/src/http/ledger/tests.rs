use std::fmt::Write;

use axum::body::to_bytes;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;

fn volume(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join(paths::LEDGER_DIR);
    std::fs::create_dir(&directory).unwrap();
    for (name, text) in files {
        std::fs::write(directory.join(name), text).unwrap();
    }
    root
}

async fn ask(ledgers: &Ledgers) -> (u16, String) {
    let answer = ledger(State(ledgers.clone())).await;
    let status = answer.status().as_u16();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn steps(range: std::ops::Range<usize>) -> String {
    range.fold(String::new(), |mut text, step| {
        writeln!(text, "{{\"step\":{step}}}").unwrap();
        text
    })
}

#[tokio::test]
async fn last_lines_are_sent_in_the_order_of_generations() {
    let (second, third) = (steps(1..151), steps(151..251));
    let volume = volume(&[
        ("gen-0000000001.jsonl", "{\"generation\":1}\n"),
        ("gen-0000000003.jsonl", &(third + "{\"step\":25")),
        ("gen-0000000002.jsonl", &second),
        ("notes.txt", "not a ledger file\n"),
    ]);
    let (status, text) = ask(&Ledgers::new(Some(volume.path()))).await;
    assert_eq!((status, text), (200, steps(51..251)));
}

#[tokio::test]
async fn long_file_is_read_from_its_end() {
    let volume = volume(&[("gen-0000000001.jsonl", &steps(0..100_000))]);
    let (status, text) = ask(&Ledgers::new(Some(volume.path()))).await;
    assert_eq!((status, text), (200, steps(99_800..100_000)));
    let lines = "x".repeat(1 << 20) + "\n{\"step\":7}\n";
    std::fs::write(volume.path().join("ledger/gen-0000000002.jsonl"), lines).unwrap();
    let lines = tail(&volume.path().join("ledger/gen-0000000002.jsonl")).unwrap();
    assert_eq!(lines, ["{\"step\":7}"], "half a line is omitted");
}

#[tokio::test]
async fn job_without_a_ledger_gets_an_error() {
    let empty = tempfile::tempdir().unwrap();
    for ledgers in [Ledgers::new(None), Ledgers::new(Some(empty.path()))] {
        let (status, text) = ask(&ledgers).await;
        assert_eq!(status, 404);
        assert!(text.contains("there is no ledger"), "{text}");
    }
}

#[tokio::test]
async fn silent_volume_blocks_one_request_at_a_time() {
    let volume = volume(&[]);
    // Opening a pipe without a writer blocks indefinitely, like a file of a volume that hangs.
    let pipe = volume.path().join("ledger/gen-0000000001.jsonl");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let ledgers = Ledgers {
        timeout: Duration::from_millis(50),
        ..Ledgers::new(Some(volume.path()))
    };
    for _ in 0..2 {
        let (status, text) = ask(&ledgers).await;
        assert_eq!(status, 503);
        assert!(text.contains("ask again"), "{text}");
    }
    assert_eq!(ledgers.turn.available_permits(), 0, "one thread waits");
    drop(File::options().write(true).open(&pipe).unwrap());
}

#[tokio::test]
async fn link_to_a_secret_is_not_followed() {
    let (volume, secret) = (
        volume(&[("gen-0000000001.jsonl", "{\"step\":1}\n")]),
        tempfile::tempdir().unwrap(),
    );
    let (token, ledger) = (
        secret.path().join("token.jsonl"),
        volume.path().join("ledger"),
    );
    std::fs::write(&token, "secret\n").unwrap();
    std::os::unix::fs::symlink(&token, ledger.join("gen-9999999999.jsonl")).unwrap();
    std::fs::create_dir(ledger.join("gen-9999999998.jsonl")).unwrap();
    let (status, text) = ask(&Ledgers::new(Some(volume.path()))).await;
    assert_eq!((status, text.as_str()), (200, "{\"step\":1}\n"));
    std::fs::rename(&ledger, volume.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(secret.path(), &ledger).unwrap();
    assert_eq!(ask(&Ledgers::new(Some(volume.path()))).await.0, 404);
}
