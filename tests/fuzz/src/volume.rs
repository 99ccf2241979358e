//! Readers of the checkpoint volume, to which other pods may write, too.

use std::collections::BTreeMap;
use std::path::Path;

use roundhouse_elastic::audit::{self, File};
use roundhouse_elastic::ledger::{Chain, Header, LedgerIdentity};
use roundhouse_elastic::{CheckpointId, DataSchedule, Head, Scaling, Skips};
use roundhouse_member::checkpoint::load::{self, Message};
use roundhouse_member::checkpoint::manifest::{FILE, SCHEMA_VERSION};
use roundhouse_member::checkpoint::{Directory, Identity, Manifest, complete, shard};
use roundhouse_member::state::{Record, Table};

use crate::Target;
use crate::input_directory::InputDirectory;
use crate::inputs::{joined, parts};

/// A checkpoint: a manifest and the file of its first part.
pub const CHECKPOINT: Target = Target {
    name: "checkpoint",
    read: |bytes| {
        let [manifest, shard] = parts(bytes);
        let Ok(parsed) = serde_json::from_slice::<Manifest>(manifest) else {
            return;
        };
        let temporary = InputDirectory::new();
        let directory = Directory::new(temporary.path().to_owned());
        let path = directory.checkpoint(id(&parsed));
        temporary.write(path.join(FILE), manifest);
        // Writes no file outside of the checkpoint: the reader must refuse such a name.
        let name = parsed.shards.first().map(|shard| Path::new(&shard.file));
        if let Some(name) = name
            && name.file_name() == Some(name.as_os_str())
            && name.as_os_str().len() < 255
            && name != Path::new(FILE)
        {
            temporary.write(path.join(name), shard);
        }
        let found = load::find(&directory, &parsed.training, &parsed.tensors);
        if let Ok(Some(manifest)) = found {
            let messages = load::read(&directory, manifest).unwrap();
            let is_end = |message: &Message| !matches!(message, Message::Bytes(_));
            let ends: Vec<bool> = messages.iter().map(|message| is_end(&message)).collect();
            let (last, pieces) = ends.split_last().unwrap();
            assert!(*last && !pieces.contains(&true));
        }
    },
    seeds: || {
        let temporary = InputDirectory::new();
        let manifest = checkpoint(&Directory::new(temporary.path().to_owned()));
        let path = Directory::new(temporary.path().to_owned()).checkpoint(id(&manifest));
        let file = |name: &str| std::fs::read(path.join(name)).unwrap();
        vec![joined(&[&file(FILE), &file(&manifest.shards[0].file)])]
    },
};

/// The ledger of two generations, once as the input has it, and once with corrected hashes. A
/// fuzzer does not find valid hashes by chance.
pub const LEDGER: Target = Target {
    name: "ledger",
    read: |bytes| {
        let texts = parts::<2>(bytes).map(String::from_utf8_lossy);
        let files = (1..)
            .zip(&texts)
            .map(|(generation, text)| File::parse(generation, text));
        let files: Vec<File> = files.filter_map(Result::ok).flatten().collect();
        let corrected: Vec<File> = files.iter().cloned().map(with_valid_hashes).collect();
        for files in [files, corrected] {
            let _ = audit::audit(files.clone(), &[]);
            let _ = audit::compare(files.clone(), files);
        }
    },
    seeds: || {
        let data_schedule = DataSchedule::of_steps(20, 8, 5);
        let identity = LedgerIdentity::of(&data_schedule, 7);
        let mut chain = Chain::from(Head::start(&identity));
        let mut position = Scaling::new(None, &data_schedule).start();
        let mut texts = Vec::new();
        for (generation, steps) in [(1, 0..3), (2, 3..5)] {
            let header = Header {
                generation,
                previous: (generation > 1).then(|| chain.head()),
                identity,
                start: None,
            };
            let mut text = header.to_text();
            for step in steps {
                assert_eq!(position.step, step);
                let batch = data_schedule.batch_at(&position).unwrap();
                position = position.after(batch.num_samples());
                let line = chain.head().next(&batch, generation, 0.5);
                text += &line.to_text();
                chain.push(line);
            }
            texts.push(text.into_bytes());
        }
        vec![joined(&[&texts[0], &texts[1]])]
    },
};

fn id(manifest: &Manifest) -> CheckpointId {
    CheckpointId {
        generation: manifest.generation,
        step: manifest.step,
    }
}

fn with_valid_hashes(mut file: File) -> File {
    let mut hash = file.header.hash_before();
    for line in &mut file.lines {
        line.hash = line.hash_after(&hash);
        hash = line.hash;
    }
    file
}

/// Writes a checkpoint of one rank with two tensors.
fn checkpoint(directory: &Directory) -> Manifest {
    let identity = LedgerIdentity::of(&DataSchedule::of_steps(100, 10, 50), 7);
    let tensor = |name: &str| Record {
        name: name.to_owned(),
        dtype: safetensors::Dtype::F32,
        shape: vec![2],
        bytes: 8,
    };
    let tensors = Table::from(vec![tensor("weight"), tensor("bias")]);
    let training = Identity {
        model: "mlp".to_owned(),
        optimizer: "sgd".to_owned(),
        ledger: identity,
        settings: BTreeMap::new(),
    };
    let mut ledger = Head::start(&identity);
    (ledger.generation, ledger.step) = (1, 2);
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        saved_at: "2026-01-01T00:00:00Z".to_owned(),
        generation: 1,
        step: 2,
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
        tensors,
        tail: None,
        shards: Vec::new(),
    };
    let part = shard::Part {
        id: id(&manifest),
        rank: 0,
        world_size: 1,
        table: &manifest.tensors,
        pieces: &shard::records(&manifest.tensors, 0, 1),
        bytes: &[1; 16],
        io_watch: directory.io_watch(),
    };
    shard::write(&directory.partial(part.id, 1), &part).unwrap();
    complete::complete(directory, manifest.clone(), 1).unwrap()
}
