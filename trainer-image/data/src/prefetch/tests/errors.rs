use super::*;

#[test]
fn corrupt_sample_fails_only_its_batch() {
    let mut prefetcher =
        Prefetcher::new(numbers(50, Some(9)), options(2, 1, OnCorrupt::Fail)).unwrap();
    let with = |samples: &[u64]| Request {
        samples: samples.to_vec(),
        epoch: 0,
    };
    let text = prefetcher.fetch(&with(&[1, 9, 2])).unwrap_err().to_string();
    assert_eq!(text, "numbers at record 9: is corrupt");
    assert_eq!(prefetcher.fetch(&with(&[1, 2])).unwrap().labels, [1, 2]);
}

#[test]
fn corrupt_replacements_are_an_error_with_the_first_reason() {
    let mut prefetcher =
        Prefetcher::new(numbers(50, Some(1)), options(1, 1, OnCorrupt::Skip)).unwrap();
    let request = Request {
        samples: vec![3],
        epoch: 0,
    };
    let text = prefetcher.fetch(&request).unwrap_err().to_string();
    assert!(
        text.contains("17 samples in a row") && text.contains("numbers at record 3"),
        "{text}"
    );
}

#[test]
fn panicking_decoder_and_high_number_are_errors() {
    let mut prefetcher =
        Prefetcher::new(numbers(700, None), options(1, 1, OnCorrupt::Skip)).unwrap();
    let mut fetch = |sample| {
        let request = Request {
            samples: vec![sample],
            epoch: 0,
        };
        prefetcher.fetch(&request)
    };
    assert!(matches!(
        fetch(666),
        Err(DataError::ReaderPanicked { sample: 666 })
    ));
    assert!(matches!(fetch(700), Err(DataError::NoSuchSample { .. })));
    assert_eq!(fetch(1).unwrap().labels, [1]);
}
