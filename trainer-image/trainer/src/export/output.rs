//! The exported file. It has a temporary name until it is complete and durable.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use roundhouse_member::checkpoint::Manifest;
use roundhouse_member::state::Table;
use safetensors::tensor::{Metadata, TensorInfo};

use super::selection::{Selection, Source};

/// The data of a safetensors file starts at a multiple of this number of bytes.
const ALIGNMENT: usize = 8;

/// A file that is being written. Dropping it before [`Self::finish`] deletes the file.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    partial: PathBuf,
    path: PathBuf,
    table: Table,
    /// Offset in the file of each exported tensor of the state.
    starts: HashMap<usize, u64>,
    num_bytes: u64,
    is_finished: bool,
}

impl Output {
    /// Creates the file and writes everything except the tensors of the state.
    pub(super) fn create(
        path: &Path,
        selection: &Selection,
        manifest: &Manifest,
    ) -> io::Result<Self> {
        let header = header(selection, manifest)?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let mut output = Self {
            file: File::create(&partial)?,
            partial,
            path: path.to_owned(),
            table: manifest.tensors.clone(),
            starts: HashMap::new(),
            num_bytes: header.len() as u64,
            is_finished: false,
        };
        output.file.write_all_at(&header, 0)?;
        for tensor in &selection.tensors {
            let start = output.num_bytes;
            match tensor.source {
                Source::Saved(number) => {
                    output.starts.insert(number, start);
                }
                Source::Number(number) => output.file.write_all_at(&number.to_le_bytes(), start)?,
            }
            output.num_bytes += tensor.num_bytes;
        }
        output.file.set_len(output.num_bytes)?;
        Ok(output)
    }

    /// Writes the exported part of some bytes of the state.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        for piece in self.table.pieces(&(offset..offset + bytes.len() as u64)) {
            let length = usize::try_from(piece.bytes.end - piece.bytes.start);
            let (own, after) = rest.split_at(length.map_err(io::Error::other)?);
            rest = after;
            if let Some(start) = self.starts.get(&piece.tensor) {
                self.file.write_all_at(own, start + piece.bytes.start)?;
            }
        }
        Ok(())
    }

    /// Renames the file to its final name once it is durable. Returns its size in bytes.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.file.sync_all()?;
        std::fs::rename(&self.partial, &self.path)?;
        self.is_finished = true;
        Ok(self.num_bytes)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// The header of the file: its length, then JSON, then spaces up to the alignment.
fn header(selection: &Selection, manifest: &Manifest) -> io::Result<Vec<u8>> {
    let mut at = 0;
    let mut tensors = Vec::new();
    for tensor in &selection.tensors {
        let size = usize::try_from(tensor.num_bytes).map_err(io::Error::other)?;
        let info = TensorInfo {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            data_offsets: (at, at + size),
        };
        tensors.push((tensor.name.clone(), info));
        at += size;
    }
    // Transformers refuses files without a format.
    let metadata = [
        ("format", "pt".to_owned()),
        ("step", manifest.step.to_string()),
        ("generation", manifest.generation.to_string()),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value));
    let metadata = Metadata::new(Some(HashMap::from(metadata)), tensors);
    let metadata = metadata.map_err(io::Error::other)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json);
    Ok(header)
}
