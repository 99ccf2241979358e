//! Selects the exported tensors of a checkpoint, their names, and their order in the file.

use std::cmp::Reverse;

use roundhouse_member::state::{Table, View};
use safetensors::Dtype;

use crate::ema::Ema;

/// Prefix of the names of weights and running statistics in a checkpoint.
const WEIGHTS: &str = "model.";
/// Suffix of the running statistic for which PyTorch also keeps a counter.
const VARIANCE: &str = ".running_var";

/// The tensors of the file, in the order of the file.
#[derive(Debug)]
pub(super) struct Selection {
    pub(super) tensors: Vec<Selected>,
    has_averages: bool,
}

/// A tensor of the exported file.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) num_bytes: u64,
    pub(super) source: Source,
}

/// The source of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The tensor of the state with this index.
    Saved(usize),
    /// This value as a 64-bit integer.
    Number(u64),
}

impl Selection {
    /// Selects the weights under the names of published files. If the job averages its weights, it
    /// selects the averages, which evaluations use. With `all` it selects every tensor under its
    /// full name. If there are no weights, the error lists some names.
    pub(super) fn of(table: &Table, step: u64, all: bool) -> Result<Self, String> {
        let averages = format!("optimizer.{}.", Ema::STATE);
        let views = table.views();
        let has_averages = !all && views.iter().any(|view| view.name.starts_with(&averages));
        let prefix = match (all, has_averages) {
            (true, _) => "",
            (false, true) => averages.as_str(),
            (false, false) => WEIGHTS,
        };
        let saved = |(number, view): (usize, &View)| {
            let name = view.name.strip_prefix(prefix)?;
            Some(Selected {
                name: name.to_owned(),
                dtype: view.dtype,
                shape: view.shape.clone(),
                num_bytes: view.bytes,
                source: Source::Saved(number),
            })
        };
        let mut tensors: Vec<Selected> = views.iter().enumerate().filter_map(saved).collect();
        if tensors.is_empty() {
            let names: Vec<_> = views.iter().take(3).map(|view| &*view.name).collect();
            return Err(format!(
                "{} tensors such as {}",
                views.len(),
                names.join(", ")
            ));
        }
        if !all {
            let counters = counters(&tensors, step);
            tensors.extend(counters);
        }
        // Tensors with larger elements come first, so that each tensor is aligned.
        tensors.sort_by_key(|tensor| Reverse(tensor.dtype.bitsize()));
        Ok(Self {
            tensors,
            has_averages,
        })
    }

    /// Describes the selection in the output of the command.
    pub(super) fn words(&self) -> String {
        let averages = if self.has_averages {
            " (the averages of the weights, as evaluations use them)"
        } else {
            ""
        };
        format!("{} tensors{averages}", self.tensors.len())
    }
}

/// A `num_batches_tracked` for each batch normalization, as PyTorch keeps it.
fn counters(tensors: &[Selected], step: u64) -> Vec<Selected> {
    let norms = tensors
        .iter()
        .filter_map(|it| it.name.strip_suffix(VARIANCE));
    let names = norms.map(|norm| format!("{norm}.num_batches_tracked"));
    let is_missing = |name: &String| tensors.iter().all(|tensor| tensor.name != *name);
    let counter = |name| Selected {
        name,
        dtype: Dtype::I64,
        shape: Vec::new(),
        num_bytes: 8,
        source: Source::Number(step),
    };
    names.filter(is_missing).map(counter).collect()
}

#[cfg(test)]
mod tests {
    use roundhouse_member::state::Record;

    use super::*;

    fn table(names: &[&str]) -> Table {
        let record = |name: &&str| Record {
            name: (*name).to_owned(),
            dtype: Dtype::F32,
            shape: vec![2],
            bytes: 8,
        };
        Table::from(names.iter().map(record).collect::<Vec<_>>())
    }

    fn names(table: &Table, all: bool) -> Vec<(String, Source)> {
        let selection = Selection::of(table, 7, all).unwrap();
        let tensors = selection.tensors.into_iter();
        tensors.map(|it| (it.name, it.source)).collect()
    }

    #[test]
    fn weights_have_published_names_and_averages_replace_them() {
        let plain = table(&["model.w", "model.bn.running_var", "optimizer.momentum.w"]);
        let expected = [
            ("bn.num_batches_tracked", Source::Number(7)),
            ("w", Source::Saved(0)),
            ("bn.running_var", Source::Saved(1)),
        ];
        let expected = expected.map(|(name, source)| (name.to_owned(), source));
        assert_eq!(names(&plain, false), expected);
        assert_eq!(names(&plain, true).len(), 3);
        let averaged = table(&["model.w", "optimizer.momentum.w", "optimizer.ema.w"]);
        assert_eq!(
            names(&averaged, false),
            [("w".to_owned(), Source::Saved(2))]
        );
        assert_eq!(names(&averaged, true).len(), 3);
    }

    #[test]
    fn state_without_weights_lists_its_tensors() {
        let words = Selection::of(&table(&["net.a", "net.b"]), 7, false).unwrap_err();
        assert_eq!(words, "2 tensors such as net.a, net.b");
    }
}
