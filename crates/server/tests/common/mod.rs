//! A server over the demo pair in this process, and a client.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxcel_checkpoint::Checkpoint;
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, Speculation};
use mlxcel_model::registry;
use mlxcel_server::{App, Facts, Metrics, Options, Ready, Size, Worker};
use mlxcel_text::parse::ParserKind;
use mlxcel_text::{ChatTemplate, Tokenizer};
use serde_json::Value;

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// How a server is set up.
pub struct Setup {
    pub target: &'static str,
    pub drafter: Option<&'static str>,
    pub parallel: usize,
    pub queue: usize,
    pub context: usize,
    /// Bytes of the prefix cache.
    pub cache: usize,
    /// Whether templates are asked to think.
    pub reasoning: Option<bool>,
    /// Bytes that the system keeps of what a client does not read.
    pub send_buffer: Option<u32>,
    pub options: Options,
    /// Sleeps before it loads.
    pub delay: Duration,
    /// Fails to load.
    pub broken: bool,
    /// Another form of thoughts and calls than the checkpoint's.
    pub parser: Option<ParserKind>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            target: "gemma-4-tiny-it-4bit",
            drafter: Some("gemma-4-tiny-it-assistant-4bit"),
            parallel: 4,
            queue: 64,
            context: 1024,
            cache: 64 << 20,
            reasoning: None,
            send_buffer: None,
            options: Options::default(),
            delay: Duration::ZERO,
            broken: false,
            parser: None,
        }
    }
}

fn load(setup: &Setup) -> Result<Ready<Facts>, String> {
    std::thread::sleep(setup.delay);
    if setup.broken {
        return Err("the weights are damaged".into());
    }
    let words = |e: &dyn std::fmt::Display| e.to_string();
    let dir = models().join(setup.target);
    let target = Checkpoint::open(&dir).map_err(|e| words(&e))?;
    let backend = Arc::new(CpuBackend::new(Precision::Int8, 2));
    let tokenizer = Arc::new(Tokenizer::load(&dir).map_err(|e| words(&e))?);
    let options = EngineOptions {
        parallel: setup.parallel,
        context: Some(setup.context),
        cache_bytes: setup.cache,
        ..EngineOptions::default()
    };
    let engine = match setup.drafter {
        None => Engine::new(registry::load(&target, backend).map_err(|e| words(&e))?, Arc::clone(&tokenizer), options),
        Some(name) => {
            let draft = Checkpoint::open(&models().join(name)).map_err(|e| words(&e))?;
            let pair = registry::load_pair(&target, &draft, backend).map_err(|e| words(&e))?;
            let drafter = pair.drafter.ok_or("no drafter")?;
            Engine::with_drafter(pair.model, Arc::clone(&tokenizer), options, drafter, Speculation::default())
        }
    };
    let engine = engine.map_err(|e| words(&e))?;
    let template = ChatTemplate::load(&dir).map_err(|e| words(&e))?;
    let source = template.as_ref().map(ChatTemplate::source);
    let found = ParserKind::detect(source.as_deref(), |token| tokenizer.token_to_id(token).is_some());
    let parser = setup.parser.unwrap_or(found);
    let facts = Facts {
        names: vec![setup.target.into(), "alias".into()],
        created: mlxcel_server::now(),
        template,
        factory: Default::default(),
        parser,
        split_reasoning: true,
        reasoning: setup.reasoning,
        context: setup.context,
        parallel: setup.parallel,
        max_tokens: None,
        sampling: SamplingParams::default(),
        backend: engine.model().backend(),
        fingerprint: "test".into(),
        path: dir.display().to_string(),
        size: Size::default(),
        speculation: mlxcel_server::Speculation {
            enabled: setup.drafter.is_some(),
            kind: if setup.drafter.is_some() { "mtp" } else { "none" }.into(),
            exact: true,
            max_block_size: 16,
            ..Default::default()
        },
        tokenizer,
    };
    Ok(Ready { engine, facts })
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub app: Arc<App>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Starts one and waits until it takes requests.
    pub fn start(setup: Setup) -> Server {
        let server = Server::begin(setup);
        let late = Instant::now() + Duration::from_secs(60);
        while server.get("/health").0 != 200 {
            assert!(Instant::now() < late, "not ready after a minute");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    /// Starts one.
    pub fn begin(setup: Setup) -> Server {
        let metrics = Arc::new(Metrics::new());
        let (options, send_buffer) = (setup.options.clone(), setup.send_buffer);
        let worker = Worker::start(setup.queue, Arc::clone(&metrics), move || load(&setup)).expect("a thread");
        let app = Arc::new(App { worker, metrics, options });
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (here, address) = std::sync::mpsc::channel();
        let shared = Arc::clone(&app);
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
            runtime.block_on(async {
                let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
                if let Some(bytes) = send_buffer {
                    socket.set_send_buffer_size(bytes).expect("a size");
                }
                socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
                let listener = socket.listen(1024).expect("it listens");
                here.send(listener.local_addr().expect("an address")).expect("the test waits");
                let stop = async { drop(stopped.await) };
                mlxcel_server::serve(listener, shared, stop, Duration::from_secs(2)).await.expect("served");
            });
        });
        let address = address.recv().expect("it listens");
        Server { address, app, stop: Some(stop), thread: Some(thread) }
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        stream
    }

    /// Status and body of a request; 0 when nothing came.
    pub fn call(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
        let mut answer = Vec::new();
        let _ = self.send(method, path, headers, body).read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let body =
            if head.to_lowercase().contains("transfer-encoding: chunked") { unchunked(body) } else { body.into() };
        (status, body)
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.call("GET", path, "", b"")
    }

    /// A JSON answer to a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.call("POST", path, "content-type: application/json\r\n", body.to_string().as_bytes());
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The `data:` lines of a stream.
    pub fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, text) = self.call("POST", path, "", body.to_string().as_bytes());
        assert_eq!(status, 200, "{text}");
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|line| *line != "[DONE]").map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Begins a request and goes away after `lines` lines of the answer.
    pub fn leave(&self, path: &str, body: &Value, lines: usize) {
        let stream = self.send("POST", path, "", body.to_string().as_bytes());
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        for _ in 0..lines {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
        }
    }

    /// Waits until no request runs or waits.
    pub fn settle(&self) {
        let late = Instant::now() + Duration::from_secs(30);
        loop {
            let status = self.app.worker.status();
            if status.running.is_empty() && status.waiting == 0 {
                return;
            }
            assert!(Instant::now() < late, "still busy: {status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops it, as a signal would.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ended well");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        if size == 0 || rest.len() < size {
            break;
        }
        out.push_str(&rest[..size]);
        body = rest[size..].strip_prefix("\r\n").unwrap_or(&rest[size..]);
    }
    out
}
