//! `speculative_bench` as a user meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mlxcel_bench::report::{csv, json};
use mlxcel_bench::row::{Row, Status};

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name).canonicalize().expect("in the tree")
}

/// The bench in a directory of its own: reports and verdicts of the probe lie there.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Bench { dir: tempfile::tempdir().expect("temporary directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_speculative_bench"));
        for name in
            ["MLXCEL_MTP_ALLOW_INEXACT", "MLXCEL_MTP_ADAPTIVE", "MLXCEL_ENABLE_MTP_B1", "HF_HOME", "HF_HUB_CACHE"]
        {
            command.env_remove(name);
        }
        // Neither a store nor a cache: the embedded pairs are all there is.
        command.env("MLXCEL_MODELS_DIR", self.path("store")).env("XDG_CACHE_HOME", self.path("cache"));
        command.args(args).env("MLXCEL_CACHE_DIR", self.path("verdicts")).stdin(Stdio::null());
        command.current_dir(root("."));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    /// Runs with a file for each report, and reads the rows back.
    fn rows(&self, args: &[&str]) -> (Output, Vec<Row>) {
        let file = self.path("rows.csv");
        let out = self.run(&[args, &["--csv", file.to_str().expect("UTF-8")]].concat());
        let rows = csv::read(&file).unwrap_or_else(|e| panic!("{e}\n{}", text(&out.stderr)));
        (out, rows)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

const SHORT: [&str; 6] = ["-n", "12", "--repeat", "1", "--prompt", "Tell me a story about a brave rabbit."];

#[test]
fn a_sweep_measures_the_embedded_pairs() {
    let bench = Bench::new();
    let file = |name: &str| bench.path(name).to_str().expect("UTF-8").to_string();
    let (json_file, markdown, plot) = (file("rows.json"), file("rows.md"), file("rows.svg"));
    let reports = ["--json", &json_file, "--markdown", &markdown, "--plot", &plot];
    let (out, rows) = bench.rows(&[&["--sweep"][..], &SHORT, &reports].concat());
    let (said, errors) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(0), "{errors}");
    for target in ["gemma-4-tiny-it-4bit", "qwen3.5-tiny-4bit"] {
        for k in [1, 2, 4, 8] {
            let row = rows.iter().find(|row| row.target.ends_with(target) && row.k == Some(k)).expect("a row");
            assert_eq!((row.output_identical, &row.status), (Some(true), &Status::Ok));
            assert!(row.tokens_per_second.is_some() && (k == 1 || row.acceptance_rate.is_some()), "{row:?}");
        }
    }
    assert!(
        said.contains("acceptance_rate") && said.contains("identical") && said.contains("qwen3.5-tiny-4bit"),
        "{said}"
    );
    let done: Vec<&str> = errors.lines().filter(|line| line.starts_with("[bench/mtp] Done: ")).collect();
    assert_eq!(done.len(), rows.iter().filter(|row| row.kind == "mtp").count());
    assert!(done.iter().all(|line| line.contains(" tok/s") && line.contains("acceptance_rate ")), "{errors}");
    let report = json::read(Path::new(&json_file)).expect("read");
    assert_eq!(report.rows.len(), rows.len());
    assert!(std::fs::read_to_string(&markdown).expect("read").contains("| K"));
    assert!(std::fs::read_to_string(&plot).expect("read").starts_with("<"));
}

#[test]
fn two_hosts_and_two_prompts_are_told_apart() {
    let bench = Bench::new();
    let target = root("models/gemma-4-tiny-it-4bit");
    let measure = |name: &str, prompt: &str, faulty: bool| {
        let file = bench.path(name);
        let args = ["--target", target.to_str().expect("UTF-8"), "-n", "24", "--repeat", "1", "--k-values", "4", "-q"];
        let mut command = bench.command(&args);
        command.args(["--prompt", prompt, "--trace"]).arg(&file);
        if faulty {
            command.args(["--backend", "cpu-faulty"]).env("MLXCEL_MTP_ALLOW_INEXACT", "1");
        }
        let out = command.output().expect("runs");
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        file.to_str().expect("UTF-8").to_string()
    };
    let story = measure("a.json", "Tell me a story about a brave rabbit.", false);
    let faulty = measure("b.json", "Tell me a story about a brave rabbit.", true);
    let other = measure("c.json", "Why is the sky blue?", false);
    let compare = |a: &str, b: &str| text(&bench.run(&["compare", a, b]).stdout);
    let host = compare(&story, &faulty);
    assert!(host.contains("  host: ") && host.contains("round 0"), "{host}");
    assert!(compare(&story, &other).contains("  prompt: "));
    assert!(compare(&story, &story).contains("equal to the last bit"));
    let value: serde_json::Value =
        serde_json::from_slice(&bench.run(&["compare", &story, &faulty, "--json"]).stdout).expect("JSON");
    assert_eq!(value[0]["cause"], "host");
    let out = bench.run(&["compare", &story, "no-such-file.json"]);
    assert!(out.status.code() == Some(2) && text(&out.stderr).contains("no-such-file.json"));
}

#[test]
fn forward_passes_are_timed_on_their_own() {
    let bench = Bench::new();
    for name in ["gemma-4-tiny-it-4bit", "qwen3.5-tiny-4bit"] {
        let target = root("models").join(name);
        let target = target.to_str().expect("UTF-8");
        let small = ["--prompt", "40", "--contexts", "0,70", "--batches", "1,3", "-n", "3", "--widths", "1,4"];
        let small = [&small[..], &["--repeat", "2"]].concat();
        let out = bench.run(&[&["cost", "--target", target, "--threads", "1", "--json"][..], &small].concat());
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let value: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        assert_eq!((&value["threads"], &value["target"]), (&1.into(), &name.into()));
        assert!(value["weight_bytes"].as_u64() > Some(1 << 20) && value["kv_bytes"].as_u64() > Some(0), "{value}");
        let seconds = |timed: &serde_json::Value| -> Vec<f64> {
            timed["seconds"].as_array().expect("runs").iter().map(|s| s.as_f64().expect("seconds")).collect()
        };
        assert_eq!((&value["prefill"]["rows"], seconds(&value["prefill"]).len()), (&40.into(), 2));
        for (row, (context, batch, rows)) in [(0, 1, 3), (0, 3, 9), (70, 1, 3), (70, 3, 9)].into_iter().enumerate() {
            let row = &value["decode"][row];
            let found = (&row["context"], &row["batch"], &row["rows"], seconds(row).len());
            assert_eq!(found, (&context.into(), &batch.into(), &rows.into(), 2));
        }
        assert_eq!((&value["prefill"]["batch"], &value["verify"][0]["batch"]), (&1.into(), &1.into()));
        assert_eq!((&value["verify"][1]["rows"], seconds(&value["verify"][1]).len()), (&4.into(), 6));
        assert!(seconds(&value["decode"][0]).iter().all(|s| *s > 0.0), "{value}");
    }
    let target = root("models/gemma-4-tiny-it-4bit");
    let target = target.to_str().expect("UTF-8");
    let out = bench.run(&["cost", "--target", target, "--prompt", "20", "-n", "2", "--widths", "1,2", "--repeat", "1"]);
    assert!(
        text(&out.stdout).contains("batch")
            && text(&out.stdout).contains("verify")
            && text(&out.stdout).contains("1.00"),
        "{}",
        text(&out.stdout)
    );
    for (extra, parts) in [
        (&["--widths", "17"][..], &["--widths", "1 to 16", "17"][..]),
        (&["--contexts", "9000000"], &["--contexts", "9000064"]),
        (&["--repeat", "0"], &["--repeat"]),
        (&["--batches", "0"], &["--batches", "1 to 256 sequences expected, found 0"]),
        (&["--batches", "1,257"], &["--batches", "1 to 256 sequences expected, found 257"]),
        (&["--batches", "some"], &["--batches", "some"]),
    ] {
        let out = bench.run(&[&["cost", "--target", target][..], extra].concat());
        let said = text(&out.stderr);
        assert!(out.status.code() == Some(2) && parts.iter().all(|part| said.contains(part)), "{extra:?}: {said}");
    }
}

/// Without the operator's word, a failing probe is the status of the rows.
#[test]
fn a_failing_probe_measures_nothing_unsound() {
    let bench = Bench::new();
    let target = root("models/gemma-4-tiny-it-4bit");
    let args = ["--target", target.to_str().expect("UTF-8"), "--backend", "cpu-faulty", "--k-values", "2"];
    let (out, rows) = bench.rows(&[&args[..], &SHORT].concat());
    assert_eq!(out.status.code(), Some(1));
    assert_eq!((rows.len(), &rows[0].status), (2, &Status::Ok));
    let Status::Skipped(why) = &rows[1].status else { panic!("{:?}", rows[1].status) };
    assert!(why.contains("INEXACT") && why.contains("q_proj") && rows[1].tokens_per_second.is_none(), "{why}");
}

#[test]
fn an_unsupported_target_is_refused_before_a_drafter_is_read() {
    let bench = Bench::new();
    let (target, drafter) = (bench.path("mamba"), bench.path("drafter"));
    for dir in [&target, &drafter] {
        std::fs::create_dir(dir).expect("made");
    }
    let demo = root("models/gemma-4-tiny-it-assistant-4bit");
    std::fs::copy(demo.join("model.safetensors"), target.join("model.safetensors")).expect("copied");
    std::fs::write(target.join("config.json"), "{\"model_type\": \"mamba2\"}").expect("written");
    std::fs::write(drafter.join("config.json"), "{broken").expect("written");
    let args =
        ["--target", target.to_str().expect("UTF-8"), "--draft", drafter.to_str().expect("UTF-8"), "--kind", "mtp"];
    let (out, rows) = bench.rows(&[&args[..], &SHORT].concat());
    assert_eq!(out.status.code(), Some(2));
    let why = rows[0].status.text();
    for part in [target.to_str().expect("UTF-8"), "mamba2", "Gemma4", "Qwen35Moe"] {
        assert!(why.contains(part), "{part:?} not in {why}");
    }
    assert!(!why.contains("broken") && !why.contains("drafter/config.json"), "{why}");
}

#[test]
fn absent_files_are_rows() {
    let bench = Bench::new();
    let (out, rows) = bench.rows(&[&["--target", "no-such-model"][..], &SHORT].concat());
    assert_eq!(out.status.code(), Some(2));
    assert!(matches!(&rows[0].status, Status::Absent(why) if why.contains("no-such-model")), "{:?}", rows[0].status);
    let target = root("models/gemma-4-tiny-it-4bit");
    let args = ["--target", target.to_str().expect("UTF-8"), "--draft", "no-such-drafter"];
    let (out, rows) = bench.rows(&[&args[..], &SHORT].concat());
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert!(matches!(&rows[0].status, Status::Absent(why) if why.contains("no-such-drafter")), "{:?}", rows[0].status);
    let list = text(&bench.run(&["--list"]).stdout);
    assert!(list.contains("qwen3.8-27b-mtp-4bit") && list.contains("absent: "), "{list}");
}

#[test]
fn bad_arguments_say_what_is_expected() {
    let bench = Bench::new();
    let missing = bench.path("nowhere/rows.json");
    for (args, parts) in [
        (&[][..], &["Usage"][..]),
        (&["--quiet"], &["--sweep", "--target"]),
        (&["--sweep", "--k-values", "two"], &["adaptive", "two"]),
        (&["--sweep", "--temperature", "-1"], &["temperature"]),
        (&["--sweep", "--prompts", "no-such-file"], &["no-such-file"]),
        (&["--sweep", "--models-dir", "no-such-dir"], &["--models-dir", "no-such-dir"]),
        (&["--sweep", "--json", missing.to_str().expect("UTF-8")], &["nowhere"]),
        (&["--sweep", "--csv", missing.to_str().expect("UTF-8")], &["nowhere"]),
    ] {
        let out = bench.run(args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// Starts a sweep that would take minutes, and waits for its first rows.
#[cfg(unix)]
fn endless(bench: &Bench, file: &Path) -> std::process::Child {
    let mut command = bench.command(&["--sweep", "-n", "64", "--repeat", "200", "--k-values", "2", "-q", "--csv"]);
    let child = command.arg(file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let late = Instant::now() + Duration::from_secs(120);
    let begun = || std::fs::read_to_string(file).is_ok_and(|text| text.lines().count() > 2);
    while !begun() {
        assert!(Instant::now() < late, "no rows after two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

#[test]
#[cfg(unix)]
fn a_killed_sweep_leaves_a_valid_table() {
    let bench = Bench::new();
    let file = bench.path("rows.csv");
    let mut child = endless(&bench, &file);
    child.kill().expect("killed");
    child.wait().expect("waited for");
    let rows = csv::read(&file).expect("a valid table");
    assert!(rows.len() >= 2 && rows.iter().all(|row| row.output_identical == Some(true)), "{rows:?}");
}

#[test]
#[cfg(unix)]
fn an_interrupted_sweep_reports_what_it_has() {
    let bench = Bench::new();
    let file = bench.path("rows.csv");
    let child = endless(&bench, &file);
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    let out = child.wait_with_output().expect("waited for");
    assert_eq!(out.status.code(), Some(130));
    assert!(text(&out.stdout).contains("gemma-4-tiny-4bit"), "the table so far");
    let rows = csv::read(&file).expect("a valid table");
    assert!(rows.iter().any(|row| row.status == Status::Ok));
}
