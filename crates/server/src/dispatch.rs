//! What all routes that generate have in common.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use mlxcel_protocol::{ApiError, Request};

use crate::app::{Shared, body};
use crate::exchange;
use crate::facts::Facts;
use crate::failure::Dialect;

/// Reads a request, sees that it means the model that is served (`model` tells which it asks for), and answers it or says in its
/// dialect why not.
pub async fn dispatch<R: Request, F: Future<Output = Result<Response, ApiError>>>(
    app: Shared,
    incoming: Body,
    dialect: Dialect,
    model: fn(&R) -> Option<&str>,
    answer: fn(Shared, Arc<Facts>, R) -> F,
) -> Response {
    let answered = async {
        let wanted = R::from_bytes(&body(&app, incoming).await?)?;
        let facts = app.facts()?;
        check_model(model(&wanted), &facts)?;
        answer(Arc::clone(&app), facts, wanted).await
    };
    answered.await.unwrap_or_else(|error| dialect.response(&error))
}

/// Refuses another model than the one that is served.
///
/// # Errors
/// 404.
pub fn check_model(asked: Option<&str>, facts: &Facts) -> Result<(), ApiError> {
    match asked {
        Some(name) if !facts.is_called(name) => {
            let served: Vec<&str> = facts.names.iter().map(String::as_str).collect();
            Err(ApiError::model_not_found(name, &served))
        }
        _ => {
            // Only names that are served: what is counted by name must not grow with what clients think up.
            if let Some(record) = exchange::current() {
                record.model(asked, facts.name());
            }
            Ok(())
        }
    }
}
