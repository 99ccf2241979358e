use safetensors::tensor::TensorView;
use tch::Kind;

use super::*;
use crate::parameters::Role;

fn parameters() -> Parameters {
    let mut parameters = Parameters::default();
    for (name, shape) in [("transformer.wte.weight", vec![3, 2]), ("fc.bias", vec![4])] {
        let value = Tensor::zeros(shape, tch::kind::FLOAT_CPU);
        parameters.push(name, Role::Weight, &value).unwrap();
    }
    parameters
}

/// A file of tensors of ones. `one` has the bytes of 1 in the given type.
fn file(directory: &Path, dtype: Dtype, one: &[u8], tensors: &[(&str, &[usize])]) -> PathBuf {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| one.repeat(shape.iter().product()))
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape), bytes)| {
        (
            *name,
            TensorView::new(dtype, shape.to_vec(), bytes).unwrap(),
        )
    });
    let path = directory.join("weights.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    path
}

const ONE: [u8; 4] = 1.0_f32.to_le_bytes();

fn sum(parameters: &Parameters) -> f64 {
    let sums = parameters.tensors().iter().map(|t| t.sum(Kind::Double));
    sums.map(|sum| sum.double_value(&[])).sum()
}

#[test]
fn each_float_type_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let types: [(Dtype, &[u8]); 4] = [
        (Dtype::F32, &ONE),
        (Dtype::F64, &1.0_f64.to_le_bytes()),
        (Dtype::F16, &[0x00, 0x3C]),
        (Dtype::BF16, &[0x80, 0x3F]),
    ];
    for (dtype, one) in types {
        let path = file(
            directory.path(),
            dtype,
            one,
            &[("lm_head.weight", &[3, 2]), ("fc.bias", &[4])],
        );
        let mut parameters = parameters();
        assert_eq!(
            load(&path, &mut parameters, &[]).unwrap(),
            Loaded::default()
        );
        assert!((sum(&parameters) - 10.0).abs() < 1e-9, "{dtype:?}");
        assert!(parameters.tensors().iter().all(Tensor::requires_grad));
    }
}

#[test]
fn shape_mismatch_names_both_shapes_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let tensors: [(&str, &[usize]); 2] = [("wte.weight", &[3, 2]), ("fc.bias", &[10])];
    let path = file(directory.path(), Dtype::F32, &ONE, &tensors);
    let mut parameters = parameters();
    let error = load(&path, &mut parameters, &[]).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("fc.bias has shape [10]") && message.contains("needs [4]"),
        "{message}"
    );
    assert!(matches!(error, WeightsError::Shape { .. }));
    assert!(sum(&parameters).abs() < f64::EPSILON);
}

#[test]
fn skipped_tensor_keeps_its_values_and_unused_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let tensors: [(&str, &[usize]); 3] = [
        ("wte.weight", &[3, 2]),
        ("fc.bias", &[10]),
        ("score.weight", &[1]),
    ];
    let path = file(directory.path(), Dtype::F32, &ONE, &tensors);
    let mut parameters = parameters();
    let loaded = load(&path, &mut parameters, &["fc.".to_owned()]).unwrap();
    assert_eq!(loaded.skipped, ["fc.bias"]);
    assert_eq!(loaded.unused, ["score.weight"]);
    let words = loaded.words(&path);
    for name in ["fc.bias", "score.weight"] {
        assert!(words.contains(name), "{words}");
    }
    let error = load(&path, &mut parameters, &["fd.".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("fd."), "{error}");
    assert!(matches!(error, WeightsError::NothingToSkip { .. }));
    assert!((sum(&parameters) - 6.0).abs() < 1e-9);
}

#[test]
fn unusable_file_is_an_error_of_its_kind() {
    let directory = tempfile::tempdir().unwrap();
    let mut parameters = parameters();
    let missing = directory.path().join("none.safetensors");
    let error = load(&missing, &mut parameters, &[]).unwrap_err();
    assert!(matches!(error, WeightsError::File { .. }), "{error}");

    let path = file(directory.path(), Dtype::F32, &ONE, &[("fc.bias", &[4])]);
    let error = load(&path, &mut parameters, &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("transformer.wte.weight of shape [3, 2] is missing"),
        "{error}"
    );

    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let error = load(&path, &mut parameters, &[]).unwrap_err();
    assert!(matches!(error, WeightsError::Format { .. }), "{error}");

    let integers = 1_i32.to_le_bytes();
    let path = file(
        directory.path(),
        Dtype::I32,
        &integers,
        &[("lm_head.weight", &[3, 2])],
    );
    let error = load(&path, &mut parameters, &[]).unwrap_err();
    assert!(error.to_string().contains("I32"), "{error}");
}

#[test]
fn tied_tensors_of_a_file_must_be_equal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.safetensors");
    let name = "model.embed_tokens.weight";
    let written = |values: [(&str, [f32; 2]); 2]| {
        let mut tensors = Parameters::default();
        for (name, value) in values {
            let value = Tensor::from_slice(&value);
            tensors.push(name, Role::Weight, &value).unwrap();
        }
        save(&path, &tensors, 1).unwrap();
    };
    let mut tied = Parameters::default();
    tied.push(name, Role::Weight, &Tensor::from_slice(&[0.0_f32; 2]))
        .unwrap();
    written([(name, [1.0, 2.0]), ("lm_head.weight", [1.0, 2.0])]);
    assert_eq!(load(&path, &mut tied, &[]).unwrap(), Loaded::default());
    written([(name, [1.0, 2.0]), ("lm_head.weight", [3.0, 4.0])]);
    let error = load(&path, &mut tied, &[]).unwrap_err();
    assert!(matches!(error, WeightsError::Tied { .. }), "{error}");
    assert!((sum(&tied) - 3.0).abs() < 1e-9);
    // A model with both tensors takes each from its own.
    tied.push(
        "lm_head.weight",
        Role::Weight,
        &Tensor::from_slice(&[0.0_f32; 2]),
    )
    .unwrap();
    load(&path, &mut tied, &[]).unwrap();
    assert!((sum(&tied) - 10.0).abs() < 1e-9);
    let path = file(directory.path(), Dtype::F32, &ONE, &[(name, &[2])]);
    let error = load(&path, &mut tied, &[]).unwrap_err();
    assert!(error.to_string().contains("tieEmbeddings: true"), "{error}");
}

#[test]
fn saved_file_reads_back_with_pytorchs_tensors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("saved.safetensors");
    let mut saved = Parameters::default();
    for (name, value) in [("bn1.weight", 1.5_f32), ("bn1.running_var", 2.5)] {
        saved
            .push(name, Role::Weight, &Tensor::from_slice(&[value]))
            .unwrap();
    }
    save(&path, &saved, 17).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tracked = file.tensor("bn1.num_batches_tracked").unwrap();
    assert_eq!(tracked.dtype(), Dtype::I64);
    assert_eq!(tracked.data(), 17_i64.to_le_bytes());
    assert_eq!(file.names().len(), 3);
    let before = sum(&saved);
    tch::no_grad(|| saved.tensors_mut().iter_mut().for_each(|t| drop(t.zero_())));
    assert_eq!(load(&path, &mut saved, &[]).unwrap(), Loaded::default());
    assert!((sum(&saved) - before).abs() < 1e-9);
}
