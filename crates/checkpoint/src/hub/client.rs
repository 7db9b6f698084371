//! Requests: redirects, the token, what statuses mean, and trying again.

use std::io::Read;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use ureq::http::HeaderMap;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use super::error::HubError;
use super::url::{Url, segment, segments};
use super::{Event, HubOptions, Observer, Token, tree};
use crate::fields::short;
use crate::store::{ManifestFile, RepoId, http_date, is_commit, printable};

/// Most redirects followed for one request.
const MAX_REDIRECTS: usize = 8;

/// Largest JSON answer read.
const MAX_JSON_BYTES: u64 = 16 << 20;

/// Most pages of a listing.
const MAX_PAGES: usize = 1000;

/// The hub, as it is reached.
pub struct Hub {
    agent: Agent,
    https_proxy: Option<Proxy>,
    http_proxy: Option<Proxy>,
    endpoint: Url,
    token: Option<Token>,
    pub(super) retry: super::Retry,
}

/// What a request is for; decides what a refusal means.
#[derive(Clone, Copy)]
pub(super) enum Subject<'a> {
    Revision(&'a RepoId, &'a str),
    File(&'a RepoId, &'a str),
}

impl<'a> Subject<'a> {
    fn repo(self) -> &'a RepoId {
        match self {
            Subject::Revision(repo, _) | Subject::File(repo, _) => repo,
        }
    }
}

/// An answer with a status of success.
pub(super) struct Answer {
    /// 200 or 206, or 416 where a range was asked for.
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// Where it came from at last.
    pub(super) url: Url,
    /// Headers of the hub's own answer, before it sent us elsewhere.
    pub(super) hub_headers: HeaderMap,
}

/// A failed attempt.
pub(super) enum Failure {
    /// Trying again does not help.
    Final(Box<HubError>),
    /// It may; after this wait if the server named one.
    Passing(Box<HubError>, Option<Duration>),
}

impl Failure {
    pub(super) fn passing(error: HubError) -> Self {
        Failure::Passing(Box::new(error), None)
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Failure::Final(Box::new(error))
    }
}

impl Hub {
    /// Checks the options; sends nothing.
    ///
    /// # Errors
    /// An endpoint, proxy, token or certificate file that cannot be used.
    pub fn new(options: &HubOptions) -> Result<Self, HubError> {
        let option = |name, problem: String| HubError::Option { name, problem };
        let endpoint = Url::parse(&options.endpoint).map_err(|problem| {
            option("HF_ENDPOINT", format!("not an address of a hub: {problem}; expected https://HOST"))
        })?;
        if endpoint.has_query() {
            return Err(option("HF_ENDPOINT", "an address without a query expected".into()));
        }
        if options.token.as_ref().is_some_and(|token| !token.reveal().bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(option("token", "holds characters no access token has (spaces, control or non-ASCII)".into()));
        }
        let mut tls = TlsConfig::builder();
        if let Some(file) = &options.certificates {
            let problem = |problem: &str| option("certificates", format!("{}: {problem}", file.display()));
            let pem = std::fs::read(file).map_err(|error| problem(&error.to_string()))?;
            let mut certificates: Vec<Certificate<'static>> = Vec::new();
            for item in ureq::tls::parse_pem(&pem) {
                if let PemItem::Certificate(certificate) = item.map_err(|_| problem("not a PEM file"))? {
                    certificates.push(certificate);
                }
            }
            if certificates.is_empty() {
                return Err(problem("no certificates in it, expected PEM"));
            }
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // Ours, below: the token must not travel, and a downgrade must not pass.
            .max_redirects(0)
            .proxy(None)
            .tls_config(tls.build())
            .user_agent(concat!("mlxcel/", env!("CARGO_PKG_VERSION")))
            // Ranges and hashes are of the bytes as they lie there.
            .accept_encoding("identity")
            .timeout_resolve(Some(options.timeout))
            .timeout_connect(Some(options.timeout))
            .timeout_recv_response(Some(2 * options.timeout))
            .timeout_per_read(Some(options.timeout))
            .timeout_per_write(Some(options.timeout))
            .build()
            .into();
        Ok(Self {
            agent,
            https_proxy: proxy("HTTPS_PROXY", options.https_proxy.as_deref(), &options.no_proxy)?,
            http_proxy: proxy("HTTP_PROXY", options.http_proxy.as_deref(), &options.no_proxy)?,
            endpoint,
            token: options.token.clone(),
            retry: options.retry,
        })
    }

    /// The hub's address.
    pub fn endpoint(&self) -> String {
        format!("{}{}", self.endpoint.origin(), self.endpoint.base_path())
    }

    /// The commit that a branch, a tag or a commit is now.
    ///
    /// # Errors
    /// No such repository or revision, no access, or no usable answer after several attempts.
    pub fn commit(&self, repo: &RepoId, revision: &str, observer: &mut Observer<'_>) -> Result<String, HubError> {
        let url = self.url(&format!("/api/models/{repo}/revision/{}", segment(revision)))?;
        let (value, _) = self.json(&url, Subject::Revision(repo, revision), observer, |bytes| {
            serde_json::from_slice::<Value>(bytes).map_err(|error| format!("invalid JSON: {error}"))
        })?;
        let sha = value.get("sha");
        sha.and_then(Value::as_str).filter(|sha| is_commit(sha)).map(str::to_string).ok_or_else(|| HubError::Answer {
            url: url.to_string(),
            problem: format!("field sha is {}, expected a commit", sha.map_or("absent".into(), short)),
        })
    }

    /// All files of a commit.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn files(
        &self,
        repo: &RepoId,
        commit: &str,
        observer: &mut Observer<'_>,
    ) -> Result<Vec<ManifestFile>, HubError> {
        let mut url = self.url(&format!("/api/models/{repo}/tree/{commit}?recursive=true"))?;
        let mut files = Vec::new();
        for _ in 0..MAX_PAGES {
            let answer = |problem| HubError::Answer { url: url.to_string(), problem };
            let (page, next) = self.json(&url, Subject::Revision(repo, commit), observer, tree::parse_tree)?;
            files.extend(page);
            if files.len() > tree::MAX_FILES {
                return Err(answer(format!("lists more than {} files", tree::MAX_FILES)));
            }
            let Some(next) = next else { return Ok(files) };
            let next = url.join(&next).map_err(|problem| answer(format!("the next page is no address: {problem}")))?;
            if !next.same_origin(&self.endpoint) {
                return Err(answer(format!("the next page is on another host, {}", next.origin())));
            }
            url = next;
        }
        Err(HubError::Answer { url: url.to_string(), problem: format!("more than {MAX_PAGES} pages") })
    }

    /// Asks for a file from an offset on, once.
    pub(super) fn open(&self, repo: &RepoId, commit: &str, path: &str, from: u64) -> Result<Answer, Failure> {
        let url = self.url(&format!("/{repo}/resolve/{commit}/{}", segments(path)))?;
        self.send(&url, Subject::File(repo, path), (from > 0).then_some(from))
    }

    fn url(&self, path: &str) -> Result<Url, HubError> {
        let url = format!("{}{path}", self.endpoint());
        Url::parse(&url).map_err(|problem| HubError::Answer { url, problem: problem.into() })
    }

    /// A JSON answer and the address of the page after it; tries again where that may help.
    fn json<T>(
        &self,
        url: &Url,
        subject: Subject<'_>,
        observer: &mut Observer<'_>,
        parse: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<(T, Option<String>), HubError> {
        let once = || -> Result<(T, Option<String>), Failure> {
            let answer = self.send(url, subject, None)?;
            let at = answer.url.to_string();
            let links = answer.headers.get_all("link").iter().filter_map(|link| link.to_str().ok());
            let next = links.filter_map(tree::next_link).next().map(str::to_string);
            let mut bytes = Vec::new();
            let mut reader = answer.body.into_with_config().limit(u64::MAX).reader().take(MAX_JSON_BYTES + 1);
            if let Err(error) = reader.read_to_end(&mut bytes) {
                return Err(Failure::passing(HubError::Connection { url: at, problem: error.to_string() }));
            }
            let problem = if bytes.len() as u64 > MAX_JSON_BYTES {
                format!("the answer is larger than {MAX_JSON_BYTES} bytes")
            } else {
                match parse(&bytes) {
                    Ok(value) => return Ok((value, next)),
                    Err(problem) => format!("expected the hub's JSON; {problem} (is HF_ENDPOINT a hub?)"),
                }
            };
            Err(HubError::Answer { url: at, problem }.into())
        };
        let mut attempt = 1;
        loop {
            match once() {
                Ok(value) => return Ok(value),
                Err(failure) => self.wait(failure, &mut attempt, observer)?,
            }
        }
    }

    /// After a failed attempt: waits until the next, or gives up.
    pub(super) fn wait(
        &self,
        failure: Failure,
        attempt: &mut u32,
        observer: &mut Observer<'_>,
    ) -> Result<(), HubError> {
        let (error, asked) = match failure {
            Failure::Final(error) => return Err(*error),
            Failure::Passing(error, _) if *attempt >= self.retry.attempts => return Err(*error),
            Failure::Passing(error, asked) => (error, asked),
        };
        if let Some(wait) = asked.filter(|wait| *wait > self.retry.patience) {
            return Err(match *error {
                HubError::Status { url, status, .. } => HubError::Wait { url, status, wait },
                other => other,
            });
        }
        let doubled = self.retry.first.saturating_mul(1 << (*attempt - 1).min(16)).min(self.retry.longest);
        let wait = asked.map_or(doubled, |asked| asked.max(doubled));
        observer(Event::Retry { problem: &error, wait });
        std::thread::sleep(wait);
        *attempt += 1;
        Ok(())
    }

    /// One request, through its redirects.
    fn send(&self, url: &Url, subject: Subject<'_>, from: Option<u64>) -> Result<Answer, Failure> {
        let mut url = url.clone();
        let mut hub_headers = HeaderMap::new();
        for _ in 0..=MAX_REDIRECTS {
            let at_hub = url.same_origin(&self.endpoint);
            let connection = |problem: String| HubError::Connection { url: url.to_string(), problem };
            let proxy = if url.is_https() { &self.https_proxy } else { &self.http_proxy };
            let mut request = self.agent.get(url.whole()).config().proxy(proxy.clone()).build();
            if let Some(token) = self.token.as_ref().filter(|_| at_hub) {
                request = request.header("authorization", format!("Bearer {}", token.reveal()));
            }
            if let Some(from) = from {
                request = request.header("range", format!("bytes={from}-"));
            }
            let response = request.call().map_err(|error| transport(error, connection))?;
            let (parts, body) = response.into_parts();
            let status = parts.status.as_u16();
            if at_hub && !parts.headers.is_empty() {
                for (name, value) in &parts.headers {
                    hub_headers.insert(name, value.clone());
                }
            }
            match status {
                301 | 302 | 303 | 307 | 308 => {
                    let answer = |problem: String| HubError::Answer { url: url.to_string(), problem };
                    let location = parts.headers.get("location").and_then(|location| location.to_str().ok());
                    let location =
                        location.ok_or_else(|| answer(format!("redirects ({status}) without a Location")))?;
                    let next = url.join(location);
                    let next = next.map_err(|problem| answer(format!("redirects to no usable address: {problem}")))?;
                    if url.is_https() && !next.is_https() {
                        return Err(answer(format!("redirects from https to plain {next}; refused")).into());
                    }
                    url = next;
                }
                200 | 206 => return Ok(Answer { status, headers: parts.headers, body, url, hub_headers }),
                416 if from.is_some() => return Ok(Answer { status, headers: parts.headers, body, url, hub_headers }),
                _ => return Err(self.refusal(status, &parts.headers, &url, subject)),
            }
        }
        let problem = format!("redirects more than {MAX_REDIRECTS} times");
        Err(HubError::Answer { url: url.to_string(), problem }.into())
    }

    /// What a status of failure means.
    fn refusal(&self, status: u16, headers: &HeaderMap, url: &Url, subject: Subject<'_>) -> Failure {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(printable);
        let message = text("x-error-message").filter(|message| !message.is_empty());
        let message = message.map_or(String::new(), |message| format!(": {message}"));
        let plain = HubError::Status { url: url.to_string(), status, message };
        if matches!(status, 408 | 425 | 429 | 500..=599) {
            return Failure::Passing(Box::new(plain), text("retry-after").and_then(|after| retry_after(&after)));
        }
        // Elsewhere a signed address may have expired; the hub gives a new one.
        if !url.same_origin(&self.endpoint) {
            return Failure::passing(plain);
        }
        let (repo, endpoint) = (subject.repo().to_string(), self.endpoint());
        let has_token = self.token.is_some();
        Failure::from(match (status, text("x-error-code").as_deref()) {
            (401 | 403, Some("GatedRepo")) => HubError::Gated {
                repo,
                endpoint,
                what: if has_token {
                    "pull again (the account of the token given has no access yet)"
                } else {
                    "set HF_TOKEN to an access token of the account that did"
                },
            },
            // The hub does not tell apart what does not exist and what must not be seen.
            (401 | 403 | 404, Some("RepoNotFound")) => HubError::NoRepository {
                repo,
                endpoint,
                hint: if has_token {
                    ", or the token given has no access to it; check the spelling of OWNER/NAME"
                } else {
                    "; check the spelling of OWNER/NAME, or, if it is private, set HF_TOKEN"
                },
            },
            (401, _) if has_token => HubError::Token { endpoint },
            (401 | 403, _) => HubError::NoRepository {
                repo,
                endpoint,
                hint: ", or access to it is restricted; if so, accept its conditions there and set HF_TOKEN",
            },
            (404, code) => match subject {
                Subject::File(_, path) if code != Some("RevisionNotFound") => {
                    HubError::NoFile { repo, path: path.into() }
                }
                Subject::Revision(_, revision) if code == Some("RevisionNotFound") => {
                    HubError::NoRevision { repo, revision: revision.into() }
                }
                _ => HubError::NoRepository { repo, endpoint, hint: ", or it has no such revision" },
            },
            _ => plain,
        })
    }
}

/// A proxy by its URL. Messages do not repeat it: it may hold a password.
fn proxy(name: &'static str, url: Option<&str>, except: &[String]) -> Result<Option<Proxy>, HubError> {
    let Some(url) = url else { return Ok(None) };
    let error = |_| HubError::Option { name, problem: "not the address of a proxy; expected http://HOST:PORT".into() };
    let parsed = Proxy::new(url).map_err(error)?;
    let mut builder = Proxy::builder(parsed.protocol()).host(parsed.host()).port(parsed.port());
    if let Some(username) = parsed.username() {
        builder = builder.username(username);
    }
    if let Some(password) = parsed.password() {
        builder = builder.password(password);
    }
    let builder = except.iter().fold(builder, |builder, host| builder.no_proxy(host));
    builder.build().map(Some).map_err(error)
}

/// A request without an answer: worth another attempt, or not.
fn transport(error: ureq::Error, connection: impl Fn(String) -> HubError) -> Failure {
    let passing = matches!(
        error,
        ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Protocol(_)
    );
    let text = error.to_string();
    // A wrong certificate comes as an error of input and output; it will be wrong again.
    let certificate = text.contains("certificate");
    let hint =
        if certificate { " (behind an inspecting proxy, SSL_CERT_FILE names the certificates to trust)" } else { "" };
    let failed = connection(format!("{text}{hint}"));
    if passing && !certificate { Failure::passing(failed) } else { failed.into() }
}

/// Seconds, or a date from which seconds follow.
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let then = Duration::from_secs(u64::try_from(http_date(text)?).ok()?);
    Some(then.saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let far = retry_after("Sun, 06 Nov 2094 08:49:37 GMT").expect("a date");
        assert!(far > Duration::from_secs(86_400 * 365 * 60));
        assert_eq!(retry_after("soon"), None);
        assert_eq!(retry_after("-1"), None);
    }

    #[test]
    fn options_are_checked_and_secrets_kept() {
        let refuses = |options: HubOptions, words: &[&str]| {
            let message = Hub::new(&options).err().expect("refused").to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
            assert!(!message.contains("sesame"), "{message}");
        };
        let options = HubOptions::default();
        refuses(HubOptions { endpoint: "huggingface.co".into(), ..options.clone() }, &["HF_ENDPOINT", "https://HOST"]);
        refuses(HubOptions { endpoint: "https://u:sesame@h".into(), ..options.clone() }, &["HF_ENDPOINT", "user name"]);
        refuses(HubOptions { token: Token::new("open sesame"), ..options.clone() }, &["token"]);
        refuses(HubOptions { https_proxy: Some("http://u:sesame@".into()), ..options.clone() }, &["HTTPS_PROXY"]);
        let file = tempfile::NamedTempFile::new().expect("file");
        refuses(HubOptions { certificates: Some(file.path().into()), ..options.clone() }, &["certificates", "PEM"]);
        refuses(HubOptions { certificates: Some("/no/such".into()), ..options }, &["certificates", "/no/such"]);
        assert_eq!(format!("{:?}", Token::new(" sesame\n")), "Some(Token(…))");
        assert_eq!(Token::new(" \n"), None);
    }
}
