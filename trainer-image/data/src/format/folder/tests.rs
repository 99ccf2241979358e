use super::*;

/// A folder of images within its own directory, beside which the list is cached.
struct Images(tempfile::TempDir);

impl Images {
    fn path(&self) -> PathBuf {
        self.0.path().join("images")
    }
}

fn folder(images: &[&str]) -> Images {
    let directory = Images(tempfile::tempdir().unwrap());
    std::fs::create_dir(directory.path()).unwrap();
    for image in images {
        let path = directory.path().join(image);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, image).unwrap();
    }
    directory
}

fn listed(folder: &Folder) -> Vec<(i64, String)> {
    let read = |number| {
        let mut bytes = Vec::new();
        let Ok(Record::Encoded { label }) = folder.read(number, &mut bytes) else {
            panic!("a file holds an encoded image");
        };
        (label, String::from_utf8(bytes).unwrap())
    };
    (0..folder.num_records()).map(read).collect()
}

#[test]
fn classes_and_images_are_numbered_by_name() {
    let directory = folder(&[
        "dog/b.JPG",
        "dog/a.png",
        "cat/sub/x.jpeg",
        "cat/y.jpg",
        "cat/notes.txt",
        ".hidden/z.jpg",
    ]);
    let folder = Folder::open(&directory.path(), None, &Cache::default()).unwrap();
    assert_eq!(folder.classes(), ["cat", "dog"]);
    let expected = [
        (0, "cat/sub/x.jpeg"),
        (0, "cat/y.jpg"),
        (1, "dog/a.png"),
        (1, "dog/b.JPG"),
    ];
    assert_eq!(
        listed(&folder),
        expected.map(|(label, name)| (label, name.to_owned()))
    );
}

#[test]
fn changed_images_are_seen_despite_a_cached_list() {
    for changed in ["b", "b/nested", "b/nested/deep"] {
        let directory = folder(&["a/1.jpg", "b/nested/deep/1.jpg"]);
        let num_images = || {
            let found = Folder::open(&directory.path(), None, &Cache::default());
            found.unwrap().num_records()
        };
        let changed = directory.path().join(changed);
        // Use an old time, because two changes within one tick of the clock have the same time.
        let make_old = || {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
            let opened = std::fs::File::open(&changed).unwrap();
            opened.set_modified(time).unwrap();
        };
        make_old();
        assert_eq!((num_images(), num_images()), (2, 2));
        std::fs::write(changed.join("2.jpg"), "2.jpg").unwrap();
        assert_eq!(num_images(), 3, "{}", changed.display());
        make_old();
        assert_eq!(num_images(), 3);
        std::fs::remove_file(changed.join("2.jpg")).unwrap();
        assert_eq!(num_images(), 2, "{}", changed.display());
    }
}

#[test]
fn list_is_cached_while_no_directory_changes() {
    let directory = folder(&["a/nested/1.jpg"]);
    let kept = Kept::of(&directory.path()).unwrap();
    assert!(kept.is_current(&directory.path()));
    let paths: Vec<_> = kept.directories.iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["a/", "a/nested/"]);
    std::fs::remove_dir_all(directory.path().join("a/nested")).unwrap();
    assert!(!kept.is_current(&directory.path()));
}

#[test]
fn validation_split_uses_the_training_class_numbers() {
    let directory = folder(&["dog/1.jpg"]);
    let classes = ["cat".to_owned(), "dog".to_owned()];
    let found = Folder::open(&directory.path(), Some(&classes), &Cache::default()).unwrap();
    assert_eq!(listed(&found), [(1, "dog/1.jpg".to_owned())]);
    let text = Folder::open(&directory.path(), Some(&classes[..1]), &Cache::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("dog") && text.contains("not a class"),
        "{text}"
    );
}

#[test]
fn directory_without_classes_or_images_is_named() {
    let text = Folder::open(&folder(&[]).path(), None, &Cache::default())
        .unwrap_err()
        .to_string();
    assert!(text.contains("directory per class"), "{text}");
    let directory = folder(&["a/1.jpg", "b/notes.txt"]);
    let text = Folder::open(&directory.path(), None, &Cache::default())
        .unwrap_err()
        .to_string();
    let left_out = "1 file of another kind left out (e.g. notes.txt)";
    let expected = format!("b: holds no .jpg, .jpeg or .png file, {left_out}");
    assert!(text.ends_with(&expected), "{text}");
}

fn open(directory: &Images) -> Folder {
    Folder::open(&directory.path(), None, &Cache::default()).unwrap()
}

#[test]
fn hidden_and_nas_directories_are_left_out() {
    let directory = folder(&[
        "cross/1.png",
        "disc/.ipynb_checkpoints/2.png",
        "disc/1.png",
        "disc/deep/.cache/3.png",
        "disc/deep/@eaDir/1.png",
        "disc/deep/4.png",
        "@eaDir/x/1.png",
        "lost+found/1.png",
    ]);
    let found = open(&directory);
    assert_eq!(found.classes(), ["cross", "disc"]);
    let expected = [
        (0, "cross/1.png"),
        (1, "disc/1.png"),
        (1, "disc/deep/4.png"),
    ];
    assert_eq!(
        listed(&found),
        expected.map(|(label, name)| (label, name.to_owned()))
    );
}

#[test]
fn files_of_other_kinds_are_counted_in_every_directory() {
    let directory = folder(&[
        "a/1.png",
        "a/2.webp",
        "a/nested/3.webp",
        "b/4.jpg",
        "c/5.jpg",
        "d/6.jpg",
        "top.png",
    ]);
    let words = |folder: &Folder| folder.notes();
    let expected = " (a … d), 3 files of other kinds left out (e.g. 2.webp)";
    assert_eq!(words(&open(&directory)), expected);
    // The same with a cached list.
    assert_eq!(words(&open(&directory)), expected);
}

#[test]
fn linked_directories_are_followed_once() {
    use std::os::unix::fs::symlink;
    let directory = folder(&["a/1.jpg", "a/in/2.jpg", "b/3.jpg"]);
    let elsewhere = folder(&["x/4.jpg", "x/5.jpg"]);
    let link = |target: &Path, name: &str| symlink(target, directory.path().join(name)).unwrap();
    link(&elsewhere.path().join("x"), "a/linked");
    link(&elsewhere.path().join("x"), "a/again");
    link(&directory.path().join("a"), "a/in/loop");
    link(&elsewhere.path().join("x"), "c");
    let found = open(&directory);
    assert_eq!(found.classes(), ["a", "b", "c"]);
    let paths: Vec<_> = (0..found.num_records())
        .map(|number| found.path(number).unwrap().1)
        .map(|path| path.strip_prefix(directory.path()).unwrap().to_owned())
        .collect();
    let expected = [
        "a/1.jpg",
        "a/again/4.jpg",
        "a/again/5.jpg",
        "a/in/2.jpg",
        "b/3.jpg",
        "c/4.jpg",
        "c/5.jpg",
    ];
    assert_eq!(paths, expected.map(PathBuf::from));
}

#[test]
fn non_utf8_names_matter_only_for_images() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let directory = folder(&["a/1.jpg"]);
    let name = |bytes| directory.path().join(OsStr::from_bytes(bytes));
    std::fs::write(name(b"notes-\xff.txt"), "").unwrap();
    std::fs::write(name(b"a/notes-\xff.txt"), "").unwrap();
    assert_eq!(open(&directory).num_records(), 1);
    std::fs::write(name(b"a/2-\xff.jpg"), "").unwrap();
    let error = Folder::open(&directory.path(), None, &Cache::default()).unwrap_err();
    assert!(error.to_string().contains("not UTF-8"), "{error}");
}
