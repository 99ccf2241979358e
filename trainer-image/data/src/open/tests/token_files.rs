use super::*;

#[test]
fn mix_of_token_files_reports_its_shares() {
    let root = tempfile::tempdir().unwrap();
    let tokens = |count: u16| (0..count).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    write(root.path(), "a.bin", &tokens(81));
    write(root.path(), "b.bin", &tokens(21));
    let data = configured(json!({"format": "tokens", "tokens": {"context": 8},
        "mix": [{"train": "a.bin", "weight": 1}, {"train": "b.bin", "weight": 1}], "shuffle": {"block": 2, "window": 2}}));
    let splits = open(&data, root.path(), Pixels::Bytes, 0, None).unwrap();
    let counts: Vec<_> = splits
        .shares
        .iter()
        .map(|share| (share.name.as_str(), share.num_samples, share.epochs))
        .collect();
    assert_eq!(counts, [("a.bin", 6, 0.6), ("b.bin", 6, 3.0)]);
    let order = splits.order(1, 0);
    let batch = HostBatch::read(
        splits.train.as_ref(),
        &Request::of(0..12, &order).samples,
        0,
    )
    .unwrap();
    assert_eq!(batch.tokens().len(), 12 * 9);
}

/// Opens ten tokens, of which the last is 64, for a model with 64 tokens.
fn tokens_up_to_64(vocabulary: Option<u32>) -> (tempfile::TempDir, Result<Splits, DataError>) {
    let root = tempfile::tempdir().unwrap();
    let tokens: Vec<u8> = (55..65_u16).flat_map(u16::to_le_bytes).collect();
    write(root.path(), "train/a.bin", &tokens);
    let mut data = configured(json!({"format": "tokens", "tokens": {"context": 3}}));
    data.tokens.as_mut().unwrap().vocabulary = vocabulary;
    let splits = open(&data, root.path(), Pixels::Bytes, 0, Some(64));
    (root, splits)
}

#[test]
fn unknown_token_is_a_corrupt_record_with_its_place() {
    let (_root, splits) = tokens_up_to_64(None);
    let train = splits.unwrap().train;
    assert_eq!(train.num_classes(), Some(64));
    HostBatch::read(train.as_ref(), &[0, 1], 0).unwrap();
    let error = HostBatch::read(train.as_ref(), &[2], 0).unwrap_err();
    assert!(error.is_one_record());
    let text = error.to_string();
    assert!(
        text.contains("a.bin at byte 18: token 64 is out of range"),
        "{text}"
    );
}

#[test]
fn configured_vocabulary_has_priority_over_the_model() {
    let (_root, splits) = tokens_up_to_64(Some(65));
    let train = splits.unwrap().train;
    assert_eq!(train.num_classes(), Some(65));
    HostBatch::read(train.as_ref(), &[2], 0).unwrap();
}
