//! A file as the body of an answer, read in pieces as the client receives it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::fs::File;
use tokio::io::{AsyncRead, ReadBuf};

/// Maximum number of bytes of a file in memory per client.
const PIECE: usize = 64 << 10;

/// The stream of a file's bytes.
#[derive(Debug)]
pub(super) struct Pieces {
    file: File,
    num_left: u64,
    buffer: Vec<u8>,
}

impl Pieces {
    /// # Errors
    /// Returns an error if the size of the file cannot be read.
    pub(super) async fn of(mut file: File) -> io::Result<Self> {
        file.set_max_buf_size(PIECE);
        let num_left = file.metadata().await?.len();
        Ok(Self {
            file,
            num_left,
            buffer: vec![0; PIECE],
        })
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Self {
            file,
            num_left,
            buffer,
        } = &mut *self;
        if *num_left == 0 {
            return Poll::Ready(None);
        }
        let mut read = ReadBuf::new(buffer);
        ready!(Pin::new(file).poll_read(context, &mut read))?;
        let piece = Bytes::copy_from_slice(read.filled());
        // The headers contain the length, so a file that has become shorter ends the connection.
        let num_bytes = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        let rest = num_left.checked_sub(num_bytes);
        let Some(rest) = rest.filter(|_| num_bytes > 0) else {
            return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
        };
        *num_left = rest;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.num_left)
    }
}
