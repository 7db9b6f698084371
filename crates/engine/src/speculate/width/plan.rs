//! Choosing the widths of a step: of all sequences together, because what a row of one costs depends on the rows of all.

use super::scene::{Part, Scene, Unmeasured};
use super::{Costs, Others, Planned, Policy, Trial, URGENT, Width};
use crate::speculate::{Acceptance, MAX_BLOCK};

/// A sequence of a step whose width is to be chosen.
pub struct Seat<'a> {
    /// Its controller.
    pub width: &'a mut Width,
    /// Its widest block, which may be small near the end of an answer.
    pub most: usize,
}

/// The widths of the next step, one a seat: rows to verify, of which all but the first are drafts. 1 = a plain step; never above a
/// seat's `most`. After the step, [`Width::round`] of each takes note of what became of it.
///
/// `prior` is the acceptance of the engine's earlier rounds.
pub fn plan(seats: &mut [Seat<'_>], costs: &Costs, prior: &Acceptance, others: Others) -> Vec<usize> {
    let mut counts_drafts = true;
    let mut parts = Vec::with_capacity(seats.len());
    for Seat { width, most } in seats.iter_mut() {
        width.planned = None;
        if width.settled == Some(1) && prior.is_known() {
            width.own.fade();
        }
        counts_drafts &= width.tuning.counts_drafts;
        let (low, high) = width.bounds(*most);
        parts.push(Part { tokens: width.own.table(Some(prior)), low, high });
    }
    let scene = Scene::new(costs, others, prior, parts, counts_drafts);
    let plain: Vec<usize> = scene.parts.iter().map(|p| p.low).collect();
    // What drafting is measured against comes first: steps in which nobody drafts.
    let is_new = seats.iter().any(|s| s.width.counters.steps < 2);
    if costs.step_cost(1).is_none() || is_new && !costs.is_known(scene.rows(&plain)) {
        return plain;
    }
    begin(seats, &scene, prior.is_known());
    settle(seats, &scene);
    if !try_neighbours(seats, &scene) {
        try_again(seats, &scene);
    }
    let settled = settled(seats, &scene);
    let ks = tried(seats, &scene);
    let share = 1.0 / scene.sequences() as f64;
    let (time, usual) = (scene.time(&ks, Unmeasured::Between), scene.time(&settled, Unmeasured::Between));
    let trials = ks.iter().zip(&settled).filter(|(k, s)| k != s).count().max(1) as f64;
    let pace = usual / scene.tokens(&settled);
    for (i, seat) in seats.iter_mut().enumerate() {
        let (loss, worth) = match seat.width.trial {
            Some(Trial::Neighbour(_)) => ((time - scene.tokens(&ks) * pace) / trials, 0.0),
            Some(Trial::Retry { .. }) if ks[i] != settled[i] => ((time - usual) / trials, pace),
            _ => (0.0, 0.0),
        };
        seat.width.planned = Some(Planned { share: time * share, loss, worth });
    }
    ks
}

/// Sequences that are new get their first width.
fn begin(seats: &mut [Seat<'_>], scene: &Scene<'_>, is_known: bool) {
    if seats.iter().all(|s| s.width.settled.is_some()) {
        return;
    }
    // Where there is no choice now, there may be one later.
    let chooses = |i: usize| scene.parts[i].low < scene.parts[i].high;
    let may: Vec<bool> = seats.iter().enumerate().map(|(i, s)| s.width.settled.is_none() && chooses(i)).collect();
    let start = |policy| match policy {
        Policy::Adaptive { start, most } => start.clamp(1, most.clamp(1, MAX_BLOCK)),
        Policy::Pinned(k) => k.clamp(1, MAX_BLOCK),
    };
    let now: Vec<usize> = seats.iter().map(|s| s.width.settled.unwrap_or(start(s.width.policy))).collect();
    let clipped: Vec<usize> = now.iter().enumerate().map(|(i, k)| scene.clip(i, *k)).collect();
    let first = if is_known { scene.best(&clipped, &may).0 } else { now };
    for (i, seat) in seats.iter_mut().enumerate().filter(|(i, _)| may[*i]) {
        seat.width.settled = Some(first[i]);
    }
}

/// The settled widths, as they can be had in this step.
fn settled(seats: &[Seat<'_>], scene: &Scene<'_>) -> Vec<usize> {
    seats.iter().enumerate().map(|(i, s)| scene.clip(i, s.width.settled.unwrap_or(1))).collect()
}

/// The widths of this step, trials included.
fn tried(seats: &[Seat<'_>], scene: &Scene<'_>) -> Vec<usize> {
    let width = |seat: &Seat<'_>| match &seat.width.trial {
        Some(Trial::Neighbour(k) | Trial::Retry { k, .. }) => *k,
        None => seat.width.settled.unwrap_or(1),
    };
    seats.iter().enumerate().map(|(i, s)| scene.clip(i, width(s))).collect()
}

/// The factor by which a batch must gain for some of its sequences to change their widths, if one alone needs `margin`.
fn needed(scene: &Scene<'_>, now: &[usize], new: &[usize], margin: f64) -> f64 {
    let changed = now.iter().zip(new).filter(|(a, b)| a != b).count();
    1.0 + (margin - 1.0) * changed as f64 / scene.sequences() as f64
}

/// Goes over to widths that are better by enough.
fn settle(seats: &mut [Seat<'_>], scene: &Scene<'_>) {
    let now = settled(seats, scene);
    let value = scene.value(&now);
    let margin = seats.iter().map(|s| s.width.tuning.margin).fold(1.0, f64::max);
    let churn = seats.iter().map(|s| s.width.churn).fold(0.0, f64::max);
    // What is urgent first; then only those whose width has lasted.
    let urgent = 1.0 + (URGENT - 1.0) * (1.0 + churn);
    for (factor, may) in [
        (urgent, seats.iter().map(|s| s.width.trial.is_none() && s.width.since > 0).collect::<Vec<_>>()),
        (margin, seats.iter().map(|s| s.width.trial.is_none() && s.width.has_dwelt()).collect()),
    ] {
        if !may.contains(&true) {
            continue;
        }
        let (best, rate) = scene.best(&now, &may);
        if rate > value * needed(scene, &now, &best, factor) {
            for (i, seat) in seats.iter_mut().enumerate() {
                if best[i] != now[i] {
                    seat.width.change(best[i]);
                }
            }
            return;
        }
    }
}

/// Lets all take a neighbouring width for one step, or twice or half theirs, if its cost is not known and may be low.
fn try_neighbours(seats: &mut [Seat<'_>], scene: &Scene<'_>) -> bool {
    let who: Vec<usize> = (0..seats.len()).filter(|i| scene.parts[*i].low < scene.parts[*i].high).collect();
    if who.is_empty() || who.iter().any(|i| seats[*i].width.trial.is_some() || !seats[*i].width.has_paused()) {
        return false;
    }
    let now = settled(seats, scene);
    let value = scene.value(&now);
    let margin = seats.iter().map(|s| s.width.tuning.margin).fold(1.0, f64::max);
    let mut best: Option<(Vec<usize>, f64)> = None;
    let moves: [fn(usize) -> usize; 6] =
        [|k| k / 2, |k| k.saturating_sub(2), |k| k - 1, |k| k + 1, |k| k + 2, |k| k * 2];
    for to in moves {
        let mut ks = now.clone();
        who.iter().for_each(|i| ks[*i] = scene.clip(*i, to(now[*i]).max(2)));
        let hoped = scene.tokens(&ks) / scene.time(&ks, Unmeasured::Hopeful);
        let rate = scene.value(&ks);
        if ks != now
            && scene.is_strange(&ks)
            && hoped > value * needed(scene, &now, &ks, margin)
            && best.as_ref().is_none_or(|b| rate > b.1)
        {
            best = Some((ks, rate));
        }
    }
    let Some((ks, rate)) = best else { return false };
    let loss = scene.time(&ks, Unmeasured::Between) * (1.0 - rate / value).max(0.0);
    if !affordable(seats, scene, &who, loss) {
        return false;
    }
    who.into_iter().filter(|i| ks[*i] != now[*i]).for_each(|i| seats[i].width.trial = Some(Trial::Neighbour(ks[i])));
    true
}

/// Lets one that gave drafting up try again after its pause; or all of them at once, if drafting does not pay for one alone.
fn try_again(seats: &mut [Seat<'_>], scene: &Scene<'_>) {
    let now = settled(seats, scene);
    let is_idle = |width: &Width| width.settled == Some(1) && width.trial.is_none();
    let idle: Vec<usize> = (0..seats.len()).filter(|i| scene.parts[*i].high > 1 && is_idle(seats[*i].width)).collect();
    let Some(first) =
        idle.iter().copied().filter(|i| seats[*i].width.has_waited()).max_by_key(|i| seats[*i].width.idle)
    else {
        return;
    };
    let margin = seats[first].width.tuning.margin;
    let value = scene.best_case(&now);
    for who in [vec![first], idle] {
        let at = |k: usize| {
            let mut ks = now.clone();
            who.iter().for_each(|i| ks[*i] = scene.clip(*i, k));
            ks
        };
        let pays = |k: &usize| scene.best_case(&at(*k)) > value * needed(scene, &now, &at(*k), margin);
        // The cheapest width finds drafts that are right at once; one with more drafts finds those that are if the first is.
        let time = |k: usize| scene.time(&at(k), Unmeasured::Between);
        let most = scene.parts[first].high;
        let Some(cheapest) = (2..=most).filter(pays).min_by(|a, b| time(*a).total_cmp(&time(*b))) else { continue };
        let k = seats[first].width.retry_width().filter(|k| *k <= most && pays(k)).unwrap_or(cheapest);
        let loss = time(k) - scene.time(&now, Unmeasured::Between);
        if affordable(seats, scene, &who, loss.max(0.0)) {
            who.into_iter().for_each(|i| seats[i].width.retry(k));
        }
        return;
    }
}

/// Whether each of `who` may lose its part of `loss` seconds of everybody's time.
fn affordable(seats: &[Seat<'_>], scene: &Scene<'_>, who: &[usize], loss: f64) -> bool {
    let plain: Vec<usize> = scene.parts.iter().map(|p| p.low).collect();
    let plain = scene.time(&plain, Unmeasured::Between) / scene.sequences() as f64;
    who.iter().all(|i| seats[*i].width.affords(loss / who.len() as f64, plain))
}
