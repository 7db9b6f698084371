//! What becomes of faults and panics: they end the request they belong to, and nothing else. Only the loss of the device ends all.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Engine, Outcome};
use crate::cache::pages::PagePool;
use crate::cache::prefix::PrefixCache;
use crate::cache::snapshots::Snapshots;
use crate::cache::states::States;
use crate::request::{Event, FinishReason};
use crate::scheduler::Planned;
use crate::sequence::Sequence;
use crate::speculate::rounds::Drafts;

/// Runs `work`; a panic in it becomes an error with its message. Whoever calls this gives up what `work` had in its hands.
///
/// # Errors
/// It panicked.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| said(&*payload))
}

fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    format!("a fault of this program, please report it: {}", text.unwrap_or("no message"))
}

/// The final event of a sequence that failed.
fn failed(sequence: &mut Sequence, reason: FinishReason) -> Event {
    // What is left of its text may be what is broken.
    caught(|| sequence.finish(reason.clone())).unwrap_or_else(|_| sequence.finish_without_text(reason))
}

impl Engine {
    /// Runs one sequence's part of a step that failed, without drafts. Its recurrent state may have to be computed again up to
    /// there, which gives the same bits.
    pub(super) fn forward_alone(&mut self, planned: Planned, outcome: &mut Outcome) {
        let Planned { index, start, .. } = planned;
        let none: Drafts = Vec::new();
        let mut at = self.return_to(index, start);
        while at < start {
            let len = (start - at).min(self.options.step_rows);
            if let Err(why) = self.forward(&[Planned { index, start: at, len, drafts: 0 }], &none) {
                return self.fail(index, &why, outcome);
            }
            at += len;
        }
        match self.forward(&[planned], &none) {
            Ok(logits) => self.accept(&[planned], &none, &logits, outcome),
            Err(why) => self.fail(index, &why, outcome),
        }
    }

    pub(super) fn fail(&mut self, index: usize, why: &str, outcome: &mut Outcome) {
        if self.lost.is_some() {
            return; // it will be ended with all others
        }
        let sequence = &mut self.running[index];
        outcome.events.push(failed(sequence, FinishReason::Error(why.into())));
        // What a failed forward wrote is not to be reused.
        sequence.computed = 0;
        outcome.ended.push(index);
    }

    /// After a panic that may have left pages, slots or the cache half changed: those that run are ended, and the books begin anew. The
    /// memory stays the model's; those that wait are served.
    pub(super) fn start_over(&mut self, why: &str, outcome: &mut Outcome) {
        self.panics += 1;
        self.end_running(&FinishReason::Error(why.into()), outcome);
        self.warnings.push(format!("a step broke off, and the requests in it were ended: {why}"));
    }

    /// After the loss of the device: nothing can be computed any more, for those that run and for those that wait.
    pub(super) fn end_all(&mut self, why: &str, outcome: &mut Outcome) {
        let reason = FinishReason::DeviceLost(why.into());
        self.end_running(&reason, outcome);
        while let Some((id, request)) = self.waiting.pop_front() {
            // The request was checked when it came.
            if let Ok(mut sequence) = self.sequence(id, request) {
                outcome.events.push(failed(&mut sequence, reason.clone()));
            }
        }
    }

    /// Why nothing is computed any more: the device failed. Every request was ended, and none is taken.
    pub fn failure(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Ends those that run, and begins the books anew.
    fn end_running(&mut self, reason: &FinishReason, outcome: &mut Outcome) {
        // An answer that was complete had its final event.
        let running = self.running.drain(..).filter(|sequence| !sequence.has_ended());
        let ended = |event: &Event| match event {
            Event::Finished(end) => Some(end.id),
            Event::Token(_) => None,
        };
        let already: Vec<_> = outcome.events.iter().filter_map(ended).collect();
        let broken = running.filter(|sequence| !already.contains(&sequence.id));
        outcome.events.extend(broken.map(|mut sequence| failed(&mut sequence, reason.clone())));
        let snapshots = self.cache.as_ref().map_or(0, |cache| cache.snapshots.most());
        self.states = States::new(&*self.model, self.options.parallel, snapshots > 0);
        self.pool = PagePool::new(self.model.kv_layout(), self.model.page_len(), &self.pages);
        let cache = || PrefixCache::new(&self.pool, self.pages.clone(), Snapshots::new(snapshots));
        self.cache = self.options.reuse.then(cache);
    }

    /// Panics that were caught.
    pub fn panics(&self) -> u64 {
        self.panics
    }

    /// Breaks the next steps, so that tests can see what becomes of that.
    #[doc(hidden)]
    pub fn plant_panic(&mut self, place: PanicIn) {
        self.panic_in = Some(place);
    }

    /// Panics where a test asked for it.
    pub(super) fn trip(&mut self, place: PanicIn) {
        if self.panic_in == Some(place) {
            self.panic_in = None;
            panic!("planted in {place:?}");
        }
    }
}

/// Places where tests plant a panic.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicIn {
    /// While slots are given out.
    Admit,
    /// While pages are given back.
    Park,
}
