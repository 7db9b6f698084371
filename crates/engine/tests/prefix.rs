//! The prefix cache: whatever requests share, in whatever order they come, run, end and are given up, each answer is a fresh
//! engine's to the bit, the books agree with a count of all pages at every step, and nothing leaks.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use common::drafts::{Known, Plan};
use common::scripted::{PAGE, Row, SMALL, SNAPSHOT, Scripted, hash_row};
use common::{Driver, Record, Rng, alone, greedy, sampled, tokenizer};
use mlxcel_engine::cache::prefix::CacheFault;
use mlxcel_engine::{Engine, EngineOptions, FinishReason, Request, RequestId, Speculation};
use mlxcel_model::drafters::{Ask, Choose, Classic, DraftKind, Drafter, DrafterInfo, HiddenRows, Kept};
use mlxcel_model::{Model, ModelError};

/// Bytes of a scripted page in both groups.
const PAGE_BYTES: usize = 2 * PAGE * 8;

fn model(recurrent: bool) -> Box<dyn Model> {
    let script = |seen: &[u32]| Row::Logits(hash_row(seen));
    if recurrent { Scripted::recurrent(SMALL, script) } else { Scripted::model(SMALL, script) }
}

fn with_drafter(recurrent: bool, options: EngineOptions, drafter: Option<Box<dyn Drafter>>) -> Driver {
    let Some(drafter) = drafter else { return Driver::new(model(recurrent), options) };
    let speculation = Speculation { calibrate: 0, ..Speculation::default() };
    let engine = Engine::with_drafter(model(recurrent), tokenizer(), options, drafter, speculation);
    Driver::with(engine.unwrap_or_else(|e| panic!("{e}")))
}

/// A text that begins as one of `known` does, then says something else in few words.
fn prompt(known: &[Vec<u32>], most: usize, rng: &mut Rng) -> Vec<u32> {
    let base = &known[rng.below(known.len())];
    let mut text = base[..rng.below(base.len() + 1)].to_vec();
    text.extend((0..1 + rng.below(11)).map(|_| 430 + rng.below(3) as u32));
    text.truncate(most);
    text
}

fn request(prompt: Vec<u32>, rng: &mut Rng) -> Request {
    let tokens = 1 + rng.below(14);
    let mut request =
        if rng.below(2) == 0 { greedy(prompt, tokens) } else { sampled(prompt, tokens, rng.below(3) as u64) };
    request.ignore_eos = rng.below(3) > 0;
    request.block_size = [None, Some(1), Some(4), Some(9), Some(16)][rng.below(5)];
    request
}

/// What a walk came to.
#[derive(Debug, Default)]
struct Sum {
    hits: u64,
    evictions: u64,
    /// Requests that found something and came while others ran.
    beside: usize,
}

/// A random life of an engine with room for little, and maybe a fault; what is wrong with it.
fn walk(seed: u64, recurrent: bool, fault: Option<CacheFault>) -> Result<Sum, String> {
    let mut rng = Rng(seed);
    let options = EngineOptions {
        parallel: 1 + rng.below(4),
        context: Some(40 + rng.below(60)),
        step_rows: 1 + rng.below(30),
        reuse: true,
        cache_bytes: [0, 1, 3, 10, 1000][rng.below(5)] * PAGE_BYTES,
        state_cache: [0, 1, 3, 40][rng.below(4)] * SNAPSHOT,
    };
    let context = options.context.expect("given");
    let parallel = options.parallel;
    let near = |seen: &[u32]| Row::Logits(hash_row(&seen[..seen.len() - usize::from(seen.len().is_multiple_of(3))]));
    let drafter: Option<Box<dyn Drafter>> = match rng.below(4) {
        0 => Some(Box::new(Classic::new(Scripted::recurrent(SMALL, near)))),
        1 => Some(Box::new(Classic::new(Scripted::model(SMALL, near)))),
        2 => Some(Known::boxed(Vec::new(), Plan::Wild(seed), SMALL)),
        _ => None,
    };
    let mut driver = with_drafter(recurrent, options, drafter);
    fault.into_iter().for_each(|fault| driver.engine.plant_cache_fault(fault));
    let mut known = vec![vec![430; 9], vec![431, 430, 432]];
    let mut asked: Vec<(RequestId, Request)> = Vec::new();
    let mut beside = Vec::new();
    for op in 0..90 {
        match rng.below(10) {
            0..4 => {
                let request = request(prompt(&known, context - 1, &mut rng), &mut rng);
                known.push(request.prompt.clone());
                let idle = driver.engine.is_idle();
                let id = driver.submit(request.clone());
                beside.extend((!idle).then_some(id));
                asked.push((id, request));
            }
            4 => {
                let back = rng.below(asked.len() + 1);
                if let Some((id, _)) = asked.iter().rev().nth(back) {
                    driver.cancel(*id);
                }
            }
            5 if rng.below(6) == 0 => driver.engine.clear_cache(),
            _ => {
                for _ in 0..1 + rng.below(6) {
                    driver.step();
                    driver.engine.audit_cache().map_err(|e| format!("operation {op}: {e}"))?;
                }
            }
        }
        driver.engine.audit_cache().map_err(|e| format!("operation {op}: {e}"))?;
        if rng.below(8) == 0 {
            driver.run();
            let (id, request) = asked.last().cloned().unwrap_or_default();
            let done = driver.done.get(&id).map(|record| record.answer.tokens.clone()).unwrap_or_default();
            known.push([request.prompt, done].concat());
        }
        let most = parallel * context.div_ceil(PAGE);
        if driver.engine.pages_in_use().iter().any(|n| *n > most) {
            return Err(format!("{:?} pages in use", driver.engine.pages_in_use()));
        }
    }
    driver.run();
    driver.engine.audit_cache()?;
    for (i, (id, request)) in asked.iter().enumerate() {
        let (answer, want) = (&driver.done[id].answer, alone(model(recurrent), clamped(request, context)));
        let same = match answer.reason {
            FinishReason::Cancelled => want.tokens.starts_with(&answer.tokens),
            _ => *answer == want,
        };
        if !same {
            return Err(format!("request {i}: {answer:?}, alone {want:?}"));
        }
    }
    let stats = driver.engine.cache_stats();
    if stats.hits + stats.misses > asked.len() as u64 || stats.pages != driver.engine.pages_cached() {
        return Err(format!("{stats:?} after {} requests", asked.len()));
    }
    if driver.engine.pages_in_use() != [0, 0] {
        return Err(format!("{:?} pages in use by nobody", driver.engine.pages_in_use()));
    }
    driver.engine.clear_cache();
    driver.engine.audit_cache()?;
    let left = driver.engine.cache_stats();
    if driver.engine.pages_used() != [0, 0] || left.bytes != 0 || left.snapshots != 0 {
        return Err(format!("{left:?} after clearing"));
    }
    let beside = beside.iter().filter(|id| driver.done[id].cached_tokens > 0).count();
    Ok(Sum { hits: stats.hits, evictions: stats.evictions, beside })
}

/// As the shorter context of the walk ends it.
fn clamped(request: &Request, context: usize) -> Request {
    let room = context - request.prompt.len();
    Request { max_tokens: request.max_tokens.map(|n| n.min(room)), block_size: None, ..request.clone() }
}

#[test]
fn random_lives_change_no_answer_and_leak_nothing() {
    for recurrent in [false, true] {
        let mut all = Sum::default();
        for seed in 0..90 {
            let sum = walk(seed, recurrent, None).unwrap_or_else(|e| panic!("seed {seed}, recurrent {recurrent}: {e}"));
            all.hits += sum.hits;
            all.evictions += sum.evictions;
            all.beside += sum.beside;
        }
        println!("recurrent {recurrent}: {all:?}");
        // A recurrent state is only found where a snapshot was taken, or in its slot.
        let least = if recurrent { 250 } else { 1000 };
        assert!(all.hits > least && all.evictions > 4_000 && all.beside > 150, "{all:?}");
    }
}

/// The twins: caches that are wrong in one way are noticed by that walk.
#[test]
fn faulty_caches_are_noticed() {
    for fault in [CacheFault::ShortKey, CacheFault::LongHit, CacheFault::EvictInUse] {
        let noticed = |seed: &u64| {
            let walked = catch_unwind(AssertUnwindSafe(|| walk(*seed, false, Some(fault))));
            !matches!(walked, Ok(Ok(_)))
        };
        let count = (0..12).filter(noticed).count();
        println!("{fault:?}: noticed in {count} of 12 walks");
        assert!(count > 3, "{fault:?} was noticed in {count} of 12 walks");
    }
}

fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// With room for everything, every full page is found again that any request before computed.
#[test]
fn all_that_was_computed_is_found() {
    for seed in 0..30 {
        let mut rng = Rng(1000 + seed);
        let cache_bytes = 4000 * PAGE_BYTES;
        let options = EngineOptions { cache_bytes, context: Some(128), step_rows: 20, ..EngineOptions::default() };
        let mut driver = Driver::new(model(false), options);
        let mut known = vec![vec![430; 9]];
        let mut computed: Vec<Vec<u32>> = Vec::new();
        for turn in 0..40 {
            let request = request(prompt(&known, 100, &mut rng), &mut rng);
            let found = driver.ask(request.clone());
            let all = [&request.prompt[..], &found.answer.tokens].concat();
            let most = computed.iter().map(|c| shared(c, &request.prompt)).max().unwrap_or(0);
            let most = most.min(request.prompt.len() - 1);
            let least = most / PAGE * PAGE;
            assert!(
                (least..=most).contains(&found.cached_tokens),
                "seed {seed}, turn {turn}: {} of {most}",
                found.cached_tokens
            );
            computed.push(all[..all.len() - 1].to_vec());
            known.push(all);
        }
        assert_eq!(driver.engine.cache_stats().evictions, 0);
    }
}

/// What is found does not depend on how the answers before were decoded, however little room there is.
#[test]
fn drafts_change_nothing_of_what_is_found() {
    let mut found = 0;
    for seed in 0..60 {
        let recurrent = seed % 2 == 1;
        let mut rng = Rng(2000 + seed);
        let options = EngineOptions {
            parallel: 1 + rng.below(2),
            context: Some(64 + rng.below(64)),
            step_rows: 20,
            cache_bytes: [0, 2, 9, 40][rng.below(4)] * PAGE_BYTES,
            state_cache: [1, 4, 40][rng.below(3)] * SNAPSHOT,
            ..EngineOptions::default()
        };
        let mut slow = Driver::new(model(recurrent), options.clone());
        let mut known = vec![vec![430; 9]];
        let mut asked: Vec<(Request, Record)> = Vec::new();
        for _ in 0..40 {
            let mut request = request(prompt(&known, 60, &mut rng), &mut rng);
            request.ignore_eos = rng.below(4) > 0;
            let record = slow.ask(request.clone());
            known.push([&request.prompt[..], &record.answer.tokens].concat());
            asked.push((request, record));
        }
        for plan in [Plan::Oracle, Plan::Wild(seed), Plan::Wrong] {
            let drafter = Known::boxed(known.clone(), plan.clone(), SMALL);
            let mut fast = with_drafter(recurrent, options.clone(), Some(drafter));
            for (turn, (request, want)) in asked.iter().enumerate() {
                let record = fast.ask(request.clone());
                let what = format!("seed {seed}, turn {turn}, {plan:?}, {options:?}");
                assert_eq!(record.answer, want.answer, "{what}");
                assert_eq!(record.cached_tokens, want.cached_tokens, "{what}");
                found += record.cached_tokens;
            }
        }
    }
    assert!(found > 20_000, "{found} tokens found");
}

#[test]
fn running_requests_share_pages() {
    let options = EngineOptions { parallel: 4, context: Some(256), step_rows: 16, ..EngineOptions::default() };
    let mut driver = Driver::new(model(false), options);
    let system: Vec<u32> = (0..101).map(|i| 420 + i % 60).collect();
    let ask = |last: u32| Request { ignore_eos: true, ..sampled([&system[..], &[last]].concat(), 30, 5) };
    let first = driver.submit(ask(430));
    // While the first is in the middle of its prompt, the second finds what is there.
    driver.steps(4);
    let second = driver.submit(ask(431));
    driver.steps(8);
    let before = driver.engine.pages_in_use()[0];
    let more = [driver.submit(ask(432)), driver.submit(ask(433))];
    driver.step();
    // Each needs its own last page, and shares 25.
    assert_eq!(driver.engine.pages_in_use()[0], before + 2);
    assert!(driver.engine.audit_cache().is_ok());
    driver.run();
    let cached: Vec<usize> = [first, second, more[0], more[1]].iter().map(|id| driver.done[id].cached_tokens).collect();
    assert_eq!(cached, [0, 64, 100, 100]);
    for (id, last) in [first, second, more[0], more[1]].iter().zip(430..) {
        assert_eq!(driver.done[id].answer, alone(model(false), ask(last)));
    }
    let stats = driver.engine.cache_stats();
    assert_eq!((stats.hits, stats.misses, stats.hit_tokens), (3, 1, 264));
    assert_eq!(stats.bytes, stats.pages.iter().sum::<usize>() * PAGE_BYTES / 2);
}

/// Sequences that compute the same at the same time hold it once from then on.
#[test]
fn what_is_computed_twice_is_kept_once() {
    let options = EngineOptions { parallel: 3, context: Some(128), step_rows: 300, ..EngineOptions::default() };
    let mut driver = Driver::new(model(false), options);
    let text: Vec<u32> = (0..80).map(|i| 420 + i % 60).collect();
    let ids: Vec<_> = (0..3).map(|seed| driver.submit(sampled([&text[..], &[430]].concat(), 9, seed))).collect();
    driver.step();
    assert_eq!(driver.engine.pages_in_use()[0], 20 + 3, "20 full pages, and three of their own");
    driver.run();
    for (id, seed) in ids.iter().zip(0..) {
        assert_eq!(driver.done[id].answer, alone(model(false), sampled([&text[..], &[430]].concat(), 9, seed)));
    }
}

#[test]
fn the_longest_unused_goes_first() {
    // One slot of 16 pages, and 10 more.
    let options = EngineOptions { context: Some(64), cache_bytes: 10 * PAGE_BYTES, ..EngineOptions::default() };
    let mut driver = Driver::new(model(false), options);
    let text = |first: u32| (0..25).map(|i| first + i % 7).collect::<Vec<u32>>();
    let mut ask = |first: u32| driver.ask(greedy(text(first), 1)).cached_tokens;
    // Three texts of six full pages and a tail each: 21 pages.
    assert_eq!([ask(430), ask(440), ask(450)], [0, 0, 0]);
    assert_eq!([ask(430), ask(440), ask(450)], [24, 24, 24]);
    // A fourth needs room for seven; the first was used longest ago, and gives up its end.
    assert_eq!(ask(460), 0);
    assert_eq!([ask(430), ask(450)], [20, 24]);
    assert!(driver.engine.cache_stats().evictions > 0);
}

#[test]
fn without_reuse_nothing_is_kept() {
    let options = EngineOptions { reuse: false, cache_bytes: 1 << 20, ..EngineOptions::default() };
    let mut driver = Driver::new(model(false), options);
    for _ in 0..2 {
        assert_eq!(driver.ask(greedy(vec![430; 50], 8)).cached_tokens, 0);
        assert_eq!(driver.engine.pages_used(), [0, 0]);
    }
    assert_eq!(driver.engine.cache_stats(), mlxcel_engine::CacheStats::default());
}

/// After a failure nothing is offered again that the failed request alone came by; what others share stays.
#[test]
fn a_failed_request_leaves_only_what_others_share() {
    for recurrent in [false, true] {
        let script = |seen: &[u32]| match (seen[0], seen.len()) {
            (430, 46) => Row::Broken,
            _ => Row::Logits(hash_row(seen)),
        };
        let broken = if recurrent { Scripted::recurrent(SMALL, script) } else { Scripted::model(SMALL, script) };
        let options = EngineOptions { parallel: 2, context: Some(128), step_rows: 9, ..EngineOptions::default() };
        let mut driver = Driver::new(broken, options);
        let text: Vec<u32> = (0..40).map(|i| 430 + i % 60).collect();
        let ask = |len: usize| Request { ignore_eos: true, ..sampled(text[..len].to_vec(), 20, 1) };
        driver.ask(greedy([&text[..26], &[500; 8]].concat(), 1));
        let failed = driver.ask(ask(40));
        assert!(matches!(failed.answer.reason, FinishReason::Error(_)), "{:?}", failed.answer.reason);
        driver.engine.audit_cache().unwrap_or_else(|e| panic!("{e}"));
        let shorter = Request { max_tokens: Some(4), ..ask(38) };
        let record = driver.ask(shorter.clone());
        assert!(recurrent || record.cached_tokens == 24, "{}", record.cached_tokens);
        assert_eq!(record.answer, alone(model(recurrent), shorter));
        let again = driver.ask(ask(40));
        assert!(matches!(again.answer.reason, FinishReason::Error(_)));
        assert_eq!(again.answer.tokens, failed.answer.tokens);
        driver.engine.clear_cache();
        assert_eq!(driver.engine.pages_used(), [0, 0]);
    }
}

/// A third conversation with the same beginning finds a state where the second parted from the first.
#[test]
fn snapshots_are_taken_where_conversations_part() {
    let options = EngineOptions { context: Some(512), step_rows: 200, ..EngineOptions::default() };
    let mut driver = Driver::new(model(true), options);
    let system: Vec<u32> = (0..101).map(|i| 420 + i % 60).collect();
    let mut ask = |last: u32| {
        let request = greedy([&system[..], &vec![last; 90]].concat(), 3);
        let record = driver.ask(request.clone());
        assert_eq!(record.answer, alone(model(true), request));
        record.cached_tokens
    };
    assert_eq!([ask(430), ask(431), ask(432), ask(433)], [0, 0, 100, 100]);
}

/// Proposes nothing, and notes which slots were handed on, from which length.
struct Spy(DrafterInfo, Arc<Mutex<Vec<(usize, usize)>>>);

impl Drafter for Spy {
    fn info(&self) -> &DrafterInfo {
        &self.0
    }
    fn hidden_rows(&self) -> HiddenRows {
        HiddenRows::None
    }
    fn reserve(&mut self, _: usize, _: usize) -> Result<(), ModelError> {
        Ok(())
    }
    fn observe(&mut self, _: &[Kept<'_>]) -> Result<(), ModelError> {
        Ok(())
    }
    fn take_back(&mut self, slot: usize, len: usize) {
        self.1.lock().expect("no panic").push((slot, len));
    }
    fn propose(&mut self, asks: &[Ask<'_>], _: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        Ok(vec![Vec::new(); asks.len()])
    }
    fn cache_bytes(&self) -> usize {
        0
    }
    fn cached(&self, _: usize) -> usize {
        0
    }
}

/// A drafter is told what it saw in a slot itself, whatever pages the cache has.
#[test]
fn drafters_are_told_what_they_saw_themselves() {
    let info = DrafterInfo { kind: DraftKind::Classic, name: "spy".into(), path: None, block_size: 4, weight_bytes: 0 };
    let log = Arc::new(Mutex::new(Vec::new()));
    let options = EngineOptions { parallel: 2, context: Some(256), ..EngineOptions::default() };
    let mut driver = with_drafter(false, options, Some(Box::new(Spy(info, Arc::clone(&log)))));
    let mut ask = |prompt: Vec<u32>| {
        let record = driver.ask(Request { ignore_eos: true, ..greedy(prompt.clone(), 10) });
        let handed = log.lock().expect("no panic").drain(..).collect::<Vec<_>>();
        (record.cached_tokens, handed, [prompt, record.answer.tokens].concat())
    };
    let (cached, handed, first) = ask((0..20).map(|i| 430 + i).collect());
    assert_eq!((cached, handed), (0, vec![(0, 0)]));
    // Another conversation with the same beginning: pages from the cache, but in a slot that saw nothing of them.
    let (cached, handed, second) = ask([&first[..12], &[500; 20]].concat());
    assert_eq!((cached, handed), (12, vec![(1, 0)]));
    // Both go on where they were.
    for (slot, text) in [(0, first), (1, second)] {
        let (cached, handed, _) = ask([&text[..], &[470, 471]].concat());
        assert_eq!((cached, handed), (text.len() - 1, vec![(slot, text.len() - 1)]));
    }
}

/// The state of a conversation is found in its slot, even without a snapshot.
#[test]
fn conversations_find_their_slots_again() {
    let options = EngineOptions { parallel: 3, context: Some(256), ..EngineOptions::default() };
    let draft = Box::new(Classic::new(model(false)));
    let mut driver = with_drafter(true, EngineOptions { state_cache: 0, ..options }, Some(draft));
    let mut texts: Vec<Vec<u32>> = (0..3).map(|i| vec![430 + i; 20]).collect();
    for turn in 0..4 {
        // Another order each time.
        for i in [turn % 3, (turn + 1) % 3, (turn + 2) % 3] {
            let request = Request { ignore_eos: true, ..sampled(texts[i].clone(), 9, turn as u64) };
            let record = driver.ask(request.clone());
            assert_eq!(record.answer, alone(model(true), request));
            let known = if turn == 0 { 0 } else { texts[i].len() - 3 };
            assert_eq!(record.cached_tokens, known, "turn {turn}: its own state, without any snapshot");
            texts[i].extend(&record.answer.tokens);
            texts[i].extend([440, 441]);
        }
    }
}
