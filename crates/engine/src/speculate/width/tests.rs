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
const TILES: Curve = &[(1, 1.0), (8, 1.05), (9, 1.9), (16, 2.0), (17, 2.9), (24, 3.0), (25, 3.9), (32, 4.0)];

/// Every row costs as much as the first.
const STEEP: Curve = &[(1, 1.0), (16, 16.0)];

const CURVES: [(&str, Curve); 4] = [("bumpy", BUMPY), ("flat", FLAT), ("tiles", TILES), ("steep", STEEP)];

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
            for i in 0..self.sequences {
                let others = Others { rows: last.iter().sum::<usize>() - last[i], sequences: self.sequences - 1 };
                last[i] = widths[i].next(&memory.costs, &memory.prior, others, MAX_BLOCK);
                assert!((1..=MAX_BLOCK).contains(&last[i]));
            }
            let rows = last.iter().sum();
            let depth = last.iter().max().map_or(0, |k| k - 1);
            let drafting = last.iter().filter(|k| **k > 1).count();
            let passes = |d: usize| last.iter().filter(|k| **k > d).count();
            let draft: f64 = (1..=depth).map(|d| slow * self.draft * (0.95 + 0.05 * passes(d) as f64)).sum();
            let verify = slow * seconds(self.curve, rows);
            outcome.seconds[half] += draft + verify;
            memory.costs.step(rows, self.noisy(verify, step, 0));
            if drafting > 0 {
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
                widths[i].round(last[i], proposed, accepted);
                memory.prior.record(proposed, accepted);
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

#[test]
fn survey() {
    let mut worst = Vec::new();
    for (name, curve) in CURVES {
        for draft in [0.1, 0.3, 0.6, 1.0] {
            for sequences in [1, 2, 4, 8] {
                for text in [
                    [(0.0, 0.0); 2],
                    [(0.3, 0.3); 2],
                    [(0.5, 0.6); 2],
                    [(0.7, 0.7); 2],
                    [(0.85, 0.8); 2],
                    [(0.95, 0.95); 2],
                    [(1.0, 1.0); 2],
                    [(0.4, 0.9); 2],
                    [(0.9, 0.9), (0.1, 0.1)],
                    [(0.05, 0.05), (0.95, 0.95)],
                ] {
                    let (mut ratio, mut plain, mut changes, mut ks) = (0.0, 0.0, 0, [0, 0]);
                    let mut low = f64::MAX;
                    for seed in 1..=3 {
                        let world = World { curve, draft, sequences, text, seed, ..WORLD };
                        let (best, k, one) = world.fixed();
                        let out = world.run(&mut Memory::new(), ADAPTIVE, TUNING);
                        let time = out.seconds[0] + out.seconds[1];
                        low = low.min(best / time);
                        ratio += best / time / 3.0;
                        plain += one / time / 3.0;
                        changes = changes.max(out.counters.changes);
                        ks = k;
                    }
                    worst.push((
                        ratio,
                        low,
                        plain,
                        changes,
                        format!("{name} draft {draft} B {sequences} {text:?} best {ks:?}"),
                    ));
                }
            }
        }
    }
    worst.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = worst.len();
    println!(
        "{} of {n} below 0.95, {} below .97",
        worst.iter().filter(|w| w.0 < 0.95).count(),
        worst.iter().filter(|w| w.0 < 0.97).count()
    );
    for w in worst.iter().take(50) {
        println!("{:.3} low {:.3} plain {:.3} changes {} {}", w.0, w.1, w.2, w.3, w.4);
    }
    println!("most changes {:?}", worst.iter().max_by_key(|w| w.3));
}
