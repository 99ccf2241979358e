//! The bytes of a copy between a file and a connection.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// Number of bytes of one read or write.
const CHUNK: usize = 1 << 20;

/// Bounds each read and write. Messages are small and are waited for.
pub(super) fn prepare(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

/// Opens a copy. Returns its length, too.
pub(super) fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = File::open(path)?;
    let num_bytes = file.metadata()?.len();
    Ok((file, num_bytes))
}

/// Writes bytes of a connection to a new file. They are durable when this returns.
pub(super) fn receive(
    stream: &mut TcpStream,
    path: &Path,
    num_bytes: u64,
    moves: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut file = File::create(path)?;
    copy(stream, &mut file, num_bytes, moves)?;
    file.sync_all()
}

/// Moves exactly this number of bytes. `moves` gets the number of bytes of each chunk.
pub(super) fn copy(
    from: &mut impl Read,
    to: &mut impl Write,
    num_bytes: u64,
    moves: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut left = num_bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let chunk = &mut chunk[..length];
        from.read_exact(chunk)?;
        to.write_all(chunk)?;
        moves(length as u64);
        left -= length as u64;
    }
    Ok(())
}
