//! Around every route: a name and a record for the request, and an answer whatever happens in the route.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::FutureExt as _;
use http_body::{Frame, SizeHint};
use mlxcel_protocol::{ApiError, ErrorKind};

use crate::app::{Shared, dialect};
use crate::exchange::{Fault, Record, within};

/// The middleware.
pub async fn guarded(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let record = Record::begin(&request, &app.options);
    let dialect = dialect(request.uri().path());
    let fault = record.fault;
    let work = async move {
        assert!(fault != Some(Fault::Route), "a fault that was asked for");
        next.run(request).await
    };
    let answered = async move {
        // Within the record, so that the log says whose panic it was.
        AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| dialect.response(&panicked(&*panic)))
    };
    let mut response = within(Arc::clone(&record), answered).await;
    record.answered(response.status());
    if let Ok(id) = HeaderValue::from_str(&record.id()) {
        response.headers_mut().insert("x-request-id", id);
    }
    response.map(|body| Body::new(Held { body, _record: record }))
}

/// What the client is told of a panic; the log is told what it said.
pub fn panicked(panic: &(dyn Any + Send)) -> ApiError {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!("a request panicked: {}", said.unwrap_or("it said nothing"));
    ApiError::new(ErrorKind::Internal, "the server failed on this request; its log says more")
}

/// A body that keeps the record of its exchange until it has been sent, or given up.
struct Held {
    body: Body,
    _record: Arc<Record>,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
