//! Weights as safetensors files with the names that torchvision and Transformers use.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use tch::{Kind, TchError, Tensor};

use crate::parameters::Parameters;
use entry::Entry;

mod entry;
mod names;
#[cfg(test)]
mod tests;

/// Why a file of weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is not a safetensors file, or it is truncated.
    #[error("{}: not a safetensors file: {reason}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// A tensor of the model is not in the file.
    #[error("{}: tensor {tensor} of shape {model:?} is missing; {}", path.display(), remedy(tensor))]
    Missing {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor in the model.
        tensor: String,
        /// Shape of the tensor in the model.
        model: Vec<i64>,
    },
    /// A prefix in `initFrom.skip` matches no tensor of the model.
    #[error(
        "no tensor of the model begins with {beginning}; there are {}",
        listed(names)
    )]
    NothingToSkip {
        /// The prefix in the configuration.
        beginning: String,
        /// Names of all tensors of the model.
        names: Vec<String>,
    },
    /// A tensor has another shape in the file.
    #[error("{}: tensor {tensor} has shape {file:?}, and the model needs {model:?}; change the model's size, or add the name to initFrom.skip", path.display())]
    Shape {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor in the file.
        tensor: String,
        /// Shape of the tensor in the file.
        file: Vec<usize>,
        /// Shape of the tensor in the model.
        model: Vec<i64>,
    },
    /// The file has two tensors for one of the model, and they differ.
    #[error("{}: tensors {tensor} and {other} differ, and the model has one tensor for both; remove one of them from the file, or set tieEmbeddings: false for a llama with its own head", path.display())]
    Tied {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor in the file.
        tensor: String,
        /// Name of the tensor in the file that should be equal.
        other: String,
    },
    /// A tensor is not of a floating-point type with at least 16 bits.
    #[error("{}: tensor {tensor} has type {kind:?}; give F32, F16, BF16 or F64", path.display())]
    Type {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor in the file.
        tensor: String,
        /// Type of the tensor in the file.
        kind: Dtype,
    },
    /// libtorch refuses an operation.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}

/// The result of reading a file of weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Names of the model's tensors that the caller skips and that keep their values.
    pub skipped: Vec<String>,
    /// Names in the file without a tensor in the model, such as those of another head.
    pub unused: Vec<String>,
}

impl Loaded {
    /// Describes the result for the log, in one line.
    #[must_use]
    pub fn words(&self, path: &Path) -> String {
        let Self { skipped, unused } = self;
        let unless_none = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!("; {what}: {}", listed(names)),
        };
        let skipped = unless_none("random, because initFrom.skip says so", skipped);
        let unused = unless_none("the model has no place for", unused);
        let path = path.display();
        format!("initFrom: the model begins with {path}{skipped}{unused}")
    }
}

/// What to change if a tensor is missing.
fn remedy(tensor: &str) -> &'static str {
    match tensor {
        "lm_head.weight" => {
            "set tieEmbeddings: true for a llama whose head is its embedding, or add the name to initFrom.skip to start with random \
             values"
        }
        _ => "add its name to initFrom.skip to start with random values",
    }
}

/// The first names, and the number of the remaining names.
fn listed(names: &[String]) -> String {
    const MOST: usize = 5;
    let first = names[..names.len().min(MOST)].join(", ");
    match names.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Overwrites the values of a model, on any device, with those of a file. Tensors whose name starts
/// with a prefix in `skip` keep their values.
///
/// The file may have names with or without `transformer.` or `bert.`, and tied tensors once or
/// twice. If a tensor cannot be read, no value changes.
///
/// # Errors
/// The file cannot be read, lacks a tensor of the model, or has a tensor with another shape.
pub fn load(
    path: &Path,
    parameters: &mut Parameters,
    skip: &[String],
) -> Result<Loaded, WeightsError> {
    let names = || parameters.iter().map(|(name, _)| name);
    let in_vain = |beginning: &&String| !names().any(|name| name.starts_with(*beginning));
    if let Some(beginning) = skip.iter().find(in_vain) {
        return Err(WeightsError::NothingToSkip {
            beginning: beginning.clone(),
            names: names().map(str::to_owned).collect(),
        });
    }
    let bytes = std::fs::read(path).map_err(|source| WeightsError::File {
        path: path.to_owned(),
        source,
    })?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| WeightsError::Format {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let mut loaded = Loaded {
        unused: file.names().into_iter().map(str::to_owned).collect(),
        ..Loaded::default()
    };
    let mut values = Vec::new();
    for (name, tensor) in parameters.iter() {
        if skip.iter().any(|beginning| name.starts_with(beginning)) {
            loaded.skipped.push(name.to_owned());
            values.push(None);
        } else {
            let (found, view) = find(path, &file, parameters, name, tensor)?;
            values.push(Some(value(path, &found, &view, &tensor.size())?));
        }
    }
    let known = names::Known::of(parameters);
    loaded.unused.retain(|name| !known.contains(name));
    loaded.unused.sort();
    tch::no_grad(|| {
        let tensors = parameters.tensors_mut().iter_mut();
        for (tensor, value) in tensors.zip(&values) {
            if let Some(value) = value {
                tensor.f_copy_(value)?;
            }
        }
        Ok(loaded)
    })
}

fn find<'a>(
    path: &Path,
    file: &SafeTensors<'a>,
    parameters: &Parameters,
    name: &str,
    tensor: &Tensor,
) -> Result<(String, TensorView<'a>), WeightsError> {
    let mut found = names::candidates(parameters, name)
        .into_iter()
        .filter_map(|candidate| Some((file.tensor(&candidate).ok()?, candidate)))
        .map(|(view, candidate)| (candidate, view));
    let (tensor, view) = found.next().ok_or_else(|| WeightsError::Missing {
        path: path.to_owned(),
        tensor: name.to_owned(),
        model: tensor.size(),
    })?;
    match found.find(|(_, other)| other.data() != view.data()) {
        None => Ok((tensor, view)),
        Some((other, _)) => Err(WeightsError::Tied {
            path: path.to_owned(),
            tensor,
            other,
        }),
    }
}

fn value(
    path: &Path,
    name: &str,
    view: &TensorView<'_>,
    size: &[i64],
) -> Result<Tensor, WeightsError> {
    let same = |(file, model): (&usize, &i64)| i64::try_from(*file) == Ok(*model);
    if view.shape().len() != size.len() || !view.shape().iter().zip(size).all(same) {
        return Err(WeightsError::Shape {
            path: path.to_owned(),
            tensor: name.to_owned(),
            file: view.shape().to_vec(),
            model: size.to_vec(),
        });
    }
    let kind = match view.dtype() {
        Dtype::F32 => Kind::Float,
        Dtype::F64 => Kind::Double,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        kind => {
            return Err(WeightsError::Type {
                path: path.to_owned(),
                tensor: name.to_owned(),
                kind,
            });
        }
    };
    Ok(Tensor::f_from_data_size(view.data(), size, kind)?.f_to_kind(Kind::Float)?)
}

/// Writes all weights and running statistics to a file that torchvision's `load_state_dict` and
/// Transformers' `from_pretrained` read. `num_steps` becomes the `num_batches_tracked` of PyTorch's
/// batch normalizations.
///
/// # Errors
/// The file cannot be written.
pub fn save(path: &Path, parameters: &Parameters, num_steps: u64) -> Result<(), WeightsError> {
    let mut entries = Vec::new();
    for (name, tensor) in parameters.iter() {
        entries.push((name.to_owned(), Entry::of_floats(tensor)?));
        if let Some(norm) = name.strip_suffix(".running_var") {
            let name = format!("{norm}.num_batches_tracked");
            entries.push((name, Entry::of_integer(num_steps)));
        }
    }
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let partial = path.with_extension("safetensors.partial");
    let failed = |source| WeightsError::File {
        path: path.to_owned(),
        source,
    };
    safetensors::serialize_to_file(entries, Some(metadata), &partial).map_err(|error| {
        failed(match error {
            SafeTensorError::IoError(source) => source,
            other => std::io::Error::other(other),
        })
    })?;
    std::fs::rename(&partial, path).map_err(failed)
}
