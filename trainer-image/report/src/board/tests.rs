use std::path::Path;

use super::writer::{Writer, file_name, write_all};
use super::*;

fn scalars(step: u64, value: f64) -> Message {
    Message::Event(Event {
        wall_time: 1.0,
        step,
        what: What::Scalars(vec![("train/loss", value)]),
    })
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn each_generation_file_begins_with_version_and_start() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("tensorboard");
    let (events, received) = sync_channel(16);
    for generation in [1, 2] {
        let begin = Message::Begin {
            generation,
            step: 10,
        };
        events.send(begin).unwrap();
        events.send(scalars(11, 0.5)).unwrap();
    }
    drop(events);
    write_all(directory.clone(), &received);
    let files = files(&directory);
    assert_eq!(files.len(), 2);
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let record = |step, what| {
            let event = Event {
                wall_time: 1.0,
                step,
                what,
            };
            event.to_record().len()
        };
        let (version, start) = (record(0, What::FileVersion), record(11, What::Start));
        assert!(
            bytes[..version]
                .windows(13)
                .any(|at| at == b"brain.Event:2")
        );
        let Message::Event(event) = scalars(11, 0.5) else {
            panic!("an event");
        };
        assert_eq!(bytes[version + start..], event.to_record());
    }
}

#[test]
fn uncreatable_directory_only_drops_events() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (events, received) = sync_channel(16);
    let begin = Message::Begin {
        generation: 1,
        step: 0,
    };
    events.send(begin).unwrap();
    events.send(scalars(1, 0.5)).unwrap();
    let (written, all_written) = channel();
    events.send(Message::Flush(written)).unwrap();
    drop(events);
    write_all(file.path().to_owned(), &received);
    assert_eq!(all_written.recv(), Ok(()));
}

#[test]
fn full_queue_drops_events_at_once() {
    let (events, received) = sync_channel(2);
    let mut board = Board {
        events,
        due: Instant::now(),
        last_drop: None,
    };
    for step in 1..=5 {
        board.send_scalars(step, &[("train/loss", Some(1.0)), ("eval/loss", None)]);
    }
    assert!(board.last_drop.is_some());
    let taken: Vec<_> = received.try_iter().collect();
    assert_eq!(taken.len(), 2);
    let Message::Event(Event { what, .. }) = &taken[0] else {
        panic!("an event");
    };
    assert_eq!(*what, What::Scalars(vec![("train/loss", 1.0)]));
    let dropped = board.last_drop;
    board.send_scalars(6, &[]);
    assert_eq!(board.last_drop, dropped, "there is room again");
}

#[test]
fn drops_are_logged_once_per_quiet_minute() {
    let (events, _received) = sync_channel(1);
    let start = Instant::now();
    let mut board = Board {
        events,
        due: start,
        last_drop: None,
    };
    let said = [0, 1, 59, 118, 177, 237, 238]
        .map(|second| board.is_first_drop(start + Duration::from_secs(second)));
    assert_eq!(said, [true, false, false, false, false, true, false]);
}

#[test]
fn event_files_sort_by_generation_not_clock() {
    let names = [
        file_name(2, 1_700_000_900.7, "node-a", 7),
        file_name(3, 1_700_000_100.0, "node-b\n", 7),
        file_name(10, 1_600_000_000.0, "node.c", 100),
    ];
    assert!(names.is_sorted(), "{names:?}");
    assert_eq!(
        names[2],
        "events.out.tfevents.0000000010.1600000000.node-c.100"
    );
}

#[test]
fn after_an_error_a_new_file_is_tried_once_a_minute() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("tensorboard");
    std::fs::write(&directory, "in the way").unwrap();
    let start = Instant::now();
    let mut writer = Writer::new(directory.clone());
    let begin = Message::Begin {
        generation: 1,
        step: 10,
    };
    writer.take(begin, start);
    std::fs::remove_file(&directory).unwrap();
    writer.take(scalars(11, 0.5), start + Duration::from_secs(59));
    assert!(!directory.exists(), "the minute is not over");
    for step in [12, 13] {
        writer.take(scalars(step, 0.5), start + Duration::from_secs(60));
    }
    let files = files(&directory);
    assert_eq!(files.len(), 1);
    let bytes = std::fs::read(&files[0]).unwrap();
    let (Message::Event(first), Message::Event(second)) = (scalars(12, 0.5), scalars(13, 0.5))
    else {
        panic!("events");
    };
    let mark = Event {
        wall_time: 1.0,
        step: 12,
        what: What::Start,
    };
    let written = [first.to_record(), second.to_record()].concat();
    assert!(bytes.ends_with(&written));
    let version = Event {
        wall_time: 1.0,
        step: 0,
        what: What::FileVersion,
    };
    let begins = version.to_record().len() + mark.to_record().len();
    assert_eq!(bytes.len(), begins + written.len());
}
