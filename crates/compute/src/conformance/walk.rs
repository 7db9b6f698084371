//! Long random walks of rounds in which some rows are accepted and the others taken back, as speculation does.

use super::recurrent::Subject;
use super::rewind::{same_outputs, same_state};
use super::rng::Rng;
use super::states::{Feed, Outputs, Tape};
use super::{Report, Violation};
use crate::Backend;

/// Longest block, all of which can be taken back.
const BLOCK: usize = 8;

/// A sequence that grows by what is accepted.
struct Walker {
    slot: usize,
    accepted: Tape,
    outputs: Outputs,
}

/// Two sequences walk together, now and then moving to another slot; in the end each has given what its accepted rows
/// give alone, and stands where they lead.
pub(super) fn check<B: Backend>(s: &Subject<'_, B>, rounds: usize, report: &mut Report) -> Result<(), Violation> {
    const SLOTS: usize = 4;
    let mut rng = Rng::for_case(s.seed, &format!("walk {}", s.label));
    let (net, layout) = (&s.net, &s.net.layout);
    let mut state = net.state(SLOTS, BLOCK)?;
    let mut walkers: Vec<Walker> = [3, 1]
        .map(|slot| Walker { slot, accepted: Tape::empty(layout), outputs: Outputs::empty(layout) })
        .into_iter()
        .collect();
    for round in 0..rounds {
        let mut blocks: Vec<(usize, usize, Feed)> = Vec::new(); // walker, rows to accept, block
        for (i, walker) in walkers.iter().enumerate() {
            if rng.one_in(5) {
                continue;
            }
            let len = 1 + rng.below(BLOCK);
            let accept = if rng.one_in(8) { 0 } else { 1 + rng.below(len) };
            let mut rows = Tape::plain(&mut rng, layout, accept);
            rows.append(&Tape::garbage(&mut rng, layout, len - accept));
            blocks.push((i, accept, Feed { slot: walker.slot, start: walker.accepted.len(), rows }));
        }
        rng.shuffle(&mut blocks);
        let feeds: Vec<&Feed> = blocks.iter().map(|(_, _, feed)| feed).collect();
        let got = net.forward(&mut state, &feeds, None);
        let rows: usize = feeds.iter().map(|feed| feed.rows.len()).sum();
        let mut first = 0;
        for (i, accept, feed) in &blocks {
            let walker = &mut walkers[*i];
            walker.outputs.append(&got, rows, first, *accept);
            walker.accepted.append(&feed.rows.slice(0, *accept));
            first += feed.rows.len();
            let (stands, end) = (walker.accepted.len(), feed.start + feed.rows.len());
            let stops = if end - stands > 1 && rng.one_in(3) { vec![stands + 1, stands] } else { vec![stands] };
            for stop in stops.into_iter().filter(|stop| *stop < end) {
                let taken = net.b.state_take_back(&mut state, feed.slot, stop);
                let position = net.b.state_position(&state, feed.slot);
                if !taken || position != Some(stop) {
                    let what = format!(
                        "round {round} of a walk: back from {end} to {stop} gave {taken}, and stands at {position:?}"
                    );
                    return Err(s.violation("state", &what));
                }
            }
        }
        let i = rng.below(2);
        if walkers[i].accepted.len() > 0 && rng.one_in(16) {
            let copy = net.b.state_save(&state, walkers[i].slot);
            let free: Vec<usize> = (0..SLOTS).filter(|slot| walkers.iter().all(|w| w.slot != *slot)).collect();
            walkers[i].slot = free[rng.below(free.len())];
            net.b.state_restore(&mut state, walkers[i].slot, &copy);
        }
    }
    for walker in &walkers {
        let how = format!("after {rounds} rounds, {} rows accepted", walker.accepted.len());
        let mut fresh = net.state(1, BLOCK)?;
        let (want, _) = s.alone(&mut fresh, &walker.accepted, |_, _| ())?;
        same_outputs(s, (&walker.outputs, 0), (&want, 0), walker.accepted.len(), &how, report)?;
        same_state(s, &net.read(&state, walker.slot), &net.read(&fresh, 0), &how, report)?;
    }
    Ok(())
}
