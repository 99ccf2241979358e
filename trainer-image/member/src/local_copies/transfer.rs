//! The bytes of a copy between a file and a connection.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// Number of bytes of one read and write. The processor's cache still has them for the write.
const CHUNK: usize = 1 << 17;

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
    let mut chunk = vec![0; CHUNK];
    let mut left = num_bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let chunk = &mut chunk[..length];
        stream.read_exact(chunk)?;
        file.write_all(chunk)?;
        moves(length as u64);
        left -= length as u64;
    }
    file.sync_all()
}

/// Sends exactly this number of bytes of a file. On Linux the kernel moves them, if it can.
pub(super) fn send(file: &File, stream: &mut TcpStream, num_bytes: u64) -> io::Result<()> {
    let mut file = file;
    loop {
        // An error says nothing about the bytes that were sent before it.
        let left = num_bytes.saturating_sub(file.stream_position()?);
        if left == 0 {
            return Ok(());
        }
        match io::copy(&mut file.take(left), stream) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            // The socket has a timeout, so the kernel does not restart an interrupted call.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
