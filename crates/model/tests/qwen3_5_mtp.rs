//! The prediction head of Qwen 3.5 as a drafter: against float32 references (tests/golden/README.md says how they were made),
//! against itself in bits, and against the acceptance of the trained demo pair.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use common::damage::Copy;
use common::{Golden, Rng, Walker, argmax, bits, recurrent_demo, root, worst};
use mlxcel_checkpoint::Checkpoint;
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_model::drafters::{Ask, Candidate, Choose, DraftKind, Drafter, Kept};
use mlxcel_model::{ModelError, registry};
use serde_json::{Value, json};

/// Agreement asked of f32 precision with float32 references, absolute, logits of magnitude about 10.
const TOLERANCE: f32 = 2e-4;

const VARIANTS: [&str; 3] = ["dense", "dense-tied", "moe"];

fn dir(name: &str) -> PathBuf {
    root().join("tests/golden/qwen3_5").join(name)
}

fn demo_head() -> PathBuf {
    root().join("models/qwen3.5-tiny-mtp-4bit")
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Takes the best candidate each time, and keeps the rows that all candidates together are.
#[derive(Default)]
struct Greedy {
    rows: Vec<(usize, usize, Vec<f32>)>, // ask, depth, logits
    ahead: bool,
}

impl Choose for Greedy {
    fn choose(&mut self, ask: usize, depth: usize, candidates: &[Candidate]) -> Option<u32> {
        let mut row = vec![0.0; candidates.len()];
        candidates.iter().for_each(|c| row[c.token as usize % candidates.len()] = c.logit);
        self.rows.push((ask, depth, row));
        Some(candidates[0].token)
    }

    fn takes_the_first(&self) -> bool {
        self.ahead
    }
}

/// A target with its head.
struct Rig {
    walker: Walker,
    drafter: Box<dyn Drafter>,
    vocab: usize,
}

impl Rig {
    fn try_new(target: &Path, head: &Path, precision: Precision, threads: usize) -> Result<Rig, ModelError> {
        let open = |dir: &Path| Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
        let backend = Arc::new(CpuBackend::new(precision, threads));
        let pair = registry::load_pair(&open(target), &open(head), backend)?;
        let vocab = pair.model.info().vocab_size;
        let drafter = pair.drafter.expect("a drafter");
        Ok(Rig { walker: Walker::new(pair.model, 1, 1), drafter, vocab })
    }

    fn reserved(mut self, slots: usize, positions: usize) -> Rig {
        self.walker = Walker::new(self.walker.model, slots, positions);
        self.walker.model.keep_hidden(self.drafter.hidden_rows());
        self.drafter.reserve(slots, positions).expect("memory");
        self
    }

    fn new(target: &Path, head: &Path, precision: Precision, slots: usize, positions: usize) -> Rig {
        Self::try_new(target, head, precision, 1).unwrap_or_else(|e| panic!("{e}")).reserved(slots, positions)
    }

    /// Shows the head rows of the last step.
    fn observe(&mut self, slot: usize, start: usize, first_row: usize, next: &[u32]) {
        let kept = Kept { slot, start, rows: first_row..first_row + next.len(), next };
        self.drafter.observe(&[kept]).expect("observe");
    }

    /// Runs all of a sequence but its last token, and shows the head the rows from `from` on.
    fn feed(&mut self, slot: usize, tokens: &[u32], from: usize) {
        let end = tokens.len() - 1;
        self.walker.step(&[(slot, 0, &tokens[..end])]);
        self.observe(slot, from, from, &tokens[from + 1..]);
    }

    fn try_propose(&mut self, asks: &[(usize, &[u32], usize)]) -> Result<(Vec<Vec<u32>>, Greedy), ModelError> {
        let asks: Vec<Ask<'_>> = asks
            .iter()
            .map(|(slot, tokens, count)| Ask {
                slot: *slot,
                tokens,
                tables: Vec::new(),
                count: *count,
                candidates: self.vocab,
            })
            .collect();
        let mut greedy = Greedy::default();
        let drafts = self.drafter.propose(&asks, &mut greedy)?;
        Ok((drafts, greedy))
    }

    /// Drafts by ask, and the logits of each.
    fn propose(&mut self, asks: &[(usize, &[u32], usize)]) -> (Vec<Vec<u32>>, Vec<Vec<Vec<f32>>>) {
        let (drafts, greedy) = self.try_propose(asks).unwrap_or_else(|e| panic!("{e}"));
        let mut rows = vec![Vec::new(); asks.len()];
        for (ask, depth, row) in greedy.rows {
            assert_eq!(rows[ask].len(), depth, "depths in order");
            rows[ask].push(row);
        }
        (drafts, rows)
    }
}

/// Largest differences of a rig from a variant's references: prompt, chain, and after a verified block.
fn compare(rig: &mut Rig, golden: &Golden, said: &Value) -> [f32; 3] {
    let floats = |key: &str| golden.floats(key).unwrap_or_else(|| panic!("no {key}"));
    let (prompt, next) = (golden.ids("input_ids")[..16].to_vec(), golden.ids("mtp.prefill_tokens"));
    let vocab = rig.vocab;
    let logits = rig.walker.step(&[(0, 0, &prompt)]).remove(0);
    let bonus = argmax(&logits[15 * vocab..]);
    assert_eq!((u64::from(bonus), bonus), (said["bonus"].as_u64().expect("bonus"), next[15]));

    let want = floats("mtp.prefill_logits");
    let mut prefill = 0.0f32;
    let tokens = [&prompt[..1], &next[..]].concat();
    for rows in 1..=16 {
        rig.drafter.take_back(0, 0);
        rig.observe(0, 0, 0, &next[..rows]);
        assert_eq!(rig.drafter.cached(0), rows);
        let got = rig.propose(&[(0, &tokens[..=rows], 1)]).1.remove(0);
        prefill = prefill.max(worst(&got[0], &want[(rows - 1) * vocab..][..vocab]));
    }
    let (drafts, rows) = rig.propose(&[(0, &tokens, 3)]);
    let chain = worst(&rows[0].concat(), &floats("mtp.chain_logits"));
    if chain <= TOLERANCE {
        assert_eq!(drafts[0], ids(&said["drafts_block_size_4"]));
    }

    // The pairs of the head's own drafts give way to those of the rows that were kept.
    let (block, kept) = (golden.ids("verify.block"), ids(&said["new_tokens"]));
    rig.walker.step(&[(0, 16, &block)]);
    let want = floats("verify.mtp_next_logits_exact");
    let mut verify = 0.0f32;
    for rows in 1..=kept.len() {
        rig.drafter.take_back(0, 16);
        rig.observe(0, 16, 0, &kept[..rows]);
        let all = [&tokens, &kept[..rows]].concat();
        let got = rig.propose(&[(0, &all, 3)]).1.remove(0);
        verify = verify.max(worst(&got[0], &want[(rows - 1) * vocab..][..vocab]));
    }
    [prefill, chain, verify]
}

fn shown([prompt, chain, verify]: [f32; 3]) -> String {
    format!("prompt within {prompt:.1e}, chain {chain:.1e}, verified {verify:.1e}")
}

fn references(variant: &str) -> (Golden, Value) {
    let said = read_json(&dir(variant).join("goldens.json"));
    (Golden::file(&dir(variant).join("goldens.safetensors")), said)
}

#[test]
fn logits_match_the_references_wherever_the_head_lies() {
    for variant in VARIANTS {
        let (golden, said) = references(variant);
        let [alone, converted] = [format!("{variant}-mlx/mtp-drafter"), format!("{variant}-mlx/f32")];
        for (target, head) in [(variant, variant), (variant, &*alone), (&*converted, &*alone)] {
            let mut rig = Rig::new(&dir(target), &dir(head), Precision::F32, 1, 40);
            let errors = compare(&mut rig, &golden, &said["mtp"]);
            println!("{target} with {head}: {}", shown(errors));
            assert!(errors.iter().all(|e| *e <= TOLERANCE), "{target} with {head}: {errors:?}");
        }
    }
}

#[test]
fn a_head_of_four_bits_matches_its_references() {
    for variant in VARIANTS {
        let (golden, said) = references(variant);
        let head = dir(&format!("{variant}-mlx/mtp-drafter-4bit"));
        let seed = Golden::file(&head.join("goldens.safetensors")).floats("seed_hidden").expect("seed_hidden");
        // Those are hidden states: the target's own output matrix makes logits of them.
        let weights = Golden::file(&dir(variant).join("model.safetensors"));
        let tensors = ["lm_head.weight", "model.language_model.embed_tokens.weight", "model.embed_tokens.weight"];
        let matrix = tensors.iter().find_map(|name| weights.floats(name)).expect("an output matrix");
        let dot = |row: &[f32]| row.iter().zip(&seed).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
        let want: Vec<f32> = matrix.chunks_exact(seed.len()).map(dot).collect();

        let mut rig = Rig::new(&dir(variant), &head, Precision::F32, 1, 40);
        let tokens = [&golden.ids("input_ids")[..16], &golden.ids("mtp.prefill_tokens")[15..]].concat();
        rig.feed(0, &tokens, 0);
        let (drafts, rows) = rig.propose(&[(0, &tokens, 3)]);
        let error = worst(&rows[0][0], &want);
        println!("{variant}, 4 bits: logits within {error:.1e}");
        assert!(error <= TOLERANCE, "{variant}: {error:e}");
        assert_eq!(drafts[0], ids(&said["mtp_drafter_4bit"]["drafts_block_size_4"]), "{variant}");
    }
}

/// A converted model that kept its head, under either name, with norms of either convention or of both.
#[test]
fn norms_are_told_apart_in_every_layout() {
    let (golden, said) = references("dense");
    let model = || Copy::named("qwen3_5/dense-mlx/f32");
    let with = |prefix: &str, raw: &dyn Fn(&str) -> bool| {
        let (mut copy, whole, alone) =
            (model(), Copy::named("qwen3_5/dense"), Copy::named("qwen3_5/dense-mlx/mtp-drafter"));
        for (name, shifted) in alone.tensors {
            let tensor = if raw(&name) { whole.tensors[&format!("mtp.{name}")].clone() } else { shifted };
            copy.tensors.insert(format!("{prefix}{name}"), tensor);
        }
        copy.config["text_config"]["mtp_num_hidden_layers"] = json!(1);
        copy.write()
    };
    let mut first = None;
    for (case, head) in [
        ("raw", with("mtp.", &|_| true)),
        ("shifted", with("language_model.mtp.", &|_| false)),
        ("shifted under the raw name", with("mtp.", &|_| false)),
        ("mixed", with("language_model.mtp.", &|name| name == "pre_fc_norm_hidden.weight" || name == "norm.weight")),
    ] {
        let mut rig = Rig::new(head.path(), head.path(), Precision::F32, 1, 40);
        let errors = compare(&mut rig, &golden, &said["mtp"]);
        assert!(errors.iter().all(|e| *e <= TOLERANCE), "{case}: {errors:?}");
        assert_eq!(*first.get_or_insert(errors), errors, "{case}: one head");
    }
    // A directory of its own, under the model's names.
    let mut copy = Copy::named("qwen3_5/dense");
    copy.tensors.retain(|name, _| name.starts_with("mtp."));
    copy.config = Copy::named("qwen3_5/dense-mlx/mtp-drafter").config;
    let head = copy.write();
    let errors = compare(&mut Rig::new(&dir("dense"), head.path(), Precision::F32, 1, 40), &golden, &said["mtp"]);
    assert_eq!(first, Some(errors));
}

#[test]
fn a_round_in_one_go_proposes_what_its_steps_would() {
    let mut differ = 0;
    for (target, head, precision) in [
        (dir("dense"), dir("dense"), Precision::F32),
        (dir("moe-mlx/4bit"), dir("moe-mlx/mtp-drafter-4bit"), Precision::Int8),
        (recurrent_demo(), demo_head(), Precision::Int8),
    ] {
        let mut rig = Rig::new(&target, &head, precision, 3, 160);
        let mut rng = Rng(23);
        let sequences: Vec<Vec<u32>> =
            [70, 9, 33].iter().map(|n| (0..*n).map(|_| rng.below(rig.vocab) as u32).collect()).collect();
        (0..3).for_each(|s| rig.feed(s, &sequences[s], 0));
        for (who, count) in [(vec![0], 4), (vec![0, 1, 2], 5), (vec![2, 0], 2), (vec![1], 1)] {
            let asks: Vec<Ask<'_>> = who
                .iter()
                .map(|s| Ask { slot: *s, tokens: &sequences[*s], tables: Vec::new(), count, candidates: 1 })
                .collect();
            let mut drafts = |ahead| {
                rig.drafter.propose(&asks, &mut Greedy { ahead, ..Greedy::default() }).unwrap_or_else(|e| panic!("{e}"))
            };
            let (stepwise, ahead) = (drafts(false), drafts(true));
            assert_eq!(ahead, stepwise, "{}: {who:?}", head.display());
            assert!(ahead.iter().all(|own| own.len() == count));
            differ += usize::from(ahead.iter().flatten().any(|token| *token != ahead[0][0]));
        }
    }
    assert!(differ > 6, "the same token everywhere shows nothing");
}

#[test]
fn a_batch_of_asks_is_each_ask_alone() {
    for (target, head, precision) in [
        (dir("dense"), dir("dense"), Precision::F32),
        (dir("moe-mlx/4bit"), dir("moe-mlx/mtp-drafter-4bit"), Precision::Int8),
        (recurrent_demo(), demo_head(), Precision::Int8),
    ] {
        let mut rig = Rig::new(&target, &head, precision, 5, 160);
        let mut rng = Rng(3);
        let lengths = [90, 2, 33, 150, 64];
        let sequences: Vec<Vec<u32>> =
            lengths.iter().map(|n| (0..*n).map(|_| rng.below(rig.vocab) as u32).collect()).collect();
        // Slot 4 misses its first half, slot 1 has no pair but one.
        let from = [0, 0, 0, 0, 30];
        let counts = [3, 5, 1, 4, 2];
        let mut alone = Vec::new();
        for s in 0..5 {
            rig.feed(s, &sequences[s], from[s]);
            alone.push(rig.propose(&[(s, &sequences[s], counts[s])]));
        }
        for order in [[0, 1, 2, 3, 4], [4, 2, 0, 3, 1]] {
            order.iter().for_each(|s| rig.drafter.take_back(*s, 0));
            let spans: Vec<(usize, usize, &[u32])> =
                order.iter().map(|s| (*s, 0, &sequences[*s][..lengths[*s] - 1])).collect();
            rig.walker.step(&spans);
            let mut row = 0;
            for s in order {
                rig.observe(s, from[s], row + from[s], &sequences[s][from[s] + 1..]);
                row += lengths[s] - 1;
            }
            let asks: Vec<(usize, &[u32], usize)> =
                order.iter().map(|s| (*s, sequences[*s].as_slice(), counts[*s])).collect();
            let (drafts, rows) = rig.propose(&asks);
            for (i, s) in order.into_iter().enumerate() {
                assert_eq!(drafts[i].len(), counts[s]);
                assert_eq!(drafts[i], alone[s].0[0], "{}: slot {s}", head.display());
                assert_eq!(bits(&rows[i].concat()), bits(&alone[s].1[0].concat()), "{}: slot {s}", head.display());
            }
            // Asked again, with nothing new to run.
            assert_eq!(rig.propose(&asks).0, drafts);
        }
        // What it does not know, it does not guess at.
        let longer = [&sequences[0][..], &[1, 2]].concat();
        assert_eq!(rig.propose(&[(0, &longer, 3), (2, &sequences[2], 1)]).0, [vec![], alone[2].0[0].clone()]);
    }
}

#[test]
fn long_prompts_are_run_before_they_are_asked_for() {
    let mut rig = Rig::new(&dir("dense-mlx/4bit"), &dir("dense-mlx/mtp-drafter-4bit"), Precision::Int8, 2, 1400);
    let mut rng = Rng(9);
    let tokens: Vec<u32> = (0..1301).map(|_| rng.below(190) as u32).collect();
    rig.feed(0, &tokens, 0);
    let whole = rig.propose(&[(0, &tokens, 3)]);
    // In pieces, with a proposal now and then.
    let mut at = 0;
    while at < 1300 {
        let end = (at + 1 + rng.below(400)).min(1300);
        rig.walker.step(&[(1, at, &tokens[at..end])]);
        rig.observe(1, at, 0, &tokens[at + 1..=end]);
        if rng.below(2) == 0 {
            rig.propose(&[(1, &tokens[..=end], 2)]);
        }
        at = end;
    }
    let pieces = rig.propose(&[(1, &tokens, 3)]);
    assert_eq!(pieces.0, whole.0);
    assert_eq!(bits(&pieces.1[0].concat()), bits(&whole.1[0].concat()));
}

/// Rounds of a walk in which rows are accepted, rejected, missed and taken back.
const ROUNDS: usize = 2_000;

#[test]
fn two_thousand_rounds_propose_what_a_fresh_slot_would() {
    const POSITIONS: usize = 150;
    for (target, head, precision) in
        [("dense", "dense", Precision::F32), ("moe-mlx/4bit", "moe-mlx/mtp-drafter-4bit", Precision::Int8)]
    {
        let mut rig = Rig::new(&dir(target), &dir(head), precision, 2, POSITIONS + 10);
        let mut rng = Rng(11);
        let mut tokens: Vec<u32> = vec![5];
        let (mut compared, mut gaps, mut lost, mut resumed) = (0, 0, 0, 0);
        for round in 0..ROUNDS {
            let end = tokens.len() - 1;
            let mut draw = |n: usize| -> Vec<u32> { (0..n).map(|_| rng.below(190) as u32).collect() };
            if end > POSITIONS - 20 {
                tokens = draw(1);
                rig.drafter.take_back(0, 0);
                continue;
            }
            let tail = draw(12);
            match rng.below(12) {
                0 if end > 1 => {
                    // Another request goes on with a part of this one; half the time its next token is the same.
                    let len = 1 + rng.below(end);
                    rig.drafter.take_back(0, len);
                    tokens.truncate(len + rng.below(2));
                    tokens.extend(&tail[..2 + rng.below(10)]);
                    rig.feed(0, &tokens, len);
                    resumed += 1;
                }
                what => {
                    let block = [&tokens[end..], &tail[..rng.below(8)]].concat();
                    let accepted = rng.below(block.len());
                    rig.walker.step(&[(0, end, &block)]);
                    assert!(rig.walker.model.take_back(0, end + accepted + 1), "round {round}");
                    tokens.extend(&block[1..=accepted]);
                    tokens.push(tail[11]);
                    if what == 1 {
                        gaps += 1;
                    } else {
                        rig.observe(0, end, 0, &tokens[end + 1..]);
                    }
                }
            }
            if rng.below(3) == 0 {
                continue;
            }
            let count = 1 + rng.below(4);
            let (drafts, rows) = rig.propose(&[(0, &tokens, count)]);
            let (known, end) = (rig.drafter.cached(0), tokens.len() - 1);
            if drafts[0].is_empty() {
                lost += 1;
                continue;
            }
            rig.drafter.take_back(1, 0);
            rig.feed(1, &tokens, end - known);
            let fresh = rig.propose(&[(1, &tokens, count)]);
            assert_eq!(drafts, fresh.0, "round {round}");
            assert_eq!(bits(&rows[0].concat()), bits(&fresh.1[0].concat()), "round {round}, {known} pairs of {end}");
            compared += 1;
        }
        println!("{target}: {compared} proposals compared, {gaps} gaps, {resumed} resumed, {lost} times nothing known");
        assert!(compared > 800 && gaps > 50 && resumed > 50 && lost > 20, "the walk took all the ways");
    }
}

#[test]
fn going_back_loses_nothing_where_a_target_can_go_back_to() {
    let mut rig = Rig::new(&dir("dense"), &dir("dense"), Precision::F32, 2, 200);
    let mut rng = Rng(2);
    let old: Vec<u32> = (0..150).map(|_| rng.below(190) as u32).collect();
    for len in [149, 148, 140, 134, 133, 128, 64] {
        for same in [true, false] {
            rig.drafter.take_back(0, 0);
            rig.feed(0, &old, 0);
            rig.propose(&[(0, &old, 4)]);
            rig.drafter.take_back(0, len);
            let first = if same { old[len] } else { (old[len] + 1) % 190 };
            let tokens = [&old[..len], &[first], &old[..30]].concat();
            rig.feed(0, &tokens, len);
            let resumed = rig.propose(&[(0, &tokens, 3)]);
            assert_eq!(rig.drafter.cached(0), tokens.len() - 1, "back to {len}: all pairs are known");
            rig.drafter.take_back(1, 0);
            rig.feed(1, &tokens, 0);
            let fresh = rig.propose(&[(1, &tokens, 3)]);
            assert_eq!(bits(&resumed.1[0].concat()), bits(&fresh.1[0].concat()), "back to {len}, {same}");
        }
    }
}

#[test]
fn drafts_end_where_the_reserved_context_ends() {
    let mut rig = Rig::new(&dir("dense"), &dir("dense"), Precision::F32, 1, 64);
    let tokens: Vec<u32> = (0..65).collect();
    // The first draft stores nothing of its own.
    for (len, room) in [(50, 8), (57, 8), (58, 8), (59, 7), (62, 4), (64, 2), (65, 1)] {
        rig.drafter.take_back(0, 0);
        rig.feed(0, &tokens[..len], 0);
        assert_eq!(rig.propose(&[(0, &tokens[..len], 8)]).0[0].len(), room, "{len} tokens");
    }
}

/// A head of two alike layers, one a step in turn, is a head of one.
#[test]
fn layers_take_turns() {
    let mut copy = Copy::named("qwen3_5/moe-mlx/mtp-drafter");
    for (name, tensor) in copy.tensors.clone() {
        if let Some(rest) = name.strip_prefix("layers.0.") {
            copy.tensors.insert(format!("layers.1.{rest}"), tensor);
        }
    }
    copy.config["text_config"]["mtp_num_hidden_layers"] = json!(2);
    let two = copy.write();
    let tokens: Vec<u32> = (3..40).collect();
    let run = |head: &Path| {
        let mut rig = Rig::new(&dir("moe"), head, Precision::F32, 1, 64);
        rig.feed(0, &tokens, 0);
        rig.propose(&[(0, &tokens, 5)])
    };
    let one = run(&dir("moe-mlx/mtp-drafter"));
    assert_eq!(run(two.path()), one);
    // The twin: a second layer that differs is seen from the second draft on.
    copy.swap("layers.1.self_attn.k_proj.weight", "layers.1.self_attn.v_proj.weight");
    let other = run(copy.write().path());
    assert_eq!(other.1[0][0], one.1[0][0]);
    assert_ne!(other.1[0][1], one.1[0][1]);
}

/// Greedy rounds of width `k` over the demo's prompts, past stop tokens: proposed, accepted, and what was said.
fn rounds(rig: &mut Rig, prompts: &[Vec<u32>], k: usize, count: usize) -> (usize, usize, Vec<Vec<u32>>) {
    let vocab = rig.vocab;
    let mut tokens = prompts.to_vec();
    let (mut proposed, mut accepted) = (0, 0);
    for (s, prompt) in prompts.iter().enumerate() {
        rig.drafter.take_back(s, 0);
        let logits = rig.walker.step(&[(s, 0, prompt)]).remove(0);
        tokens[s].push(argmax(&logits[logits.len() - vocab..]));
        rig.observe(s, 0, 0, &tokens[s][1..]);
    }
    loop {
        let open: Vec<usize> = (0..prompts.len()).filter(|s| tokens[*s].len() - prompts[*s].len() < count).collect();
        if open.is_empty() {
            break;
        }
        let asks: Vec<(usize, &[u32], usize)> = open.iter().map(|s| (*s, tokens[*s].as_slice(), k - 1)).collect();
        let drafts = rig.propose(&asks).0;
        let starts: Vec<usize> = open.iter().map(|s| tokens[*s].len() - 1).collect();
        let blocks: Vec<Vec<u32>> =
            open.iter().zip(&drafts).map(|(s, d)| [&tokens[*s][tokens[*s].len() - 1..], d].concat()).collect();
        let spans: Vec<(usize, usize, &[u32])> =
            open.iter().zip(&starts).zip(&blocks).map(|((s, start), block)| (*s, *start, block.as_slice())).collect();
        let logits = rig.walker.step(&spans);
        let mut row = 0;
        for ((s, start), (block, logits)) in open.iter().zip(starts).zip(blocks.iter().zip(&logits)) {
            let said: Vec<u32> = logits.chunks_exact(vocab).map(argmax).collect();
            let right = block[1..].iter().zip(&said).take_while(|(draft, said)| draft == said).count();
            proposed += block.len() - 1;
            accepted += right;
            tokens[*s].extend(&said[..=right]);
            assert!(rig.walker.model.take_back(*s, start + right + 1));
            let next = tokens[*s][start + 1..].to_vec();
            rig.observe(*s, start, row, &next);
            row += block.len();
        }
    }
    let said = tokens.iter().zip(prompts).map(|(t, p)| t[p.len()..p.len() + count].to_vec()).collect();
    (proposed, accepted, said)
}

/// The prompts of the trained pair, with what was said and counted there.
fn demo() -> (Vec<Vec<u32>>, Vec<Vec<u32>>, Value) {
    let golden = read_json(&recurrent_demo().join("golden.json"));
    let prompts = golden["speculative"]["prompts"].as_object().expect("prompts");
    let part = |key: &str| prompts.values().map(|p| ids(&p[key])).collect::<Vec<_>>();
    (part("prompt_ids"), part("greedy_ids"), golden["speculative"]["by_K"].clone())
}

#[test]
fn the_demo_pair_accepts_what_its_reference_accepts() {
    let (prompts, said, by_width) = demo();
    for precision in [Precision::F32, Precision::Int8] {
        let rig = Rig::try_new(&recurrent_demo(), &demo_head(), precision, 2).unwrap_or_else(|e| panic!("{e}"));
        let mut rig = rig.reserved(prompts.len(), 200);
        let mut plain = None;
        for k in [2, 4, 8] {
            let (proposed, accepted, answers) = rounds(&mut rig, &prompts, k, 128);
            let rate = accepted as f64 / proposed as f64;
            let want = by_width[k.to_string()]["acceptance"].as_f64().expect("acceptance");
            println!("{}, K={k}: {accepted} of {proposed} = {rate:.3}, reference {want:.3}", precision.name());
            match precision {
                Precision::F32 => {
                    assert_eq!(answers, said, "K={k}");
                    assert!((rate - want).abs() <= 0.02, "K={k}: {rate:.4}, expected {want:.4}");
                }
                Precision::Int8 => {
                    assert_eq!(*plain.get_or_insert_with(|| answers.clone()), answers, "one answer at every width");
                    assert!(rate > want - 0.1, "K={k}: {rate:.4}, expected about {want:.4}");
                }
            }
        }
    }
}

/// Floats of a tensor in place.
fn edit(copy: &mut Copy, end: &str, change: impl Fn(usize, f32) -> f32) {
    let (dtype, _, bytes) = copy.find(end);
    assert_eq!(dtype, "F32");
    for (i, b) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *b = change(i, f32::from_le_bytes(*b)).to_le_bytes();
    }
}

/// The fault-injected twins: a reference off by little more than the tolerance, and heads with the mistakes that are easily made.
#[test]
fn mistakes_are_noticed() {
    let (golden, said) = references("dense");
    let mut rig = Rig::new(&dir("dense"), &dir("dense"), Precision::F32, 1, 40);
    let tokens = [&golden.ids("input_ids")[..16], &golden.ids("mtp.prefill_tokens")[15..]].concat();
    rig.feed(0, &tokens, 0);
    let rows = rig.propose(&[(0, &tokens, 3)]).1.remove(0).concat();
    let mut want = golden.floats("mtp.chain_logits").expect("logits");
    assert!(worst(&rows, &want) <= TOLERANCE);
    want[300] += 2.0 * TOLERANCE;
    assert!(worst(&rows, &want) > TOLERANCE);

    let mistake = |name: &str, change: &dyn Fn(&mut Copy)| {
        let mut copy = Copy::named("qwen3_5/dense-mlx/mtp-drafter");
        change(&mut copy);
        let head = copy.write();
        let mut rig = Rig::new(&dir("dense"), head.path(), Precision::F32, 1, 40);
        let errors = compare(&mut rig, &golden, &said["mtp"]);
        println!("{name}: {}", shown(errors));
        assert!(errors.iter().all(|e| *e > 10.0 * TOLERANCE), "{name}: {errors:?}");
    };
    for norm in ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "layers.0.input_layernorm", "layers.0.self_attn.k_norm"]
    {
        mistake(&format!("{norm} without its 1"), &|copy| edit(copy, &format!("{norm}.weight"), |_, w| w - 1.0));
    }
    mistake("the hidden state first", &|copy| {
        let (_, _, bytes) = copy.find("fc.weight");
        for row in bytes.chunks_exact_mut(2 * 64 * 4) {
            let (e, c) = row.split_at_mut(64 * 4);
            e.swap_with_slice(c);
        }
    });
    // The target's last norm taken out again.
    let last = Golden::file(&dir("dense").join("model.safetensors"))
        .floats("model.language_model.norm.weight")
        .expect("the last norm");
    mistake("the hidden state before the last norm", &|copy| {
        edit(copy, "pre_fc_norm_hidden.weight", |i, w| w / (1.0 + last[i]));
    });
}

/// On the trained pair the same mistakes cost acceptance, the only symptom they would have.
#[test]
fn a_damaged_head_is_not_accepted() {
    let (prompts, said, _) = demo();
    let rate = |change: &dyn Fn(&mut Copy)| {
        let mut copy = Copy::named("qwen3.5-tiny-mtp-4bit");
        change(&mut copy);
        let head = copy.write();
        let mut rig = Rig::new(&recurrent_demo(), head.path(), Precision::Int8, prompts.len(), 200);
        let (proposed, accepted, answers) = rounds(&mut rig, &prompts, 2, 32);
        (accepted as f64 / proposed as f64, answers)
    };
    let (whole, answers) = rate(&|_| ());
    assert!(whole > 0.7, "{whole:.3}");
    for tensor in ["pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight"] {
        let (damaged, same) = rate(&|copy| {
            let (dtype, _, bytes) = copy.find(tensor);
            assert_eq!(dtype, "BF16");
            // A second 1 would be small beside weights that are large; less 1 they point elsewhere.
            for b in bytes.as_chunks_mut::<2>().0 {
                let value = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16) - 1.0;
                *b = ((value.to_bits() >> 16) as u16).to_le_bytes();
            }
        });
        println!("{tensor} less 1: {damaged:.3} accepted, {whole:.3} without the damage");
        assert!(damaged < 0.7 * whole, "{tensor}: {damaged:.3}");
        assert_eq!(same, answers, "and no byte of the answer");
    }
    assert_eq!(answers.len(), said.len());
}

#[test]
fn a_head_of_another_model_is_refused_before_weights_are_read() {
    let fields = [
        ("hidden_size", json!(128), "64", "128"),
        ("vocab_size", json!(200), "192", "200"),
        ("num_attention_heads", json!(4), "2", "4"),
        ("num_key_value_heads", json!(2), "1", "2"),
        ("head_dim", json!(32), "64", "32"),
        ("partial_rotary_factor", json!(0.5), "0.25", "0.5"),
    ];
    for (field, value, expected, found) in fields {
        let mut copy = Copy::named("qwen3_5/dense-mlx/mtp-drafter");
        let text = &mut copy.config["text_config"];
        if field == "partial_rotary_factor" || field == "head_dim" {
            text["rope_parameters"]["mrope_section"] = Value::Null;
        }
        let place =
            if field == "partial_rotary_factor" { &mut text["rope_parameters"][field] } else { &mut text[field] };
        *place = value;
        // No tensor would do: nobody looks at one.
        copy.tensors.values_mut().for_each(|tensor| (tensor.1, tensor.2) = (vec![1], vec![0; 4]));
        let head = copy.write();
        let error =
            Rig::try_new(&dir("dense"), head.path(), Precision::F32, 1).map(|_| ()).expect_err("must be refused");
        let message = error.to_string();
        assert!(matches!(error, ModelError::Mismatch { .. }), "{message}");
        let paths = [dir("dense").display().to_string(), head.path().display().to_string()];
        let values = format!("{field}: {expected} expected, as the model has it, found {found}");
        paths.iter().chain([&values]).for_each(|part| assert!(message.contains(part), "{part:?} not in: {message}"));
    }
    let refused = |target: &str, head: &str| {
        Rig::try_new(&dir(target), &dir(head), Precision::F32, 1).map(|_| ()).expect_err("must be refused").to_string()
    };
    assert!(refused("dense", "moe-mlx/mtp-drafter").contains("num_experts: 0 expected"));
    assert!(refused("moe", "dense-mlx/mtp-drafter").contains("num_experts: 8 expected"));
    // The target's own checkpoint, without a head inside, is the model once more.
    let own = Checkpoint::open(&dir("dense-mlx/f32")).unwrap_or_else(|e| panic!("{e}"));
    let kind = registry::draft_kind::<CpuBackend>(&own, &own).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(kind, DraftKind::Classic);
}

#[test]
fn tensors_missing_left_over_or_ill_shaped_are_named() {
    let refused = |inside: bool, parts: &[&str], change: &dyn Fn(&mut Copy)| {
        let mut copy = Copy::named(if inside { "qwen3_5/dense" } else { "qwen3_5/dense-mlx/mtp-drafter" });
        change(&mut copy);
        let head = copy.write();
        let target = if inside { head.path().to_path_buf() } else { dir("dense") };
        let error = Rig::try_new(&target, head.path(), Precision::F32, 1).map(|_| ()).expect_err("must be refused");
        let message = error.to_string();
        let path = head.path().display().to_string();
        parts.iter().chain([&&*path]).for_each(|part| assert!(message.contains(part), "{part:?} not in: {message}"));
    };
    let names = ["fc.weight", "norm.weight", "pre_fc_norm_hidden.weight", "layers.0.self_attn.k_norm.weight"];
    for name in names {
        refused(false, &["no tensor", name], &|copy| drop(copy.tensors.remove(name)));
        let inside = format!("mtp.{name}");
        refused(true, &["no tensor", &inside], &|copy| drop(copy.tensors.remove(&inside)));
    }
    let stray = || ("F32".into(), vec![1], vec![0; 4]);
    refused(false, &["does not use", "layers.1.mlp.gate"], &|copy| {
        copy.tensors.insert("layers.1.mlp.gate".into(), stray());
    });
    refused(true, &["does not use", "mtp.embed_tokens.weight"], &|copy| {
        copy.tensors.insert("mtp.embed_tokens.weight".into(), stray());
    });
    refused(false, &["fc.weight", "[64, 64]", "expected [64, 128]"], &|copy| {
        let fc = copy.find("fc.weight");
        (fc.1, fc.2) = (vec![64, 64], vec![0; 64 * 64 * 4]);
    });
}

#[test]
fn damaged_weights_are_found_and_no_other_sequence_suffers() {
    for tensor in
        ["mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.up_proj.weight", "mtp.pre_fc_norm_hidden.weight"]
    {
        let mut copy = Copy::named("qwen3_5/dense");
        copy.poison(tensor, 7, f32::NAN);
        let head = copy.write();
        let mut rig = Rig::new(head.path(), head.path(), Precision::F32, 2, 64);
        let tokens: Vec<u32> = (0..20).collect();
        rig.feed(0, &tokens, 0);
        rig.feed(1, &tokens[..9], 0);
        let error = rig.try_propose(&[(0, &tokens, 3)]).map(|_| ()).expect_err("NaN");
        let message = error.to_string();
        assert!(matches!(error, ModelError::NonFinite { .. }), "{message}");
        let path = head.path().display().to_string();
        [&*path, "not finite", "head"].iter().for_each(|part| assert!(message.contains(part), "{message}"));
        assert_eq!((rig.drafter.cached(0), rig.drafter.cached(1)), (0, 8), "{tensor}");
        assert_eq!(rig.propose(&[(0, &tokens, 3)]).0, [Vec::<u32>::new()], "nothing is known, nothing proposed");
    }
}

#[test]
fn what_it_is() {
    let rig = Rig::new(&recurrent_demo(), &demo_head(), Precision::Int8, 2, 100);
    let info = rig.drafter.info();
    assert_eq!((info.kind.name(), &*info.name, info.block_size), ("mtp", "qwen3.5-tiny-mtp-4bit", 4));
    assert_eq!(info.path, Some(demo_head()));
    let size = std::fs::metadata(demo_head().join("model.safetensors")).expect("weights").len();
    // Norms are held as f32.
    assert!((size * 9 / 10..=size * 11 / 10).contains(&info.weight_bytes), "{} of {size}", info.weight_bytes);
    // Two heads of 128, keys and values, two bytes each, pages of 64.
    assert_eq!(rig.drafter.cache_bytes(), 2 * 128 * 2 * 2 * 2 * 128);
    let inside = Rig::new(&dir("moe"), &dir("moe"), Precision::F32, 1, 10);
    assert_eq!((&*inside.drafter.info().name, inside.drafter.info().block_size), ("moe", 3));
}

/// Prints what a draft costs beside a step of the target; measured by nobody, read by people.
#[test]
fn what_a_draft_costs() {
    const TIMES: u32 = 40;
    let (prompts, _, _) = demo();
    for threads in [1, 2] {
        let rig =
            Rig::try_new(&recurrent_demo(), &demo_head(), Precision::Int8, threads).unwrap_or_else(|e| panic!("{e}"));
        let mut rig = rig.reserved(1, 300);
        let mut tokens = prompts[0].clone();
        tokens.push(7);
        rig.feed(0, &tokens, 0);
        let vocab = std::mem::replace(&mut rig.vocab, 1); // one candidate: the search for the best is no part of it
        let end = tokens.len() - 1;
        let mut time = |what: &mut dyn FnMut(&mut Rig)| {
            what(&mut rig);
            let mut best = f64::MAX;
            for _ in 0..TIMES {
                let started = Instant::now();
                what(&mut rig);
                best = best.min(started.elapsed().as_secs_f64() * 1e6);
            }
            best
        };
        let round = time(&mut |rig| {
            rig.drafter.take_back(0, end - 4);
            rig.observe(0, end - 4, end - 4, &tokens[end - 3..]);
            rig.propose(&[(0, &tokens, 1)]);
        });
        let target = time(&mut |rig| drop(rig.walker.step(&[(0, end, &tokens[end..])])));
        let one = time(&mut |rig| drop(rig.propose(&[(0, &tokens, 1)])));
        let eight = time(&mut |rig| drop(rig.propose(&[(0, &tokens, 8)])));
        let mebibytes = rig.drafter.info().weight_bytes as f64 / f64::from(1 << 20);
        println!(
            "{threads} thread(s): target step {target:.0} us, first draft {one:.0} us, after four new rows {round:.0} us, each \
             further {:.0} us ({mebibytes:.1} MiB of its own, {vocab} logits)",
            (eight - one) / 7.0
        );
        assert!(eight > one, "eight drafts take longer than one");
    }
}
