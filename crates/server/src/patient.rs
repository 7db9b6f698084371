//! A connection that waits for its client, but not for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A stream whose writes fail when the other side takes nothing for some time.
pub struct Patient<S> {
    stream: S,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
    /// Whether the timer runs: a write waits.
    waiting: bool,
}

impl<S> Patient<S> {
    /// Waits `patience` for the other side to take a byte.
    pub fn new(stream: S, patience: Duration) -> Self {
        Patient { stream, patience, timer: Box::pin(tokio::time::sleep(patience)), waiting: false }
    }

    /// A write's result, or the end of the patience.
    fn judge<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.waiting = false;
            return result;
        }
        if !self.waiting {
            self.waiting = true;
            self.timer.as_mut().reset(Instant::now() + self.patience);
        }
        ready!(self.timer.as_mut().poll(context));
        self.waiting = false;
        let message = format!("the client took nothing for {} s", self.patience.as_secs_f32());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn a_write_that_nobody_takes_fails_in_time() {
        block_on(async {
            let (server, _client) = tokio::io::duplex(4);
            let mut server = Patient::new(server, Duration::from_millis(20));
            let error = server.write_all(b"more than four").await.expect_err("nobody reads");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        });
    }

    /// The twin: whoever reads slowly, but reads, is served to the end, however long it takes in all.
    #[test]
    fn a_slow_reader_is_waited_for() {
        block_on(async {
            let (server, mut client) = tokio::io::duplex(4);
            let mut server = Patient::new(server, Duration::from_secs(2));
            let begun = Instant::now();
            let reads = async {
                for _ in 0..6 {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    client.read_exact(&mut [0; 4]).await.expect("bytes");
                }
            };
            let (written, ()) = tokio::join!(server.write_all(&[7; 24]), reads);
            written.expect("waited for");
            assert!(begun.elapsed() > Duration::from_secs(2), "longer than the patience");
        });
    }
}
