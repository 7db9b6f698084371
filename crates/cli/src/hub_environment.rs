//! What the environment says about reaching the hub: the conventions of the hub's own tools, and those of proxies.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use mlxcel_checkpoint::hub::{HubOptions, Token};

use crate::locate::{hub_home, variable};

/// Longest token file read.
const MAX_TOKEN_BYTES: u64 = 16 << 10;

/// How the hub is reached, and whether it may be.
pub struct HubEnvironment {
    /// Address, token, proxies, certificates.
    pub options: HubOptions,
    /// True when nothing is to be sent.
    pub offline: bool,
}

impl HubEnvironment {
    /// Reads it. `docs/models.md` lists the variables.
    ///
    /// # Errors
    /// A variable that is not UTF-8 (passed over, a mirror would not be asked, and a token would go elsewhere), or a token file
    /// that cannot be read.
    pub fn read() -> Result<Self> {
        let either = |name: &str| text(name)?.map_or_else(|| text(&name.to_ascii_lowercase()), |value| Ok(Some(value)));
        let token = match text("HF_TOKEN")? {
            Some(token) => Some(token),
            None => text("HUGGING_FACE_HUB_TOKEN")?,
        };
        let token = match token {
            Some(token) => Token::new(&token),
            None => token_file()?,
        };
        let all = either("ALL_PROXY")?;
        let mut options = HubOptions {
            token,
            https_proxy: either("HTTPS_PROXY")?.or_else(|| all.clone()),
            http_proxy: either("HTTP_PROXY")?.or(all),
            no_proxy: either("NO_PROXY")?
                .iter()
                .flat_map(|hosts| hosts.split(','))
                .map(|h| h.trim().to_string())
                .collect(),
            certificates: variable("SSL_CERT_FILE").map(PathBuf::from),
            ..HubOptions::default()
        };
        if let Some(endpoint) = text("HF_ENDPOINT")? {
            options.endpoint = endpoint;
        }
        let on = |name: &str| -> Result<bool> {
            let value = text(name)?.unwrap_or_default().to_ascii_lowercase();
            Ok(matches!(value.as_str(), "1" | "on" | "yes" | "true"))
        };
        Ok(Self { options, offline: on("HF_HUB_OFFLINE")? || on("TRANSFORMERS_OFFLINE")? })
    }
}

/// A variable that is set to something. What it holds may be a secret, and is in no message.
fn text(name: &str) -> Result<Option<String>> {
    let text = variable(name).map(std::ffi::OsString::into_string).transpose();
    text.map_err(|_| anyhow!("{name}: expected text in UTF-8, found other bytes; correct or unset it"))
}

/// The token that the hub's own tools keep in a file after a login.
fn token_file() -> Result<Option<Token>> {
    let path = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(hub_home()?.join("token")));
    let Some(path) = path else { return Ok(None) };
    match read_capped(&path) {
        Ok(text) => Ok(Token::new(&text)),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("{}: the access token of the hub", path.display())),
    }
}

fn read_capped(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_TOKEN_BYTES).read_to_string(&mut text)?;
    Ok(text)
}
