//! Running the router until it is told to stop: which connections are taken, and how long they may wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mlxcel_protocol::{ApiError, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::{Options, Shared, router};
use crate::patient::Patient;

/// Connections beyond the most that are told so at the same time; further ones are closed without a word.
const TURNED_AWAY: usize = 64;
/// How long such a one has for its answer.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long no connection is taken after the system refused one, for want of file descriptors as a rule.
const OUT_OF_FILES: Duration = Duration::from_millis(500);

/// The client's address, in every request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// Serves until `stop` is done. Then no connection is taken any more, streams may go on for `grace`, and what is left is cancelled.
///
/// # Errors
/// None yet: whatever the listener says, it is asked again.
pub async fn serve(
    listener: TcpListener,
    app: Shared,
    stop: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
) -> std::io::Result<()> {
    let (stopping, stopped) = watch::channel(false);
    let mut connections = accept(listener, &app, stop, stopped).await;
    let _ = stopping.send(true);
    let ended = tokio::time::timeout(grace, async { while connections.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        tracing::warn!("streams were cut off after {} s", grace.as_secs());
        connections.shutdown().await;
    }
    let worker = Arc::clone(&app);
    // Waiting for the engine's thread would hold up this one.
    let _ = tokio::task::spawn_blocking(move || worker.worker.stop()).await;
    Ok(())
}

/// Takes connections until `stop` is done; those that are still open.
async fn accept(
    listener: TcpListener,
    app: &Shared,
    stop: impl Future<Output = ()>,
    stopped: watch::Receiver<bool>,
) -> JoinSet<()> {
    let (routes, most) = (router(Arc::clone(app)), app.options.max_connections);
    let room = Arc::new(Semaphore::new(most));
    let (mut connections, mut turned_away) = (JoinSet::new(), JoinSet::new());
    let full: Arc<str> = full(most).into();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => return connections,
            Some(_) = connections.join_next() => continue,
            Some(_) = turned_away.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_the_clients(&error) => continue,
            Err(error) => {
                tracing::warn!("no connection can be taken: {error}");
                tokio::select! {
                    () = &mut stop => return connections,
                    () = tokio::time::sleep(OUT_OF_FILES) => continue,
                }
            }
        };
        match Arc::clone(&room).try_acquire_owned() {
            Ok(permit) => {
                let connection = Connection { stream, peer, permit };
                connections.spawn(connection.serve(routes.clone(), app.options.clone(), stopped.clone()));
            }
            // Waiting in the system's queue would look like a server that hangs; an answer can be acted upon.
            Err(_) if turned_away.len() < TURNED_AWAY => {
                turned_away.spawn(turn_away(stream, Arc::clone(&full)));
            }
            Err(_) => drop(stream),
        }
    }
}

/// Whether a failed `accept` is about one connection alone.
fn is_the_clients(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A connection that was taken.
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    /// Its place among the most that may be open.
    permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(self, routes: Router, options: Options, mut stopped: watch::Receiver<bool>) {
        // Tokens are small and wanted at once. A socket that is gone already fails elsewhere.
        let _ = self.stream.set_nodelay(true);
        let (peer, routes) = (self.peer, TowerToHyperService::new(routes));
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            routes.call(request)
        });
        let io = TokioIo::new(Patient::new(self.stream, options.write_timeout));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(options.idle_timeout);
        let connection = http.serve_connection(io, service);
        tokio::pin!(connection);
        let mut told = false;
        loop {
            tokio::select! {
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%peer, "connection: {error}");
                    }
                    break;
                }
                _ = stopped.wait_for(|stopped| *stopped), if !told => {
                    told = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
        drop(self.permit);
    }
}

/// The answer to a connection beyond the most.
fn full(most: usize) -> String {
    let message = format!("{most} connections are open, as many as --max-connections allows; try again later");
    // Strings alone: nothing in them that JSON could not hold.
    let body = serde_json::to_string(&ApiError::new(ErrorKind::Overloaded, message).openai()).unwrap_or_default();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Answers before any question was read. What the client sends is read and thrown away: closed with bytes unread, a connection is
/// reset, and the answer may be lost.
async fn turn_away(mut stream: TcpStream, answer: Arc<str>) {
    let said = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        let mut rest = [0; 4096];
        while stream.read(&mut rest).await? > 0 {}
        Ok::<(), std::io::Error>(())
    };
    // A client that is gone, or never stops: nothing more is owed to it.
    let _ = tokio::time::timeout(FAREWELL, said).await;
}
