//! Saved files have the names, types and shapes of torchvision's and Transformers' files.
//!
//! If `ROUNDHOUSE_SAVED` is a directory, the files stay there for `fixtures/make.py check`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use roundhouse_trainer::models::{Classifier, Depth};
use roundhouse_trainer::random::seeded;
use roundhouse_trainer::{Parameters, Task, weights};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

use crate::fixture::{Fixture, path};
use crate::formula;
use crate::parity::{bert, gpt2, images, llama, resnet, switch};

fn save(name: &str, parameters: &Parameters, directory: &Path) -> PathBuf {
    let kept = std::env::var_os("ROUNDHOUSE_SAVED").map(PathBuf::from);
    let file = kept
        .as_deref()
        .unwrap_or(directory)
        .join(format!("{name}.safetensors"));
    weights::save(&file, parameters, 1).unwrap();
    file
}

/// Name, type and shape of each tensor, as Python writes them.
fn listing(file: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let line = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let kind = match view.dtype() {
            Dtype::F32 => "torch.float32",
            Dtype::I64 => "torch.int64",
            other => panic!("{name} has type {other:?}"),
        };
        format!("{name} {kind} {:?}", view.shape())
    };
    tensors.iter().map(line).collect()
}

#[test]
fn saved_resnet_has_the_names_of_torchvision() {
    let directory = tempfile::tempdir().unwrap();
    for (name, depth) in [("resnet18", Depth::Layers18), ("resnet50", Depth::Layers50)] {
        let shape = images(&[4, 3, 64, 64]);
        let build = |p: &mut Parameters| resnet(depth)(p, &shape);
        let mut model = seeded(0, || Classifier::new(0.0, build)).unwrap();
        formula::fill(model.parameters_mut());
        let file = save(name, model.parameters(), directory.path());
        let fixture = Fixture::read(name);
        let theirs = fixture
            .lines("state")
            .into_iter()
            .map(str::to_owned)
            .collect();
        assert_eq!(listing(&file), theirs);
        let loaded = weights::load(&file, model.parameters_mut(), &[]).unwrap();
        assert_eq!(loaded, weights::Loaded::default());
    }
}

#[test]
fn saved_language_model_equals_that_of_transformers() {
    let directory = tempfile::tempdir().unwrap();
    let tasks: [(&str, Box<dyn Task>); 5] = [
        ("gpt2", Box::new(gpt2())),
        ("bert", Box::new(bert())),
        ("llama", Box::new(llama(false))),
        ("llama-tied", Box::new(llama(true))),
        ("switch", Box::new(switch())),
    ];
    for (name, mut task) in tasks {
        let theirs = path(&format!("{name}.weights"));
        weights::load(&theirs, task.parameters_mut(), &[]).unwrap();
        let ours = save(name, task.parameters(), directory.path());
        assert_eq!(listing(&ours), listing(&theirs));
        let (ours, theirs) = (std::fs::read(ours).unwrap(), std::fs::read(theirs).unwrap());
        let (ours, theirs) = (
            SafeTensors::deserialize(&ours).unwrap(),
            SafeTensors::deserialize(&theirs).unwrap(),
        );
        for (tensor, view) in theirs.iter() {
            assert_eq!(ours.tensor(tensor).unwrap().data(), view.data(), "{tensor}");
        }
    }
}
