//! Simulations: a machine with a cost curve and noise, a text with acceptance by depth, and controllers that see only what an
//! engine would tell them. No real time passes.

use super::*;

/// Seconds of a step by its rows: a line through points, and its last slope beyond.
type Curve = &'static [(usize, f64)];

/// Measured on a CPU: three rows cost more than four.
const BUMPY: Curve = &[(1, 1.0), (2, 1.2), (3, 2.12), (4, 2.0), (5, 2.68), (8, 3.71), (16, 7.02)];

/// A machine that reads weights most of the time.
const FLAT: Curve = &[(1, 1.0), (16, 1.3), (64, 2.5)];

/// A machine that computes in tiles of eight rows.
const TILES: Curve = &[
    (1, 1.0),
    (8, 1.05),
    (9, 1.9),
    (16, 2.0),
    (17, 2.9),
    (24, 3.0),
    (25, 3.9),
    (32, 4.0),
    (33, 4.9),
    (40, 5.0),
    (128, 16.0),
];

/// Every row costs as much as the first.
const STEEP: Curve = &[(1, 1.0), (16, 16.0)];

fn seconds(curve: Curve, rows: usize) -> f64 {
    let at = curve.iter().position(|(r, _)| *r >= rows).unwrap_or(curve.len() - 1).max(1);
    let ((r0, s0), (r1, s1)) = (curve[at - 1], curve[at]);
    s0 + (s1 - s0) * (rows as f64 - r0 as f64) / (r1 - r0) as f64
}

/// A text: how often drafts are right, by depth: the first, each later one given those before it.
type Text = (f64, f64);

#[derive(Clone, Copy, Debug)]
struct World {
    curve: Curve,
    /// Seconds of a draft step.
    draft: f64,
    sequences: usize,
    /// The text of each half.
    text: [Text; 2],
    /// Tokens of each sequence.
    tokens: usize,
    /// Seconds of everything at the end, compared with the beginning.
    drift: f64,
    /// Whether single measurements are a hundred times too long now and then.
    hiccups: bool,
    seed: u64,
}

const WORLD: World = World {
    curve: BUMPY,
    draft: 0.1,
    sequences: 1,
    text: [(0.8, 0.8); 2],
    tokens: 2000,
    drift: 1.0,
    hiccups: true,
    seed: 1,
};

/// Uniform in [0, 1).
fn uniform(seed: u64, counters: [u64; 3]) -> f64 {
    let mut x = seed;
    for c in counters {
        x = (x ^ c).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    (x >> 11) as f64 / (1_u64 << 53) as f64
}

/// What a simulation came to.
#[derive(Debug, Default)]
struct Outcome {
    /// Seconds of each half.
    seconds: [f64; 2],
    counters: WidthCounters,
    /// Steps by settled width of the first sequence.
    settled: [usize; MAX_BLOCK + 1],
    /// Tokens of the second half when the first sequence first settled at more than 1.
    found: Option<usize>,
}

/// What engines remember between requests.
#[derive(Clone)]
struct Memory {
    costs: Costs,
    prior: Acceptance,
}

impl Memory {
    fn new() -> Self {
        Memory { costs: Costs::new(), prior: Acceptance::new() }
    }
}

impl World {
    /// Runs controllers until the batch has its tokens, after three plain steps that were measured beforehand.
    fn run(&self, memory: &mut Memory, policy: Policy, tuning: Tuning) -> Outcome {
        let mut widths: Vec<Width> = (0..self.sequences).map(|_| Width::tuned(policy, tuning)).collect();
        let mut at = vec![0_usize; self.sequences];
        let mut last = vec![1_usize; self.sequences];
        let mut outcome = Outcome::default();
        let goal = self.tokens * self.sequences;
        for i in 0..3 {
            memory.costs.step(1, self.noisy(1.0, i, 9));
        }
        for step in 0.. {
            let done: usize = at.iter().sum();
            if done >= goal {
                break;
            }
            let half = usize::from(2 * done >= goal);
            let slow = 1.0 + (self.drift - 1.0) * done as f64 / goal as f64;
            match policy {
                Policy::Pinned(k) => last.fill(k),
                Policy::Adaptive { .. } => {
                    let mut seats: Vec<Seat<'_>> =
                        widths.iter_mut().map(|width| Seat { width, most: MAX_BLOCK }).collect();
                    last = plan(&mut seats, &memory.costs, &memory.prior, Others::default());
                }
            }
            assert!(last.iter().all(|k| (1..=MAX_BLOCK).contains(k)));
            let rows = last.iter().sum();
            let depth = last.iter().max().map_or(0, |k| k - 1);
            let drafting = last.iter().filter(|k| **k > 1).count();
            let passes = |d: usize| last.iter().filter(|k| **k > d).count();
            let draft: f64 = (1..=depth).map(|d| slow * self.draft * (0.95 + 0.05 * passes(d) as f64)).sum();
            let verify = slow * seconds(self.curve, rows);
            outcome.seconds[half] += draft + verify;
            let learns = matches!(policy, Policy::Adaptive { .. });
            if learns {
                memory.costs.step(rows, self.noisy(verify, step, 0));
            }
            if learns && drafting > 0 {
                memory.costs.draft(drafting, depth, self.noisy(draft, step, 1));
            }
            outcome.settled[widths[0].settled()] += 1;
            if half == 1 && widths[0].settled() > 1 && outcome.found.is_none() {
                outcome.found = Some(done / self.sequences - self.tokens / 2);
            }
            for i in 0..self.sequences {
                let proposed = last[i] - 1;
                let right = |d: usize| {
                    let rate = if d == 0 { self.text[half].0 } else { self.text[half].1 };
                    uniform(self.seed, [i as u64, (at[i] + d) as u64, 100 + d as u64]) < rate
                };
                let accepted = (0..proposed).take_while(|d| right(*d)).count();
                if learns {
                    widths[i].round(last[i], proposed, accepted);
                    memory.prior.record(proposed, accepted);
                }
                at[i] += accepted + 1;
            }
        }
        outcome.counters = widths[0].counters();
        outcome
    }

    /// A measurement of what took `seconds`.
    fn noisy(&self, seconds: f64, step: u64, kind: u64) -> f64 {
        let noise = 0.95 + 0.1 * uniform(self.seed, [step, kind, 1]);
        let hiccup = self.hiccups && uniform(self.seed, [step, kind, 2]) < 0.005;
        seconds * noise * if hiccup { 100.0 } else { 1.0 }
    }

    /// Seconds with the best fixed width of each half, and those widths; then seconds without drafting.
    fn fixed(&self) -> (f64, [usize; 2], f64) {
        let runs: Vec<[f64; 2]> =
            (1..=MAX_BLOCK).map(|k| self.run(&mut Memory::new(), Policy::Pinned(k), TUNING).seconds).collect();
        let best =
            [0, 1].map(|half| (0..MAX_BLOCK).min_by(|a, b| runs[*a][half].total_cmp(&runs[*b][half])).unwrap_or(0));
        (runs[best[0]][0] + runs[best[1]][1], best.map(|k| k + 1), runs[0][0] + runs[0][1])
    }
}

const ADAPTIVE: Policy = Policy::Adaptive { start: 4, most: MAX_BLOCK };

/// Texts from which nothing can be drafted to such that all can.
const STEADY: [Text; 8] =
    [(0.0, 0.0), (0.3, 0.3), (0.5, 0.6), (0.4, 0.9), (0.7, 0.7), (0.85, 0.8), (0.95, 0.95), (1.0, 1.0)];

/// What a set of worlds came to.
#[derive(Debug)]
struct Tally {
    /// Throughput in units of the best fixed width's: the least of any world, and the mean.
    least: f64,
    mean: f64,
    /// The least throughput in units of plain decoding, of worlds in which nothing is better than that.
    losing: f64,
    /// Most changes of width.
    changes: u64,
}

fn tally(worlds: impl Iterator<Item = World>, tuning: Tuning) -> Tally {
    let mut tally = Tally { least: f64::MAX, mean: 0.0, losing: 1.0, changes: 0 };
    let mut count = 0.0;
    for world in worlds {
        let (best, widths, plain) = world.fixed();
        let outcome = world.run(&mut Memory::new(), ADAPTIVE, tuning);
        let seconds: f64 = outcome.seconds.iter().sum();
        if best / seconds < tally.least {
            tally.least = best / seconds;
            println!("{:.3} best {widths:?} {world:?} {outcome:?}", best / seconds);
        }
        if widths == [1, 1] {
            tally.losing = tally.losing.min(plain / seconds);
        }
        tally.mean += best / seconds;
        count += 1.0;
        tally.changes = tally.changes.max(outcome.counters.changes);
    }
    tally.mean /= count;
    println!("{tally:?} of {count} worlds");
    tally
}

fn worlds<'a>(
    curves: &'a [Curve],
    drafts: &'a [f64],
    texts: &'a [[Text; 2]],
) -> impl Iterator<Item = World> + Clone + 'a {
    let seeds = 1..=2_u64;
    curves.iter().flat_map(move |curve| {
        let seeds = seeds.clone();
        drafts.iter().flat_map(move |draft| {
            let seeds = seeds.clone();
            texts.iter().flat_map(move |text| {
                seeds.clone().map(move |seed| World { curve, draft: *draft, text: *text, seed, ..WORLD })
            })
        })
    })
}

fn steady() -> Vec<[Text; 2]> {
    STEADY.iter().map(|t| [*t; 2]).collect()
}

#[test]
fn nearly_as_fast_as_the_best_fixed_width() {
    let texts = steady();
    let found = tally(worlds(&[BUMPY, FLAT, STEEP], &[0.1, 0.3, 1.0], &texts), TUNING);
    assert!(found.least >= 0.91 && found.mean >= 0.98 && found.losing >= 0.98 && found.changes <= 25, "{found:?}");
    // Where eight rows cost as much as one and nine twice that, it takes a while to find the edge.
    let found = tally(worlds(&[TILES], &[0.1, 0.3], &texts), TUNING);
    assert!(found.least >= 0.9 && found.mean >= 0.96, "{found:?}");
}

#[test]
fn so_are_batches() {
    for sequences in [2, 4, 8] {
        let texts = [[(0.3, 0.3); 2], [(0.7, 0.7); 2], [(0.95, 0.95); 2]];
        let drafts = [0.1, 1.0];
        let all = worlds(&[BUMPY, FLAT, STEEP], &drafts, &texts).filter(|w| w.seed == 1);
        let found = tally(all.map(|w| World { sequences, tokens: 1000, ..w }), TUNING);
        assert!(found.least >= 0.92 && found.mean >= 0.97 && found.losing >= 0.96, "{sequences}: {found:?}");
    }
}

#[test]
fn texts_that_change_halfway_and_machines_that_get_slower() {
    let texts = [[(0.9, 0.9), (0.1, 0.1)], [(0.05, 0.05), (0.95, 0.95)], [(0.8, 0.8), (0.4, 0.4)]];
    let found = tally(worlds(&[BUMPY, FLAT], &[0.1, 0.3], &texts), TUNING);
    assert!(found.least >= 0.92 && found.mean >= 0.96 && found.changes <= 25, "{found:?}");
    let texts = [[(0.8, 0.8); 2]];
    let slower = worlds(&[BUMPY, FLAT], &[0.1, 0.3], &texts).map(|w| World { drift: 3.0, ..w });
    let found = tally(slower, TUNING);
    assert!(found.least >= 0.93 && found.mean >= 0.97, "{found:?}");
}

/// Worlds in which drafting loses, a thousand tokens each.
fn losing() -> impl Iterator<Item = World> + Clone {
    [0.0, 0.02].into_iter().flat_map(|rate| [0.1, 0.3, 0.6, 1.0].map(|draft| (rate, draft))).flat_map(
        |(rate, draft)| (1..=4).map(move |seed| World { draft, text: [(rate, 0.5); 2], tokens: 1000, seed, ..WORLD }),
    )
}

#[test]
fn drafting_that_loses_costs_little() {
    let found = tally(losing(), TUNING);
    assert!(found.losing >= 0.98, "{found:?}");
    // A drafter that is right, but dearer than what it saves.
    let dear = losing().map(|w| World { draft: 1.0, text: [(0.8, 0.8); 2], ..w });
    assert!(tally(dear.clone(), TUNING).losing >= 0.98);
    // Without counting what proposals cost it would never stop.
    let blind = Tuning { counts_drafts: false, ..TUNING };
    assert!(tally(dear, blind).losing < 0.9);
}

#[test]
fn drafts_that_become_right_are_found_again() {
    let world = World { text: [(0.0, 0.0), (0.95, 0.95)], ..WORLD };
    for seed in 1..=20 {
        let outcome = World { seed, ..world }.run(&mut Memory::new(), ADAPTIVE, TUNING);
        assert!(outcome.found.is_some_and(|tokens| tokens <= 200), "{seed}: {outcome:?}");
    }
    // Without trials it would plod on.
    let outcome = world.run(&mut Memory::new(), ADAPTIVE, Tuning { trials: (0.0, 0.0), ..TUNING });
    assert_eq!(outcome.found, None, "{outcome:?}");
}

#[test]
fn pauses_between_retries_grow() {
    // Whatever trials may cost: after pauses of 8, 16, 32 there is one in 40 steps.
    let lavish = Tuning { trials: (1e9, 1e9), ..TUNING };
    let world = World { text: [(0.0, 0.0); 2], tokens: 1000, ..WORLD };
    let trials = world.run(&mut Memory::new(), ADAPTIVE, lavish).counters.trials;
    assert!((15..=40).contains(&trials), "{trials}");
}

#[test]
fn a_batch_is_measured_without_drafts_first() {
    let mut memory = Memory::new();
    (0..3).for_each(|_| memory.costs.step(1, 1.0));
    let mut widths: Vec<Width> = (0..4).map(|_| Width::new(ADAPTIVE)).collect();
    let mut step = |memory: &Memory| {
        let mut seats: Vec<Seat<'_>> = widths.iter_mut().map(|width| Seat { width, most: MAX_BLOCK }).collect();
        let ks = plan(&mut seats, &memory.costs, &memory.prior, Others::default());
        widths.iter_mut().zip(&ks).for_each(|(w, k)| w.round(*k, k - 1, 0));
        ks
    };
    for _ in 0..2 {
        assert_eq!(step(&memory), [1; 4]);
        memory.costs.step(4, 1.1);
    }
    assert_eq!(step(&memory), [4; 4]);
}

#[test]
fn widths_do_not_flap() {
    // Two widths that are worth the same, and all measurements noisy.
    let even: Curve = &[(1, 1.0), (2, 1.35), (3, 1.6), (4, 1.75), (8, 2.4), (16, 4.0)];
    let world = World { curve: even, text: [(0.5, 0.6); 2], ..WORLD };
    let changes = |tuning| {
        (1..=4).map(|seed| World { seed, ..world }.run(&mut Memory::new(), ADAPTIVE, tuning).counters.changes).max()
    };
    assert!(changes(TUNING) <= Some(25), "{:?}", changes(TUNING));
    let nervous = changes(Tuning { margin: 1.0, dwell: 0.0, ..TUNING });
    assert!(nervous > Some(60), "{nervous:?}");
}

#[test]
fn four_is_found_to_be_cheaper_than_three() {
    let mut memory = Memory::new();
    let outcome = World { text: [(0.95, 0.95); 2], ..WORLD }.run(&mut memory, ADAPTIVE, TUNING);
    let most = (1..=MAX_BLOCK).max_by_key(|k| outcome.settled[*k]);
    assert_eq!(most, Some(4), "{outcome:?}");
    assert!(outcome.settled[3] < 50, "{outcome:?}");
}

#[test]
fn a_new_sequence_starts_where_earlier_ones_ended() {
    let mut memory = Memory::new();
    let good = World { text: [(0.9, 0.9); 2], ..WORLD };
    good.run(&mut memory, ADAPTIVE, TUNING);
    let mut width = Width::new(ADAPTIVE);
    assert!(width.next(&memory.costs, &memory.prior, Others::default(), MAX_BLOCK) > 1);
    // Where drafting loses, at 1 from the beginning.
    let mut memory = Memory::new();
    World { draft: 0.3, text: [(0.02, 0.5); 2], ..WORLD }.run(&mut memory, ADAPTIVE, TUNING);
    let mut width = Width::new(ADAPTIVE);
    assert_eq!(width.next(&memory.costs, &memory.prior, Others::default(), MAX_BLOCK), 1);
    assert_eq!(width.settled(), 1);
}

#[test]
fn one_of_a_batch_may_draft_while_the_others_do_not() {
    let mut memory = Memory::new();
    let flat = World { curve: FLAT, ..WORLD };
    (0..20).for_each(|_| [1, 2, 4, 5, 8, 12].iter().for_each(|rows| memory.costs.step(*rows, seconds(FLAT, *rows))));
    (1..8).for_each(|depth| memory.costs.draft(1, depth, 0.01 * depth as f64));
    let mut widths = [Width::new(ADAPTIVE), Width::new(ADAPTIVE)];
    let mut last = Vec::new();
    for _ in 0..60 {
        let mut seats: Vec<Seat<'_>> = widths.iter_mut().map(|width| Seat { width, most: MAX_BLOCK }).collect();
        last = plan(&mut seats, &memory.costs, &memory.prior, Others { rows: 2, sequences: 2 });
        widths[0].round(last[0], last[0] - 1, last[0] - 1);
        widths[1].round(last[1], last[1] - 1, 0);
    }
    assert!(last[0] > 8 && widths[1].settled() <= 2, "{last:?} in {flat:?}");
}

#[test]
fn limits_hold() {
    let memory = Memory::new();
    let next = |policy, most| Width::new(policy).next(&memory.costs, &memory.prior, Others::default(), most);
    assert_eq!([0, 1, 3, 99].map(|most| next(Policy::Pinned(5), most)), [1, 1, 3, 5]);
    assert_eq!([0, 1, 99].map(|k| next(Policy::Pinned(k), 99)), [1, 1, MAX_BLOCK]);
    // Nothing measured: a plain step comes first.
    assert_eq!(next(ADAPTIVE, 9), 1);
    let mut memory = Memory::new();
    let world = World { text: [(1.0, 1.0); 2], curve: FLAT, ..WORLD };
    world.run(&mut memory, ADAPTIVE, TUNING);
    let mut width = Width::new(Policy::Adaptive { start: 99, most: 6 });
    for most in [0, 1, 2, 5, 16, 99].repeat(20) {
        let k = width.next(&memory.costs, &memory.prior, Others::default(), most);
        assert!((1..=most.clamp(1, 6)).contains(&k), "{k} of {most}");
        width.round(k, k - 1, k - 1);
    }
    // A drafter with nothing to say, and counts that cannot be.
    for _ in 0..50 {
        width.next(&memory.costs, &memory.prior, Others::default(), 16);
        width.round(1, 0, 0);
        width.round(0, 7, 9);
    }
    assert!(plan(&mut [], &memory.costs, &memory.prior, Others::default()).is_empty());
}

#[test]
fn the_same_measurements_lead_to_the_same_widths() {
    let run = || World { sequences: 3, tokens: 300, ..WORLD }.run(&mut Memory::new(), ADAPTIVE, TUNING);
    assert_eq!(format!("{:?}", run()), format!("{:?}", run()));
}
