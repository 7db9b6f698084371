//! Drafting as a user meets it: which drafter is taken, what is refused, and that no flag changes an answer.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_cli::answer::{stream, summary};
use mlxcel_cli::args::DraftArgs;
use mlxcel_cli::draft::{self, Drafting, Gate, Notice};
use mlxcel_cli::generate::to_json;
use mlxcel_cli::locate::Environment;
use mlxcel_cli::run::debug;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_compute::{Backend, Batch, KvGroup};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::speculate::gate::Settings;
use mlxcel_engine::{Engine, EngineOptions, Request};
use mlxcel_model::drafters::{Ask, Choose, Drafter, DrafterInfo, HiddenRows, Kept};
use mlxcel_model::registry::{self, Pair};
use mlxcel_model::tap::Tap;
use mlxcel_model::{Logits, Model, ModelError, ModelInfo, Snapshot};
use mlxcel_text::Tokenizer;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("project root")
}

fn models() -> PathBuf {
    root().join("models")
}

fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    // Verdicts are kept from test to test, so that not every start probes.
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    for name in
        ["MODEL", "MODEL_DRAFT", "DRAFT_KIND", "DRAFT_BLOCK_SIZE", "MTP_ADAPTIVE", "ENABLE_MTP_B1", "MTP_ALLOW_INEXACT"]
    {
        command.env_remove(format!("MLXCEL_{name}"));
    }
    command.args(args).current_dir(root()).stdin(Stdio::null()).env("MLXCEL_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    command.envs(variables.iter().copied()).output().expect("the binary runs")
}

/// The object of a short greedy answer.
fn answer(args: &[&str], variables: &[(&str, &str)]) -> Value {
    let common = ["generate", "-p", "What is speculative decoding?", "--temp", "0", "-n", "24", "--json", "-q"];
    let out = run(&[&common, args].concat(), variables);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {stderr}");
    assert!(stderr.is_empty(), "{args:?}: {stderr}");
    serde_json::from_slice(&out.stdout).expect("JSON")
}

fn fails(args: &[&str], variables: &[(&str, &str)], words: &[&str]) {
    let out = run(&[&["generate", "-p", "Hello", "-n", "1"], args].concat(), variables);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{args:?} succeeded");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{args:?}: {word:?} is not in {message:?}");
    }
}

#[test]
fn no_flag_changes_the_answer() {
    for model in ["gemma-4-tiny-it-4bit", "qwen3.5-tiny-4bit"] {
        let of = |args: &[&str]| answer(&[&["-m", model], args].concat(), &[]);
        let plain = of(&["-md", "none"]);
        assert_eq!(plain["speculation"], Value::Null);
        for (args, kind) in [
            (&[][..], "mtp"),
            (&["--draft-block-size", "2"], "mtp"),
            (&["--draft-block-size", "16"], "mtp"),
            (&["--draft-kind", "ngram"], "ngram"),
            (&["--draft-model", model, "--draft-kind", "classic", "--draft-block-size", "4"], "classic"),
        ] {
            let drafted = of(args);
            for field in ["text", "tokens", "finish_reason", "usage"] {
                assert_eq!(drafted[field], plain[field], "{model} {args:?}: {field}");
            }
            let counts = &drafted["speculation"];
            assert_eq!((counts["kind"].as_str(), &counts["exact"]), (Some(kind), &Value::Bool(true)), "{counts}");
            if args.contains(&"classic") {
                // The model drafts for itself.
                assert_eq!(counts["acceptance_rate"], 1.0, "{counts}");
            }
            if args.contains(&"16") {
                assert!(counts["rounds"].as_u64().is_some_and(|n| n > 0), "{counts}");
                assert!(counts["speedup"].is_number() && counts["tokens_per_round"].as_f64() > Some(1.0), "{counts}");
            }
        }
    }
}

#[test]
fn the_drafter_beside_the_model_is_taken() {
    for (model, drafter) in
        [("gemma-4-tiny-it-4bit", "gemma-4-tiny-it-assistant-4bit"), ("qwen3.5-tiny-4bit", "qwen3.5-tiny-mtp-4bit")]
    {
        assert_eq!(answer(&["-m", model], &[])["speculation"]["drafter"], drafter);
    }
    let named = answer(&["--model-draft", "gemma-4-tiny-it-assistant-bf16"], &[]);
    assert_eq!(named["speculation"]["drafter"], "gemma-4-tiny-it-assistant-bf16");
    let variable = answer(&[], &[("MLXCEL_MODEL_DRAFT", "gemma-4-tiny-it-assistant-bf16")]);
    assert_eq!(variable["speculation"]["drafter"], "gemma-4-tiny-it-assistant-bf16");
    assert_eq!(answer(&["--draft-kind", "none"], &[])["speculation"], Value::Null);
    assert_eq!(answer(&["--draft-block-size", "1"], &[])["speculation"], Value::Null);
}

#[test]
fn the_summary_counts_rounds() {
    let out = run(&["generate", "-p", "Count to ten.", "--temp", "0", "-n", "24", "--draft-block-size", "4"], &[]);
    let line = String::from_utf8_lossy(&out.stderr).into_owned();
    for word in ["rounds", "acceptance_rate", "mean_accepted_len", "tokens_per_round", "speedup"] {
        assert!(line.contains(word), "{line}");
    }
    assert!(!line.contains("INEXACT"), "{line}");
}

#[test]
fn drafters_that_do_not_fit_are_refused() {
    let both = ["gemma-4-tiny-it-4bit", "qwen3.5-tiny-mtp-4bit"];
    fails(&["-m", both[0], "-md", both[1]], &[], &[both[0], both[1], "qwen3_5_mtp", "gemma4"]);
    fails(
        &["-m", "qwen3.5-tiny-4bit", "-md", "gemma-4-tiny-it-assistant-4bit"],
        &[],
        &["qwen3.5-tiny-4bit", "assistant"],
    );
    // The same vocabulary size, other tokens.
    fails(
        &["-m", "gemma-4-tiny-it-4bit", "-md", "qwen3.5-tiny-4bit"],
        &[],
        &["gemma-4-tiny-it-4bit", "qwen3.5-tiny-4bit", "tokenizer.json", "token "],
    );
    let golden = root().join("tests/golden/llama/qwen2");
    fails(&["-md", &golden.display().to_string()], &[], &["vocab_size", "16384", "gemma-4-tiny-it-4bit", "qwen2"]);
    fails(&["-md", "nowhere"], &[], &["nowhere", "was not found"]);
    fails(&["--draft-kind", "classic"], &[], &["--model-draft"]);
    for kind in ["ngram", "none"] {
        let flag = format!("--draft-kind {kind}");
        fails(&["--draft-kind", kind, "-md", both[1]], &[], &[&flag, both[1], "--model-draft"]);
        fails(&["-md", both[1]], &[("MLXCEL_DRAFT_KIND", kind)], &[&flag, both[1], "MLXCEL_DRAFT_KIND"]);
    }
    for kind in ["mtp", "classic"] {
        fails(&["--draft-kind", kind, "-md", "none"], &[], &[&format!("--draft-kind {kind}"), "--model-draft none"]);
    }
    fails(&["--draft-kind", "mtp", "-md", both[0]], &[], &["--draft-kind mtp", "classic"]);
    fails(&["--draft-kind", "mtp", "-m", &golden.display().to_string()], &[], &["no drafting head", "qwen2-assistant"]);
    fails(&["--draft-block-size", "17"], &[], &["--draft-block-size", "1 to 16"]);
    // Variables are read before any weight, drafter or not.
    for args in [&[][..], &["-md", "none"], &["-m", "nowhere"]] {
        fails(args, &[("MLXCEL_MTP_ADAPTIVE", "maybe")], &["MLXCEL_MTP_ADAPTIVE", "maybe"]);
    }
}

#[test]
fn flags_are_read_as_they_are_meant() {
    let kind = |args: &[&str], variables: &[(&str, &str)]| answer(args, variables)["speculation"]["kind"].clone();
    assert_eq!(kind(&["-md", "none", "--draft-kind", "ngram"], &[]), "ngram");
    assert_eq!(kind(&["-md", "none", "--draft-kind", "none"], &[]), Value::Null);
    let named = answer(&["-md=gemma-4-tiny-it-assistant-bf16"], &[]);
    assert_eq!(named["speculation"]["drafter"], "gemma-4-tiny-it-assistant-bf16");
    // Set to nothing is not set.
    let empty: Vec<(&str, &str)> =
        ["MLXCEL_MODEL", "MLXCEL_MODEL_DRAFT", "MLXCEL_DRAFT_KIND", "MLXCEL_DRAFT_BLOCK_SIZE"]
            .into_iter()
            .chain(["MLXCEL_MTP_ADAPTIVE", "MLXCEL_ENABLE_MTP_B1", "MLXCEL_MTP_ALLOW_INEXACT"])
            .map(|name| (name, ""))
            .collect();
    assert_eq!(kind(&[], &empty), "mtp");
    for verb in ["generate", "run"] {
        let help = run(&[verb, "--help"], &[]);
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for variable in ["MLXCEL_MTP_ADAPTIVE", "MLXCEL_ENABLE_MTP_B1", "MLXCEL_MTP_ALLOW_INEXACT"] {
            assert!(help.contains(variable), "{variable} is not in {help}");
        }
    }
}

/// A copy of the demo without its neighbours.
fn lonely(place: &Path) -> PathBuf {
    copy(&models().join("gemma-4-tiny-it-4bit"), &place.join("lonely-4bit"))
}

fn copy(from: &Path, to: &Path) -> PathBuf {
    std::fs::create_dir(to).expect("directory");
    for file in std::fs::read_dir(from).expect("a model").flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
    to.to_path_buf()
}

/// Whatever is wrong with a drafter that nobody asked for, the answer comes, with one warning that names it; to those who
/// asked it is an error.
#[test]
fn a_drafter_that_was_found_never_breaks_an_answer() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let model = lonely(dir.path());
    let model = model.to_str().expect("UTF-8");
    let plain = answer(&["-m", model], &[]);
    assert_eq!(plain["speculation"], Value::Null);
    let assistant = models().join("gemma-4-tiny-it-assistant-4bit");
    let beside = dir.path().join("lonely-assistant");
    let named = beside.to_str().expect("UTF-8");
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("config.json", |path| std::fs::write(path.join("config.json"), "{").expect("written")),
        ("qwen3_5_mtp", |path| {
            let other = models().join("qwen3.5-tiny-mtp-4bit/config.json");
            std::fs::copy(other, path.join("config.json")).expect("copied");
        }),
        ("model.safetensors", |path| std::fs::write(path.join("model.safetensors"), "12345678").expect("written")),
        // Its files are in order, its tensors are not those of a drafter.
        ("tensor", |path| {
            let other = models().join("qwen3.5-tiny-mtp-4bit/model.safetensors");
            std::fs::copy(other, path.join("model.safetensors")).expect("copied");
        }),
    ];
    for (word, damage) in damages {
        copy(&assistant, &beside);
        damage(&beside);
        let args =
            ["generate", "-m", model, "-p", "What is speculative decoding?", "--temp", "0", "-n", "24", "--json"];
        let out = run(&args, &[]);
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{word}: {stderr}");
        let warnings: Vec<&str> = stderr.lines().filter(|line| line.contains("WARN")).collect();
        assert!(matches!(warnings[..], [one] if one.contains(named) && one.contains(word)), "{word}: {stderr}");
        let found: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        assert_eq!((&found["tokens"], &found["speculation"]), (&plain["tokens"], &Value::Null), "{word}");
        // Nothing with -q.
        assert_eq!(answer(&["-m", model], &[])["tokens"], plain["tokens"]);
        fails(&["-m", model, "--draft-kind", "mtp"], &[], &[named, word]);
        fails(&["-m", model, "-md", named], &[], &[named, word]);
        std::fs::remove_dir_all(&beside).expect("removed");
    }
    // The twin: undamaged it drafts.
    copy(&assistant, &beside);
    assert_eq!(answer(&["-m", model], &[])["speculation"]["drafter"], "lonely-assistant");
}

#[test]
fn variables_pin_the_width() {
    let four = answer(&[], &[("MLXCEL_MTP_ADAPTIVE", "0")]);
    let four = &four["speculation"];
    // The assistant's own width is 4: rounds of three drafts, but for the first steps and the last.
    let (rounds, proposed) = (four["rounds"].as_u64().expect("rounds"), four["proposed"].as_u64().expect("proposed"));
    assert!(rounds > 2 && proposed > 2 * rounds && proposed <= 3 * rounds, "{four}");
    let never = answer(&[], &[("MLXCEL_ENABLE_MTP_B1", "0")]);
    assert_eq!(never["speculation"]["rounds"], 0);
    let always = answer(&[], &[("MLXCEL_ENABLE_MTP_B1", "1")]);
    assert_eq!(always["speculation"]["rounds"], rounds);
    let block = answer(&[], &[("MLXCEL_DRAFT_BLOCK_SIZE", "2")]);
    assert_eq!(block["speculation"]["rounds"], block["speculation"]["proposed"]);
}

fn pair<B: Backend>(backend: B) -> Pair {
    let open = |name: &str| Checkpoint::open(&models().join(name)).unwrap_or_else(|e| panic!("{e}"));
    registry::load_pair(&open("gemma-4-tiny-it-4bit"), &open("gemma-4-tiny-it-assistant-4bit"), Arc::new(backend))
        .unwrap_or_else(|e| panic!("{e}"))
}

fn prompt(engine: &Engine) -> Request {
    let prompt = engine.tokenizer().encode_raw("Once upon a time").expect("ids");
    Request { prompt, max_tokens: Some(12), ignore_eos: true, ..Request::default() }
}

/// An engine behind the gate, what became of its drafter, and what was said.
struct Started {
    engine: Engine,
    drafting: Drafting,
    said: Vec<String>,
}

impl Started {
    /// `None` where the engine is refused.
    fn try_new(pair: Pair, settings: Settings, asked: bool, cache: &Path) -> Option<Self> {
        let target = models().join("gemma-4-tiny-it-4bit");
        let environment = Environment { cache: Some(cache.into()), ..Environment::default() };
        let checkpoint = Checkpoint::open(&target).expect("the demo");
        let tokenizer = Arc::new(Tokenizer::load(&target).expect("tokenizer"));
        let options = EngineOptions { context: Some(256), ..EngineOptions::default() };
        let args = DraftArgs::default();
        let command = "mlxcel probe -m the-demo".into();
        let gate = Gate { settings, args: &args, asked, checkpoint: &checkpoint, command, environment: &environment };
        let mut said = Vec::new();
        let mut notify = |notice: Notice<'_>| match notice {
            Notice::Warning(text) => said.push(format!("warning: {text}")),
            Notice::Inexact(text) => said.push(format!("inexact: {text}")),
            // Whether it takes long is no matter here.
            Notice::Wait(_) | Notice::Backend { .. } => {}
        };
        let (engine, drafting) = draft::engine(pair, tokenizer, options, &gate, &mut notify).ok()?;
        Some(Started { engine, drafting, said })
    }

    fn new(pair: Pair, settings: Settings, cache: &Path) -> Self {
        Self::try_new(pair, settings, true, cache).expect("an engine")
    }

    /// The object of an answer, the summary line, and what /debug shows after it.
    fn answer(&mut self) -> (Value, String, String) {
        let request = prompt(&self.engine);
        let answer = stream(&mut self.engine, request, &mut std::io::sink(), true).expect("valid");
        let object = to_json(&self.engine, &answer, None, &self.drafting);
        let line = summary(&self.engine, &answer.end, None, &self.drafting);
        (object, line, debug(&self.engine, &self.drafting))
    }
}

fn faulty() -> Pair {
    pair(Faulty::new(CpuBackend::new(Precision::Int8, 2), Fault::WideLinear))
}

fn honest() -> Pair {
    pair(CpuBackend::new(Precision::Int8, 2))
}

fn verdicts(cache: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(cache.join("probe")).into_iter().flatten().flatten();
    files.map(|file| file.path()).collect()
}

/// On a backend that is not exact the gate closes: the engine does not draft, says so once, and still answers.
#[test]
fn an_inexact_backend_serves_plain_decoding() {
    let cache = tempfile::tempdir().expect("temporary directory");
    let start = |settings| Started::new(faulty(), settings, cache.path());
    let mut alone = faulty();
    alone.drafter = None;
    let mut plain = Started::new(alone, Settings::default(), cache.path());
    assert_eq!((&plain.drafting, plain.said.len()), (&Drafting::None, 0));
    let (plain, ..) = plain.answer();
    // The second time the verdict is read back.
    for _ in 0..2 {
        let mut started = start(Settings::default());
        let [said] = &started.said[..] else { panic!("{:?}", started.said) };
        for word in ["warning: ", "declined", "q_proj", "mlxcel probe -m the-demo", "MLXCEL_MTP_ALLOW_INEXACT=1"] {
            assert!(said.contains(word), "{word:?} is not in {said}");
        }
        assert!(started.engine.speculator().is_none());
        let (object, line, debug) = started.answer();
        assert_eq!(object["tokens"], plain["tokens"]);
        let why = object["speculation"]["declined"].as_str().expect("a reason");
        assert!(why.contains("q_proj") && debug.contains(why) && !line.contains("INEXACT"), "{debug}, {line}");
        assert_eq!(verdicts(cache.path()).len(), 1);
    }
    // The operator insists: it is said wherever something is reported.
    let mut started = start(Settings { allow_inexact: true, ..Settings::default() });
    assert!(matches!(&started.said[..], [said] if said.starts_with("inexact: ") && said.contains("q_proj")));
    let (object, line, debug) = started.answer();
    assert_eq!(object["speculation"]["exact"], json!(false), "{object}");
    assert!(object["speculation"]["rounds"].as_u64() > Some(0), "{object}");
    assert!(line.contains("INEXACT") && debug.contains("INEXACT") && debug.contains("q_proj"), "{line}, {debug}");
    // An honest backend drafts, insisted or not.
    for allow_inexact in [false, true] {
        let settings = Settings { allow_inexact, ..Settings::default() };
        let mut started = Started::new(honest(), settings, cache.path());
        assert_eq!((&started.drafting, started.said.len()), (&Drafting::Exact, 0));
        let (object, line, debug) = started.answer();
        assert_eq!(object["speculation"]["exact"], json!(true));
        assert!(!line.contains("INEXACT") && !debug.contains("INEXACT"), "{line}, {debug}");
    }
}

/// What is on disk decides, until it is gone.
#[test]
fn verdicts_are_kept_and_read() {
    let cache = tempfile::tempdir().expect("temporary directory");
    let start = || Started::new(honest(), Settings::default(), cache.path()).drafting;
    assert_eq!(start(), Drafting::Exact);
    let [file] = &verdicts(cache.path())[..] else { panic!("one verdict expected") };
    let mut kept: Value = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    kept["inexact"] = json!({ "width": 9, "batch": 1, "draws": 1, "line": "planted" });
    std::fs::write(file, kept.to_string()).expect("written");
    let Drafting::Declined(why) = start() else { panic!("not read") };
    assert!(why.ends_with(": planted"), "{why}");
    std::fs::write(file, "{}").expect("written");
    assert_eq!(start(), Drafting::Exact, "probed again");
    assert_ne!(std::fs::read(file).expect("a file"), b"{}");
}

/// A probe that cannot run is one that fails, and no reason not to answer.
#[test]
fn a_probe_that_fails_declines() {
    let cache = tempfile::tempdir().expect("temporary directory");
    let Pair { model, drafter } = honest();
    let model = Box::new(Fragile { inner: model, keep: HiddenRows::None });
    let mut started = Started::new(Pair { model, drafter }, Settings::default(), cache.path());
    assert!(matches!(&started.said[..], [said] if said.contains("could not be checked") && said.contains("declined")));
    let (object, ..) = started.answer();
    assert_eq!(object["tokens"].as_array().map(Vec::len), Some(12));
    assert!(object["speculation"]["declined"].is_string(), "{object}");
    assert!(verdicts(cache.path()).is_empty(), "nothing was found out");
}

/// Memory that a drafter cannot have is an error to those who asked for it.
#[test]
fn a_drafter_without_memory_is_left_out_unless_asked_for() {
    let cache = tempfile::tempdir().expect("temporary directory");
    let start = |asked| {
        let Pair { model, drafter } = honest();
        let drafter = drafter.map(|inner| Box::new(Homeless(inner)) as Box<dyn Drafter>);
        Started::try_new(Pair { model, drafter }, Settings::default(), asked, cache.path())
    };
    assert!(start(true).is_none());
    let mut started = start(false).expect("an engine");
    assert!(matches!(&started.said[..], [said] if said.contains("gemma-4-tiny-it-assistant-4bit")));
    let (object, ..) = started.answer();
    assert_eq!(object["tokens"].as_array().map(Vec::len), Some(12));
    assert!(object["speculation"]["declined"].is_string(), "{object}");
}

/// A drafter that gets no memory.
struct Homeless(Box<dyn Drafter>);

impl Drafter for Homeless {
    fn info(&self) -> &DrafterInfo {
        self.0.info()
    }

    fn hidden_rows(&self) -> HiddenRows {
        self.0.hidden_rows()
    }

    fn reserve(&mut self, _: usize, _: usize) -> Result<(), ModelError> {
        Err(ModelError::NoPages)
    }

    fn observe(&mut self, _: &[Kept<'_>]) -> Result<(), ModelError> {
        unreachable!("it has no memory")
    }

    fn take_back(&mut self, _: usize, _: usize) {}

    fn propose(&mut self, _: &[Ask<'_>], _: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        unreachable!("it has no memory")
    }

    fn cache_bytes(&self) -> usize {
        0
    }

    fn cached(&self, _: usize) -> usize {
        0
    }
}

/// A model that fails as long as rows are kept for a drafter.
struct Fragile {
    inner: Box<dyn Model>,
    keep: HiddenRows,
}

impl Model for Fragile {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn backend(&self) -> String {
        self.inner.backend()
    }

    fn kv_layout(&self) -> &[KvGroup] {
        self.inner.kv_layout()
    }

    fn page_len(&self) -> usize {
        self.inner.page_len()
    }

    fn kv_page_bytes(&self, group: usize) -> usize {
        self.inner.kv_page_bytes(group)
    }

    fn is_recurrent(&self) -> bool {
        self.inner.is_recurrent()
    }

    fn state_bytes(&self) -> (usize, usize) {
        self.inner.state_bytes()
    }

    fn reserve(&mut self, pages: &[usize], slots: usize) -> Result<(), ModelError> {
        self.inner.reserve(pages, slots)
    }

    fn keep_hidden(&mut self, rows: HiddenRows) {
        self.keep = rows;
        self.inner.keep_hidden(rows);
    }

    fn take_back(&mut self, slot: usize, len: usize) -> bool {
        self.inner.take_back(slot, len)
    }

    fn save_state(&self, slot: usize) -> Option<Snapshot> {
        self.inner.save_state(slot)
    }

    fn restore_state(&mut self, slot: usize, snapshot: &Snapshot) {
        self.inner.restore_state(slot, snapshot);
    }

    fn read_state(&self, snapshot: &Snapshot) -> Vec<f32> {
        self.inner.read_state(snapshot)
    }

    fn forward(&mut self, batch: &Batch) -> Result<Logits, ModelError> {
        if self.keep == HiddenRows::None { self.inner.forward(batch) } else { Err(ModelError::NoPages) }
    }

    fn forward_tapped(&mut self, batch: &Batch, tap: &mut dyn Tap) -> Result<Logits, ModelError> {
        self.inner.forward_tapped(batch, tap)
    }
}
