//! Streams of server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use mlxcel_protocol::sse::KEEP_ALIVE;
use tokio::sync::mpsc;

/// Events that may wait for a slow client; beyond, the answer waits.
const WAITING: usize = 64;

/// How long a stream is silent before a comment shows that it lives.
const SILENCE: Duration = Duration::from_secs(15);

/// The writing end of a stream.
pub struct Events {
    sender: mpsc::Sender<String>,
}

/// The client is gone.
pub struct Gone;

impl Events {
    /// Sends an event as text.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn send(&self, event: String) -> Result<(), Gone> {
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

/// A response whose events `write` sends. It runs as a task of its own and ends early when the client goes away.
pub fn stream<W, F>(write: W) -> Response
where
    W: FnOnce(Events) -> F,
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(write(Events { sender }));
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
