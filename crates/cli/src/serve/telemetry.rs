//! `--otlp-endpoint`: what a binary with the feature `otel` does, and what one without it says.

use anyhow::Result;
use mlxcel_server::Observer;

/// OpenTelemetry's own variable, read where the flag is not given.
const STANDARD: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Where the standard variable says that spans go; `None` where it, or the whole of OpenTelemetry, is off.
fn standard() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    variable(STANDARD).filter(|_| !disabled)
}

/// The export, if there is one.
#[derive(Default)]
pub struct Telemetry {
    #[cfg(feature = "otel")]
    inner: Option<std::sync::Arc<mlxcel_server::otel::Telemetry>>,
}

/// Starts the export that the flag or the standard variable asks for.
///
/// # Errors
/// An endpoint that is none.
#[cfg(feature = "otel")]
pub fn start(flag: Option<&str>) -> Result<Telemetry> {
    use anyhow::Context;
    let (name, endpoint) = match flag {
        Some(endpoint) => ("--otlp-endpoint", Some(endpoint.to_string())),
        None => (STANDARD, standard()),
    };
    let Some(endpoint) = endpoint else { return Ok(Telemetry::default()) };
    let inner = mlxcel_server::otel::Telemetry::start(&endpoint).context(name)?;
    Ok(Telemetry { inner: Some(inner) })
}

/// Refuses the flag; the standard variable, which may be there for other programs, is only remarked upon.
///
/// # Errors
/// The flag is given.
#[cfg(not(feature = "otel"))]
pub fn start(flag: Option<&str>) -> Result<Telemetry> {
    let how = "cargo build --release -p mlxcel-cli --features otel";
    if flag.is_some() {
        anyhow::bail!("--otlp-endpoint: this binary was built without the feature otel; build one with it: {how}");
    }
    if standard().is_some() {
        tracing::warn!("{STANDARD} is set, and this binary was built without the feature otel ({how})");
    }
    Ok(Telemetry::default())
}

#[cfg(feature = "otel")]
impl Telemetry {
    /// What hears of every request.
    pub fn observer(&self) -> Option<Observer> {
        self.inner.as_ref().map(|inner| inner.observer())
    }

    /// Sends what is left.
    pub fn stop(&self) {
        if let Some(inner) = &self.inner {
            inner.stop();
        }
    }
}

#[cfg(not(feature = "otel"))]
impl Telemetry {
    /// Nobody.
    pub fn observer(&self) -> Option<Observer> {
        None
    }

    /// Nothing is left.
    pub fn stop(&self) {}
}
