//! A hub on this machine, and the content network it sends to: two listeners on 127.0.0.1 that speak just enough HTTP/1.1, do
//! wrong what they are told to, and remember every request.

// Each test binary uses a part of it.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mlxcel_checkpoint::hub::digest_of;
use mlxcel_checkpoint::store::Digest;
use serde_json::{Value, json};

/// Longest that anything here waits.
const PATIENCE: Duration = Duration::from_secs(30);

/// What goes wrong, once.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status with these headers and no body.
    Status(u16, Vec<(&'static str, String)>),
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// Nothing more comes after so many bytes of the body, until the client goes.
    Hang(usize),
    /// The range asked for is not heard.
    Whole,
    /// This byte of the file has another bit.
    Flip(usize),
    /// A part that begins elsewhere.
    WrongRange,
    /// The file without its last bytes, as if that were all of it.
    Short(usize),
    /// The file with more at its end; in chunks, so that no length is announced.
    Long(usize),
    /// These headers in place of the usual.
    Headers(Vec<(&'static str, String)>),
    /// A redirect to here.
    Redirect(String),
    /// 200 with this body.
    Body(String),
    /// 200 with so many bytes of JSON white space.
    Huge(usize),
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// To the content network.
    pub cdn: bool,
    pub target: String,
    pub authorization: Option<String>,
    pub range: Option<String>,
    pub user_agent: Option<String>,
    /// Bytes of the body that went out.
    pub sent: usize,
}

#[derive(Default)]
struct State {
    /// The listing as it is served, else the true one.
    listing: Option<Value>,
    commit: String,
    /// Path to content, and whether it is large.
    files: BTreeMap<String, (Vec<u8>, bool)>,
    faults: HashMap<String, VecDeque<Fault>>,
    page: usize,
    seen: Vec<Seen>,
}

/// The two servers. They stop when dropped.
pub struct FakeHub {
    pub url: String,
    pub cdn: String,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
}

/// The commit with this digit.
pub fn commit(digit: char) -> String {
    digit.to_string().repeat(40)
}

/// Bytes that compress badly and repeat nowhere.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

impl FakeHub {
    /// Serves the repository `o/n` at commit `1…`, with these files: path, content, large.
    pub fn start(files: &[(&str, Vec<u8>, bool)]) -> Self {
        let state = Arc::new(Mutex::new(State { page: 1000, ..State::default() }));
        let stop = Arc::new(AtomicBool::new(false));
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (hub, cdn) = (listen(), listen());
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().expect("address"));
        let (url, cdn_url) = (address(&hub), address(&cdn));
        for (listener, is_cdn) in [(hub, false), (cdn, true)] {
            let (state, stop, other) = (state.clone(), stop.clone(), cdn_url.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let (Ok(stream), state, other) = (stream, state.clone(), other.clone()) else { continue };
                    std::thread::spawn(move || {
                        let _ = converse(stream, is_cdn, &state, &other);
                    });
                }
            });
        }
        let hub = Self { url, cdn: cdn_url, state, stop };
        hub.publish('1', files);
        hub
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panics")
    }

    /// A new commit with these files and no others.
    pub fn publish(&self, digit: char, files: &[(&str, Vec<u8>, bool)]) {
        let mut state = self.state();
        state.commit = commit(digit);
        state.files = files.iter().map(|(path, bytes, lfs)| (path.to_string(), (bytes.clone(), *lfs))).collect();
    }

    /// What goes wrong at a place, in this order, once each: `revision`, `tree`, `resolve:PATH` (the hub's answer) or
    /// `content:PATH` (the file itself, wherever it comes from).
    pub fn faults(&self, place: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.entry(place.into()).or_default().extend(faults);
    }

    /// Serves this listing instead of the true one.
    pub fn lie(&self, listing: Value) {
        self.state().listing = Some(listing);
    }

    /// Entries of a page of the listing.
    pub fn page(&self, entries: usize) {
        self.state().page = entries;
    }

    /// The requests since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state().seen)
    }

    /// The true listing.
    pub fn listing(&self) -> Vec<Value> {
        listing(&self.state())
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for url in [&self.url, &self.cdn] {
            let _ = TcpStream::connect(url.trim_start_matches("http://"));
        }
    }
}

fn listing(state: &State) -> Vec<Value> {
    let mut entries = vec![json!({"type": "directory", "oid": "0".repeat(40), "size": 0, "path": "original"})];
    entries.extend(state.files.iter().map(|(path, (bytes, lfs))| {
        let git = hex(&digest_of(bytes, false));
        let mut entry = json!({"type": "file", "oid": git, "size": bytes.len(), "path": path});
        if *lfs {
            let oid = hex(&digest_of(bytes, true));
            entry["lfs"] = json!({"oid": oid, "size": bytes.len(), "pointerSize": 134});
        }
        entry
    }));
    entries
}

fn hex(digest: &Digest) -> String {
    digest.to_string().rsplit(':').next().expect("digits").to_string()
}

/// Answers the requests of a connection until one side ends it.
fn converse(stream: TcpStream, cdn: bool, state: &Mutex<State>, cdn_url: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        (&mut reader).take(16 << 10).read_line(&mut line)?;
        let Some(target) = line.split(' ').nth(1).map(str::to_string) else { return Ok(()) };
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            (&mut reader).take(16 << 10).read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_string());
        }
        let header = |name: &str| headers.get(name).cloned();
        let seen = Seen {
            cdn,
            target: target.clone(),
            authorization: header("authorization"),
            range: header("range"),
            user_agent: header("user-agent"),
            sent: 0,
        };
        let range = header("range");
        let index = {
            let mut state = state.lock().expect("no panics");
            state.seen.push(seen);
            state.seen.len() - 1
        };
        let answer = answer(&mut state.lock().expect("no panics"), &target, range.as_deref(), cdn, cdn_url);
        let sent = answer.send(&mut stream)?;
        if let Some(seen) = state.lock().expect("no panics").seen.get_mut(index) {
            seen.sent = sent;
        }
        if answer.ends {
            return Ok(());
        }
    }
}

struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    chunked: bool,
    /// Bytes of the body to send before the connection ends or hangs.
    stop: Option<usize>,
    hang: bool,
    ends: bool,
}

impl Reply {
    fn new(status: u16, body: Vec<u8>) -> Self {
        Self { status, headers: Vec::new(), body, chunked: false, stop: None, hang: false, ends: false }
    }

    fn set(&mut self, name: &str, value: impl ToString) {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.to_string()));
    }

    fn send(&self, stream: &mut TcpStream) -> std::io::Result<usize> {
        let mut head = format!("HTTP/1.1 {} Whatever\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &match self.chunked {
            true => "Transfer-Encoding: chunked\r\n\r\n".to_string(),
            false => format!("Content-Length: {}\r\n\r\n", self.body.len()),
        };
        stream.write_all(head.as_bytes())?;
        let body = &self.body[..self.stop.unwrap_or(self.body.len()).min(self.body.len())];
        if self.chunked {
            for chunk in body.chunks(1000) {
                stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")?;
        } else {
            stream.write_all(body)?;
        }
        stream.flush()?;
        if self.hang {
            // Until the client goes away, or the patience ends.
            let _ = stream.read(&mut [0]);
        }
        Ok(body.len())
    }
}

fn answer(state: &mut State, target: &str, range: Option<&str>, cdn: bool, cdn_url: &str) -> Reply {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = decode(path);
    let commit = state.commit.clone();
    let missing = |code: &str| {
        let mut reply = Reply::new(404, Vec::new());
        reply.set("X-Error-Code", code);
        reply.set("X-Error-Message", format!("{code}, says the hub"));
        reply
    };
    if let Some(path) = path.strip_prefix("/cdn/").filter(|_| cdn) {
        return content(state, path, range);
    }
    let Some(rest) = path.strip_prefix("/api/models/o/n/").filter(|_| !cdn) else {
        let Some(rest) = path.strip_prefix("/o/n/resolve/").filter(|_| !cdn) else { return missing("RepoNotFound") };
        let Some((revision, file)) = rest.split_once('/') else { return missing("EntryNotFound") };
        if revision != commit {
            return missing("RevisionNotFound");
        }
        let fault = next_fault(state, &format!("resolve:{file}"));
        let Some((bytes, lfs)) = state.files.get(file) else { return missing("EntryNotFound") };
        let mut reply = if *lfs {
            let mut reply = Reply::new(302, Vec::new());
            reply.set("X-Linked-Size", bytes.len());
            reply.set("X-Linked-ETag", format!("\"{}\"", hex(&digest_of(bytes, true))));
            reply.set("Location", format!("{cdn_url}/cdn/{file}?Signature=secret"));
            reply
        } else {
            content(state, file, range)
        };
        reply.set("X-Repo-Commit", &commit);
        return spoil(reply, fault);
    };
    if let Some(revision) = rest.strip_prefix("revision/") {
        let reply = match revision == "main" || revision == "refs/pr/1" || revision == commit {
            true => Reply::new(200, json!({"id": "o/n", "sha": commit, "gated": false}).to_string().into_bytes()),
            false => missing("RevisionNotFound"),
        };
        return spoil(reply, next_fault(state, "revision"));
    }
    if rest == format!("tree/{commit}") {
        let entries = match &state.listing {
            Some(Value::Array(lie)) => lie.clone(),
            Some(lie) => return Reply::new(200, lie.to_string().into_bytes()),
            None => listing(state),
        };
        let from: usize = query.split("cursor=").nth(1).and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
        let to = (from + state.page).min(entries.len());
        let mut reply = Reply::new(200, Value::Array(entries[from..to].to_vec()).to_string().into_bytes());
        if to < entries.len() {
            reply.set("Link", format!("<{path}?recursive=true&cursor={to}>; rel=\"next\""));
        }
        return spoil(reply, next_fault(state, "tree"));
    }
    missing("RevisionNotFound")
}

/// The file itself, or the part asked for.
fn content(state: &mut State, path: &str, range: Option<&str>) -> Reply {
    let fault = next_fault(state, &format!("content:{path}"));
    let Some((bytes, _)) = state.files.get(path) else { return Reply::new(404, Vec::new()) };
    let etag = format!("\"{}\"", hex(&digest_of(bytes, false)));
    let mut bytes = bytes.clone();
    match fault {
        Some(Fault::Flip(at)) => bytes[at] ^= 4,
        Some(Fault::Short(by)) => bytes.truncate(bytes.len() - by),
        Some(Fault::Long(by)) => {
            bytes.extend(noise(by, 99));
            let mut reply = Reply::new(200, bytes);
            reply.chunked = true;
            return reply;
        }
        _ => {}
    }
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let mut reply = match from.filter(|_| !matches!(fault, Some(Fault::Whole))) {
        Some(from) if from >= bytes.len() => Reply::new(416, Vec::new()),
        Some(from) => {
            let from = if matches!(fault, Some(Fault::WrongRange)) { from / 2 } else { from };
            let mut reply = Reply::new(206, bytes[from..].to_vec());
            reply.set("Content-Range", format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len()));
            reply
        }
        None => Reply::new(200, bytes),
    };
    reply.set("ETag", etag);
    spoil(reply, fault)
}

fn next_fault(state: &mut State, place: &str) -> Option<Fault> {
    state.faults.get_mut(place)?.pop_front()
}

fn spoil(mut reply: Reply, fault: Option<Fault>) -> Reply {
    match fault {
        None | Some(Fault::Whole | Fault::Flip(_) | Fault::Short(_) | Fault::Long(_) | Fault::WrongRange) => {}
        Some(Fault::Status(status, headers)) => {
            reply = Reply::new(status, Vec::new());
            headers.iter().for_each(|(name, value)| reply.set(name, value));
        }
        Some(Fault::Cut(bytes)) => (reply.stop, reply.ends) = (Some(bytes), true),
        Some(Fault::Hang(bytes)) => (reply.stop, reply.hang, reply.ends) = (Some(bytes), true, true),
        Some(Fault::Headers(headers)) => headers.iter().for_each(|(name, value)| reply.set(name, value)),
        Some(Fault::Redirect(to)) => {
            reply = Reply::new(302, Vec::new());
            reply.set("Location", to);
        }
        Some(Fault::Body(body)) => reply = Reply::new(200, body.into_bytes()),
        Some(Fault::Huge(bytes)) => reply = Reply::new(200, vec![b' '; bytes]),
    }
    reply
}

fn decode(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = (*first == b'%').then(|| after.get(..2)).flatten();
        let byte = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).expect("UTF-8")
}
