//! Reads the examples and other YAML files of the repository.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

/// The path of the repository's root folder.
#[must_use]
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The documents of a YAML file, by its path from the repository's root.
///
/// # Errors
/// The file cannot be read, or is not YAML.
pub fn read(path: &str) -> anyhow::Result<Vec<Value>> {
    documents(&repository().join(path))
}

/// The documents of a YAML file.
///
/// # Errors
/// The file cannot be read, or is not YAML.
pub fn documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(name)?;
    text.trim_start_matches("---\n")
        .split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).with_context(name))
        .collect()
}
