//! One rank's part of a checkpoint: a safetensors file. A tensor that is entirely in one part has
//! its type and shape there. If ranks split a tensor, each part has plain bytes under its name, and
//! a second piece of the same tensor has its position behind the name.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use roundhouse_elastic::checkpoint::Piece;
use roundhouse_elastic::state::layout::Runs;
use roundhouse_elastic::{CheckpointId, Digest, Hasher};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};

use super::io_watch::{IoWatch, Reading};
use super::manifest::{PieceRecord, Shard};
use super::{Reason, VolumeError};
use crate::faults::{self, Point};
use crate::state::{Table, View};

/// Headers are padded to a multiple of this, so that the data is aligned.
const ALIGNMENT: usize = 8;
/// Maximum size of one piece of a part. A process that loads a checkpoint needs memory for a few
/// pieces beside its state, independent of the size of a part.
pub const PIECE_BYTES: u64 = 16 << 20;
/// Size of the number at the start of a safetensors file.
const HEADER_LENGTH_BYTES: usize = 8;
/// Maximum size of a header in the definition of the format.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// File name of a rank's part.
#[must_use]
pub fn file_name(rank: u32, world_size: u32) -> String {
    format!("shard-{rank:05}-of-{world_size:05}.safetensors")
}

/// File name of a part's record, which exists from when the part is durable until the manifest
/// contains it.
#[must_use]
pub fn record_name(rank: u32, world_size: u32) -> String {
    format!("shard-{rank:05}-of-{world_size:05}.json")
}

/// A part of a checkpoint that a rank writes.
#[derive(Clone, Copy, Debug)]
pub struct Part<'state> {
    pub id: CheckpointId,
    /// Rank that writes the part.
    pub rank: u32,
    /// Number of ranks that write.
    pub world_size: u32,
    /// All tensors of the state.
    pub table: &'state Table,
    pub pieces: &'state [PieceRecord],
    /// The bytes of the pieces, in their order.
    pub bytes: &'state [u8],
    /// Counts the progress of the write.
    pub io_watch: &'state IoWatch,
}

/// Writes a part and its record to a directory. Both are durable when this returns.
///
/// # Errors
/// [`VolumeError`] for the first operation that the volume refuses.
pub fn write(directory: &Path, part: &Part<'_>) -> Result<(), VolumeError> {
    // The path is that of all checkpoints, so that the same error is reported once and not for each
    // checkpoint.
    try_write(directory, part).map_err(VolumeError::with(directory.parent().unwrap_or(directory)))
}

fn try_write(directory: &Path, part: &Part<'_>) -> Result<(), Reason> {
    let Part {
        id,
        rank,
        world_size,
        table,
        pieces,
        bytes,
        io_watch,
    } = *part;
    faults::volume();
    std::fs::create_dir_all(directory)?;
    let shard = Shard {
        file: file_name(rank, world_size),
        sha256: Digest::of(&[bytes]),
        pieces: pieces.to_vec(),
    };
    let header = header(table, &shard.pieces)?;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    io_watch.write_durably(&directory.join(&shard.file), |file| {
        file.write_all(&header)?;
        file.write_all(first)?;
        faults::point(Point::Checkpoint, rank, id.step);
        file.write_all(second)
    })?;
    let record = serde_json::to_vec(&shard)?;
    let path = directory.join(record_name(rank, world_size));
    io_watch.write_durably(&path, |file| file.write_all(&record))?;
    Ok(())
}

/// Reads the bytes of a part in order, at most [`PIECE_BYTES`] at a time, and passes them to
/// `take` with their piece and their position in it. The checksum is verified at the end, so no
/// byte is valid before this returns.
///
/// # Errors
/// [`VolumeError`] if the part cannot be read, is not consistent, or has another checksum.
pub fn read(
    directory: &Path,
    shard: &Shard,
    io_watch: &IoWatch,
    take: impl FnMut(&PieceRecord, u64, Vec<u8>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, VolumeError> {
    // The manifest may name only a file of this directory.
    let path = directory.join(&shard.file);
    if path.parent() != Some(directory) || shard.file == ".." {
        let reason = Reason::Outside(shard.file.clone());
        return Err(VolumeError::with(directory)(reason));
    }
    try_read(&path, shard, io_watch, take).map_err(VolumeError::with(&path))
}

fn try_read(
    path: &Path,
    shard: &Shard,
    io_watch: &IoWatch,
    mut take: impl FnMut(&PieceRecord, u64, Vec<u8>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Reason> {
    let file = io_watch.open(path)?;
    let (tensors, data_start) = read_header(&file)?;
    let mut hasher = Hasher::default();
    for (piece, key) in shard.pieces.iter().zip(keys(&shard.pieces)) {
        let tensor = &piece.tensor;
        let info = tensors.info(&key);
        let info = info.ok_or_else(|| Reason::NoTensor(tensor.clone()))?;
        let (first, last) = info.data_offsets;
        let (start, last) = (data_start + first as u64, data_start + last as u64);
        if last - start != piece.num_bytes() {
            return Err(Reason::Length(tensor.clone()));
        }
        let mut at = start;
        while at < last {
            let length = PIECE_BYTES.min(last - at);
            let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
            file.read_at(at, &mut bytes)
                .map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => Reason::Length(tensor.clone()),
                    _ => error.into(),
                })?;
            hasher.update(&bytes);
            let in_piece = at - start;
            at += length;
            if take(piece, in_piece, bytes).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    if hasher.finish() != shard.sha256 {
        return Err(Reason::Checksum);
    }
    Ok(ControlFlow::Continue(()))
}

/// Reads the header of a safetensors file. Also returns the position of its data.
fn read_header(file: &Reading<'_>) -> Result<(Metadata, u64), Reason> {
    let mut length = [0; HEADER_LENGTH_BYTES];
    file.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(SafeTensorError::HeaderTooLarge.into());
    }
    let mut json = vec![0; usize::try_from(length).unwrap_or_default()];
    let start = HEADER_LENGTH_BYTES as u64;
    file.read_at(start, &mut json)?;
    Ok((serde_json::from_slice(&json)?, start + length))
}

/// The names of pieces in a file, where each name occurs once.
fn keys(pieces: &[PieceRecord]) -> impl Iterator<Item = String> {
    let mut known = HashSet::new();
    pieces.iter().map(move |piece| {
        if known.insert(piece.tensor.as_str()) {
            piece.tensor.clone()
        } else {
            format!("{}@{}", piece.tensor, piece.start)
        }
    })
}

/// Pieces of a rank's part, if each rank has the whole state.
#[must_use]
pub fn records(table: &Table, rank: u32, world_size: u32) -> Vec<PieceRecord> {
    let record = |Piece { tensor, bytes }: Piece| {
        PieceRecord::new(table.views()[tensor].name.clone(), Runs::one(&bytes))
    };
    let pieces = roundhouse_elastic::checkpoint::pieces(&table.sizes(), rank, world_size);
    pieces.into_iter().map(record).collect()
}

/// Size of a part's complete file.
///
/// # Errors
/// [`Reason::NoTensor`] if the part names a tensor that the table lacks, [`Reason::Length`] if a
/// piece is too large.
pub fn file_size(table: &Table, shard: &Shard) -> Result<u64, Reason> {
    let pieces = shard.pieces.iter();
    let data = pieces.fold(0_u64, |sum, piece| sum.saturating_add(piece.num_bytes()));
    let header = header(table, &shard.pieces)?.len() as u64;
    Ok(header.saturating_add(data))
}

/// Builds the header of a safetensors file: its length, then JSON, then spaces up to the alignment.
fn header(table: &Table, pieces: &[PieceRecord]) -> Result<Vec<u8>, Reason> {
    let mut at = 0;
    let mut tensors = Vec::new();
    let views: HashMap<_, _> = table
        .views()
        .iter()
        .map(|view| (view.name.as_str(), view))
        .collect();
    for (piece, key) in pieces.iter().zip(keys(pieces)) {
        let view = views.get(piece.tensor.as_str());
        let view = view.ok_or_else(|| Reason::NoTensor(piece.tensor.clone()))?;
        let size = usize::try_from(piece.num_bytes());
        let size = size.map_err(|_| Reason::Length(piece.tensor.clone()))?;
        tensors.push((key, info(view, piece, at, size)));
        at = at
            .checked_add(size)
            .ok_or_else(|| Reason::Length(piece.tensor.clone()))?;
    }
    let metadata = Metadata::new(None, tensors)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json);
    Ok(header)
}

fn info(view: &View, piece: &PieceRecord, at: usize, size: usize) -> TensorInfo {
    let is_whole = (piece.start, piece.end, piece.count) == (0, view.bytes, 1);
    TensorInfo {
        dtype: if is_whole { view.dtype } else { Dtype::U8 },
        shape: if is_whole {
            view.shape.clone()
        } else {
            vec![size]
        },
        data_offsets: (at, at + size),
    }
}

#[cfg(test)]
mod tests;
