//! Streams of server-sent events.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use mlxcel_protocol::sse::KEEP_ALIVE;
use tokio::sync::mpsc;

use crate::exchange::{self, Fault};
use crate::failure::Dialect;
use crate::guard::panicked;

/// Events that may wait for a slow client; beyond, the answer waits.
const WAITING: usize = 64;

/// How long a stream is silent before a comment shows that it lives.
const SILENCE: Duration = Duration::from_secs(15);

/// The writing end of a stream.
pub struct Events {
    sender: mpsc::Sender<String>,
    /// Events until the fault that was asked for.
    fuse: Option<AtomicU32>,
}

/// The client is gone.
pub struct Gone;

impl Events {
    /// Sends an event as text.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn send(&self, event: String) -> Result<(), Gone> {
        if let Some(fuse) = &self.fuse {
            assert!(fuse.fetch_sub(1, Ordering::Relaxed) > 0, "a fault that was asked for");
        }
        self.sender.send(event).await.map_err(|_| Gone)
    }

    /// Waits for something while the client listens, and keeps the stream from looking dead.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn wait<T>(&self, something: impl Future<Output = T>) -> Result<T, Gone> {
        tokio::pin!(something);
        loop {
            tokio::select! {
                biased;
                result = &mut something => return Ok(result),
                () = self.sender.closed() => return Err(Gone),
                () = tokio::time::sleep(SILENCE) => self.send(KEEP_ALIVE.into()).await?,
            }
        }
    }
}

/// A response whose events `write` sends. It runs as a task of its own and ends early when the client goes away; if it panics, the
/// stream ends with an error.
pub fn stream<W, F>(dialect: Dialect, write: W) -> Response
where
    W: FnOnce(Events) -> F,
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(WAITING);
    let record = exchange::current();
    let faulty = record.as_ref().is_some_and(|record| record.fault == Some(Fault::Stream));
    let (last, fuse) = (sender.clone(), faulty.then(|| AtomicU32::new(2)));
    let writing = AssertUnwindSafe(write(Events { sender, fuse })).catch_unwind();
    let task = async move {
        if let Err(panic) = writing.await {
            // Nobody may listen any more.
            let _ = last.send(dialect.event(&panicked(&*panic))).await;
        }
    };
    match record {
        Some(record) => {
            record.streamed();
            tokio::spawn(exchange::within(record, task));
        }
        None => drop(tokio::spawn(task)),
    }
    let events = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|event| (Ok::<_, Infallible>(event), receiver))
    });
    let mut response = Body::from_stream(events).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // A proxy that buffers would hold the answer back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
