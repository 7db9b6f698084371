//! The web page at `/`: files that are part of the binary.

use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use mlxcel_protocol::{ApiError, ErrorKind};

use crate::failure::Dialect;

/// Nothing of the page comes from elsewhere, and nothing it sends goes elsewhere.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const INDEX: &str = include_str!("../page/index.html");

const FILES: [(&str, &str); 17] = [
    ("api.js", include_str!("../page/api.js")),
    ("chat.css", include_str!("../page/chat.css")),
    ("compare.js", include_str!("../page/compare.js")),
    ("dom.js", include_str!("../page/dom.js")),
    ("icon.svg", include_str!("../page/icon.svg")),
    ("inline.js", include_str!("../page/inline.js")),
    ("layout.js", include_str!("../page/layout.js")),
    ("main.js", include_str!("../page/main.js")),
    ("markdown.js", include_str!("../page/markdown.js")),
    ("messages.js", include_str!("../page/messages.js")),
    ("panel.js", include_str!("../page/panel.js")),
    ("render.js", include_str!("../page/render.js")),
    ("settings.js", include_str!("../page/settings.js")),
    ("sse.js", include_str!("../page/sse.js")),
    ("state.js", include_str!("../page/state.js")),
    ("stats.js", include_str!("../page/stats.js")),
    ("style.css", include_str!("../page/style.css")),
];

fn respond(text: &'static str, kind: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// `GET /`.
pub async fn index() -> Response {
    respond(INDEX, "text/html; charset=utf-8")
}

/// `GET /page/NAME`.
pub async fn file(Path(name): Path<String>) -> Response {
    let Some((_, text)) = FILES.iter().find(|(own, _)| *own == name) else {
        return Dialect::OpenAi.response(&ApiError::new(ErrorKind::NotFound, format!("the page has no file {name:?}")));
    };
    let kind = match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        _ => "image/svg+xml",
    };
    respond(text, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_the_page_names_is_served() {
        let all: String = std::iter::once(INDEX).chain(FILES.iter().map(|(_, text)| *text)).collect();
        for (name, text) in FILES {
            assert!(all.contains(name), "{name} is named nowhere");
            for part in text.split("from \"./").skip(1) {
                let wanted = part.split('"').next().unwrap_or_default();
                assert!(FILES.iter().any(|(own, _)| *own == wanted), "{name} wants {wanted}");
            }
        }
        for part in INDEX.split("page/").skip(1) {
            let wanted = part.split('"').next().unwrap_or_default();
            assert!(FILES.iter().any(|(own, _)| *own == wanted), "index.html wants {wanted}");
        }
    }
}
