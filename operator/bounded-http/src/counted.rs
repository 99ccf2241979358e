//! A stream that counts what its other end has taken.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that were written to a stream so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written(Arc<AtomicU64>);

impl Written {
    pub(crate) fn num_bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that counts what is written to it.
#[derive(Debug)]
pub(crate) struct Counted<S> {
    stream: S,
    written: Written,
}

impl<S> Counted<S> {
    pub(crate) const fn new(stream: S, written: Written) -> Self {
        Self { stream, written }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let num_bytes = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.written
            .0
            .fetch_add(num_bytes as u64, Ordering::Relaxed);
        Poll::Ready(Ok(num_bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
