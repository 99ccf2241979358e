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
fn each_generation_has_a_file_that_begins_with_its_version_and_a_start() {
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
    write_all(&directory, &received);
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
fn a_directory_that_cannot_be_made_drops_events_and_nothing_else() {
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
    write_all(file.path(), &received);
    assert_eq!(all_written.recv(), Ok(()));
}

#[test]
fn events_that_nobody_takes_are_dropped_at_once() {
    let (events, received) = sync_channel(2);
    let mut board = Board {
        events,
        due: Instant::now(),
        is_dropping: false,
    };
    for step in 1..=5 {
        board.tell_scalars(step, &[("train/loss", Some(1.0)), ("eval/loss", None)]);
    }
    assert!(board.is_dropping);
    let taken: Vec<_> = received.try_iter().collect();
    assert_eq!(taken.len(), 2);
    let Message::Event(Event { what, .. }) = &taken[0] else {
        panic!("an event");
    };
    assert_eq!(*what, What::Scalars(vec![("train/loss", 1.0)]));
    board.tell_scalars(6, &[]);
    assert!(!board.is_dropping);
}
