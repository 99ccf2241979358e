use safetensors::SafeTensors;

use super::*;
use crate::state::Record;

fn table() -> Table {
    let record = |name: &str, shape: Vec<usize>| Record {
        name: name.to_owned(),
        dtype: Dtype::F32,
        bytes: 4 * shape.iter().product::<usize>() as u64,
        shape,
    };
    Table::from(vec![record("a", vec![2, 3]), record("b", vec![1])])
}

/// Reads all bytes of a part.
fn read(directory: &Path, shard: &Shard) -> Result<Vec<u8>, VolumeError> {
    let mut all = Vec::new();
    let take = |_: &PieceRecord, _, bytes: Vec<u8>| {
        all.extend(bytes);
        ControlFlow::Continue(())
    };
    let read = super::read(directory, shard, &IoWatch::default(), take);
    read.map(|_| all)
}

fn write_all(directory: &Path, world_size: u32) -> Vec<Shard> {
    let table = table();
    let bytes: Vec<u8> = (0..28).collect();
    (0..world_size)
        .map(|rank| {
            let pieces = records(&table, rank, world_size);
            let size: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
            let before = roundhouse_elastic::shard::shard(&(0..28), rank, world_size).start;
            let range = usize::try_from(before).unwrap()..usize::try_from(before + size).unwrap();
            let part = Part {
                id: CheckpointId {
                    generation: 1,
                    step: 2,
                },
                rank,
                world_size,
                table: &table,
                pieces: &pieces,
                bytes: &bytes[range],
                io_watch: &IoWatch::default(),
            };
            write(directory, &part).unwrap();
            let record = std::fs::read(directory.join(record_name(rank, world_size))).unwrap();
            serde_json::from_slice(&record).unwrap()
        })
        .collect()
}

#[test]
fn the_parts_of_any_number_of_ranks_read_back_as_the_whole() {
    for world_size in [1, 2, 3, 40] {
        let directory = tempfile::tempdir().unwrap();
        let shards = write_all(directory.path(), world_size);
        let read: Vec<u8> = shards
            .iter()
            .flat_map(|shard| read(directory.path(), shard).unwrap())
            .collect();
        assert_eq!(read, (0..28).collect::<Vec<u8>>(), "{world_size} ranks");
        for shard in &shards {
            let file = std::fs::metadata(directory.path().join(&shard.file)).unwrap();
            assert_eq!(file_size(&table(), shard).unwrap(), file.len());
        }
    }
}

#[test]
fn one_rank_writes_a_plain_safetensors_file() {
    let directory = tempfile::tempdir().unwrap();
    let shards = write_all(directory.path(), 1);
    let file = std::fs::read(directory.path().join(&shards[0].file)).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensor = tensors.tensor("a").unwrap();
    assert_eq!(
        (tensor.dtype(), tensor.shape()),
        (Dtype::F32, [2, 3].as_slice())
    );
}

#[test]
fn columns_of_a_tensor_are_one_piece_of_a_part() {
    let directory = tempfile::tempdir().unwrap();
    let columns = |first: u64, number: u64| Runs {
        start: 4 * first,
        length: 4 * number,
        count: 2,
        stride: 12,
    };
    let a = "a".to_owned();
    let pieces = vec![
        PieceRecord::new(a.clone(), columns(1, 2)),
        PieceRecord::new("b".to_owned(), Runs::one(&(0..4))),
        // A second piece of the same tensor.
        PieceRecord::new(a, Runs::one(&(0..4))),
    ];
    let bytes: Vec<u8> = (0..24).collect();
    let part = Part {
        id: CheckpointId {
            generation: 1,
            step: 2,
        },
        rank: 0,
        world_size: 2,
        table: &table(),
        pieces: &pieces,
        bytes: &bytes,
        io_watch: &IoWatch::default(),
    };
    write(directory.path(), &part).unwrap();
    let record = std::fs::read(directory.path().join(record_name(0, 2))).unwrap();
    let shard: Shard = serde_json::from_slice(&record).unwrap();
    assert_eq!(shard.pieces, pieces);
    assert_eq!(read(directory.path(), &shard).unwrap(), bytes);
    let file = std::fs::metadata(directory.path().join(&shard.file)).unwrap();
    assert_eq!(file_size(&table(), &shard).unwrap(), file.len());
    let text = String::from_utf8(record).unwrap();
    assert_eq!(text.matches("stride").count(), 1, "{text}");
}

#[test]
fn damage_is_detected_and_paths_stay_inside() {
    let directory = tempfile::tempdir().unwrap();
    let shards = write_all(directory.path(), 2);
    let path = directory.path().join(&shards[1].file);
    let good = std::fs::read(&path).unwrap();
    let mut outcomes = 0;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, &bad).unwrap();
        if read(directory.path(), &shards[1]).is_err() {
            outcomes += 1;
        } else {
            // The damage is in padding, or gives a type or shape of the same size: the bytes are
            // right.
            assert!(at < good.len() - 14, "byte {at}");
        }
    }
    assert!(outcomes > good.len() / 2, "{outcomes} of {}", good.len());
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert!(read(directory.path(), &shards[1]).is_err());
    for file in ["../x", "/etc/passwd", "..", "a/b"] {
        let mut outside = shards[1].clone();
        file.clone_into(&mut outside.file);
        assert!(read(directory.path(), &outside).is_err(), "{file}");
    }
}
