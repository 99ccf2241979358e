use std::fs::File;
use std::io::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const ONE: &str = "0123456789abcdef";
const OTHER: &str = "fedcba9876543210";

/// A directory with a text.
struct Case(tempfile::TempDir);

impl Case {
    fn new() -> Self {
        let case = Self(tempfile::tempdir().unwrap());
        case.write("a text");
        case
    }

    fn text(&self) -> PathBuf {
        self.0.path().join("a.txt")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.text(), text).unwrap();
    }

    /// Returns the token file of a tokenizer. Its content is the text itself.
    fn tokens(&self, tokenizer: &str) -> PathBuf {
        self.tokens_with(tokenizer, || {})
    }

    fn tokens_with(&self, tokenizer: &str, when_made: impl FnOnce()) -> PathBuf {
        let write = |writer: &mut BufWriter<NamedTempFile>| {
            when_made();
            let text = std::fs::read(self.text()).unwrap();
            writer.write_all(&text).map_err(DataError::io(&self.text()))
        };
        tokens_of(&self.text(), tokenizer, &Cache::default(), write).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<_> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }
}

fn content(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn tokens_are_created_once_per_text_and_tokenizer() {
    let case = Case::new();
    let first = case.tokens(ONE);
    assert_eq!(content(&first), "a text");
    let again = case.tokens_with(ONE, || panic!("the tokens were cached"));
    assert_eq!(first, again);
    assert_ne!(first, case.tokens(OTHER));
    case.write("another text");
    assert_eq!(content(&case.tokens(ONE)), "another text");
}

#[test]
fn only_tokens_of_earlier_texts_are_removed() {
    let case = Case::new();
    // Names like those of other texts' token files.
    let others = [
        format!(".a.txt.b.{ONE}.{OTHER}.tokens"),
        format!(".a.txt.{ONE}.{ONE}.{OTHER}.tokens"),
        format!(".b.txt.{ONE}.{OTHER}.tokens"),
        ".a.txt.tokens".to_owned(),
    ];
    for name in &others {
        std::fs::write(case.0.path().join(name), "").unwrap();
    }
    let num_others = others.len() + 1;
    for number in 0..5 {
        case.write(&format!("text {number}"));
        let (one, other) = (case.tokens(ONE), case.tokens(OTHER));
        assert!(one.is_file() && other.is_file());
        assert_eq!(case.names().len(), num_others + 2, "{:?}", case.names());
    }
}

#[test]
fn one_of_several_processes_creates_the_tokens() {
    let case = Case::new();
    let (num_made, start) = (AtomicU32::new(0), Barrier::new(8));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                let made = || {
                    num_made.fetch_add(1, Ordering::SeqCst);
                };
                let found = case.tokens_with(ONE, made);
                assert_eq!(content(&found), "a text");
            });
        }
    });
    assert_eq!(num_made.into_inner(), 1);
    // The text and its tokens.
    assert_eq!(case.names().len(), 2, "{:?}", case.names());
}

#[test]
fn another_process_completes_unfinished_tokens() {
    let case = Case::new();
    let lock = case.0.path().join(".a.txt.tokens.lock");
    let held = File::create(&lock).unwrap();
    held.lock().unwrap();
    let half = format!(".a.txt.{ONE}.{OTHER}.tokens.part-x1y2z3");
    std::fs::write(case.0.path().join(half), "a te").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| case.tokens(ONE));
        // The system drops the lock of a process that ends.
        drop(held);
        assert_eq!(content(&waiting.join().unwrap()), "a text");
    });
    assert_eq!(case.names().len(), 2, "{:?}", case.names());
}

#[test]
fn read_only_text_needs_a_cache_directory() {
    // No process can create a file in this directory, not even as root.
    let text = Path::new("/proc/version");
    let write = |_: &mut BufWriter<NamedTempFile>| Ok(());
    let refused = tokens_of(text, ONE, &Cache::default(), write).unwrap_err();
    let message = refused.to_string();
    assert!(message.contains("data.reading.cacheDir"), "{message}");
    let elsewhere = tempfile::tempdir().unwrap();
    let directory = elsewhere.path().join("cache");
    let cache = Cache {
        directory: Some(directory.clone()),
    };
    for _ in 0..2 {
        let found = tokens_of(text, ONE, &cache, write).unwrap();
        assert!(found.starts_with(&directory) && found.is_file());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    }
}
