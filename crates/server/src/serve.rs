//! Running the router until it is told to stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::app::{Shared, router};

/// Serves until `stop` is done. Then no connection is taken any more, streams may go on for `grace`, and what is left is cancelled.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    app: Shared,
    stop: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
) -> std::io::Result<()> {
    let (stopping, mut stopped) = tokio::sync::watch::channel(false);
    let routes = router(Arc::clone(&app));
    let begun = async move {
        stop.await;
        let _ = stopping.send(true);
    };
    let server = axum::serve(listener, routes).with_graceful_shutdown(begun);
    let deadline = async move {
        // An error means that the sender is gone, which is as good as stopped.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        tokio::time::sleep(grace).await;
    };
    let result = tokio::select! {
        result = server.into_future() => result,
        () = deadline => {
            tracing::warn!("streams were cut off after {} s", grace.as_secs());
            Ok(())
        }
    };
    let worker = Arc::clone(&app);
    // Waiting for the engine's thread would hold up this one.
    let _ = tokio::task::spawn_blocking(move || worker.worker.stop()).await;
    result
}
