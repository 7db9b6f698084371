//! What sequences leave for others: pages and snapshots in the prefix cache, states in their slots.

use super::Engine;
use crate::cache::pages::pages_needed;
use crate::cache::prefix::{CacheFault, Place, ROOT};
use crate::cache::snapshots::Line;
use crate::cache::states::{Free, Left};
use crate::sequence::Sequence;
use crate::speculate::MAX_BLOCK;

/// What the prefix cache holds and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Pages that only the cache keeps, per KV group.
    pub pages: Vec<usize>,
    /// Their bytes. While fewer requests run than may, the cache also fills the pages set aside for them, so that this
    /// may be more than [`EngineOptions::cache_bytes`](crate::EngineOptions::cache_bytes).
    pub bytes: usize,
    /// Snapshots of recurrent state.
    pub snapshots: usize,
    /// Requests that found a part of their prompt.
    pub hits: u64,
    /// Requests that found nothing.
    pub misses: u64,
    /// Prompt tokens found.
    pub hit_tokens: u64,
    /// Pages given up for others.
    pub evictions: u64,
}

/// Counts of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    hits: u64,
    misses: u64,
    tokens: u64,
}

impl Engine {
    /// What the prefix cache holds and has done; empty when it is off.
    pub fn cache_stats(&self) -> CacheStats {
        let Some(cache) = &self.cache else { return CacheStats::default() };
        let pages = self.pool.cached().to_vec();
        let bytes = pages.iter().enumerate().map(|(group, n)| n * self.model.kv_page_bytes(group)).sum();
        let (snapshots, evictions) = (cache.snapshots.len(), cache.evictions());
        let Found { hits, misses, tokens: hit_tokens } = self.found;
        CacheStats { pages, bytes, snapshots, hits, misses, hit_tokens, evictions }
    }

    /// Forgets everything that no running request uses. Counts stay.
    pub fn clear_cache(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.clear(&mut self.pool);
        }
    }

    /// Breaks the cache, so that tests can be seen to fail.
    #[doc(hidden)]
    pub fn plant_cache_fault(&mut self, fault: CacheFault) {
        if let Some(cache) = &mut self.cache {
            cache.plant(fault);
        }
    }

    /// Counts all pages and snapshots and compares with the books.
    ///
    /// # Errors
    /// What differs.
    #[doc(hidden)]
    pub fn audit_cache(&self) -> Result<(), String> {
        let running: Vec<_> = self.running.iter().map(|s| (&s.pages, s.node)).collect();
        match &self.cache {
            Some(cache) => cache.audit(&running, &self.pool),
            None => self.pool.audit(running.iter().map(|(table, _)| *table), std::iter::empty()),
        }
    }

    /// Gives a new sequence its slot, and all of its beginning that the cache has.
    pub(super) fn begin(&mut self, sequence: &mut Sequence) {
        self.admitted += 1;
        let prompt = sequence.history.prompt();
        sequence.line = Line { number: self.admitted, prompt: prompt.len() };
        // The last prompt token is always computed: its logits choose the first token.
        let tokens = if sequence.fresh { Vec::new() } else { prompt[..prompt.len() - 1].to_vec() };
        let free = self.states.candidates(&tokens);
        let (place, free) = self.choose(&tokens, &free);
        sequence.state = self.states.take(free.number);
        if let Some(cache) = &mut self.cache {
            sequence.branch = cache.depth(&tokens) * self.pool.page_len();
            match place {
                None => {
                    cache.pin(ROOT);
                    self.found.misses += 1;
                }
                Some(place) => {
                    sequence.node = cache.resume(&place, &mut sequence.pages, &mut self.pool);
                    place.path.iter().for_each(|node| cache.snapshots.pass(*node, sequence.line));
                    (sequence.computed, sequence.cached) = (place.len, place.len);
                    sequence.inserted = place.path.len();
                    self.found.hits += 1;
                    self.found.tokens += place.len as u64;
                }
            }
        }
        if let Some(speculator) = &mut self.speculator {
            // What a drafter knows of a slot is what it saw there, whatever the cache has.
            speculator.hand_on(free.number, free.same.min(sequence.computed));
            sequence.width = speculator.width(sequence.block_size);
        }
        let (layout, page_len) = (self.model.kv_layout(), self.pool.page_len());
        sequence.need = pages_needed(layout, page_len, 1, sequence.most_positions(), self.step_rows());
    }

    /// Where a sequence that begins with `tokens` goes on, and in which of the `free` slots; its recurrent state stands there.
    fn choose(&mut self, tokens: &[u32], free: &[Free]) -> (Option<Place>, Free) {
        let best = *free.first().expect("a free slot for each sequence that may run");
        let Some(cache) = &self.cache else { return (None, best) };
        let places = cache.places(tokens);
        if !self.model.is_recurrent() {
            return (places.into_iter().next(), best);
        }
        let snapshot = places.into_iter().find(|p| !p.is_inside() && cache.snapshots.at(p.node()).is_some());
        let known = snapshot.as_ref().map_or(0, |place| place.len);
        let mut exact: Vec<&Free> = free.iter().filter(|slot| slot.exact && slot.same > known).collect();
        exact.sort_by_key(|slot| std::cmp::Reverse(slot.same));
        for slot in exact {
            let place = cache.places(&tokens[..slot.same]).into_iter().next().filter(|p| p.len == slot.same);
            if place.is_some() && self.model.take_back(slot.number, slot.same) {
                return (place, *slot);
            }
        }
        if let Some(state) = snapshot.as_ref().and_then(|place| cache.snapshots.at(place.node())) {
            self.model.restore_state(best.number, state);
        }
        (snapshot, best)
    }

    /// Lets others find the full pages of a running sequence, and takes a snapshot on a page boundary.
    pub(super) fn keep(&mut self, index: usize) {
        let Some(cache) = &mut self.cache else { return };
        let (sequence, page_len) = (&mut self.running[index], self.pool.page_len());
        while (sequence.inserted + 1) * page_len <= sequence.computed {
            let page = sequence.inserted;
            let tokens = &sequence.history.tokens()[page * page_len..(page + 1) * page_len];
            sequence.node = cache.insert(sequence.node, tokens, &mut sequence.pages, page, &mut self.pool);
            sequence.inserted += 1;
        }
        let (node, position) = (sequence.node, sequence.computed);
        if !self.model.is_recurrent() || node == ROOT || position != sequence.inserted * page_len {
            return;
        }
        if cache.snapshots.at(node).is_some() {
            cache.snapshots.pass(node, sequence.line);
        } else if cache.snapshots.make_room(position, sequence.line)
            && let Some(state) = self.model.save_state(slot(sequence))
        {
            debug_assert_eq!(state.position(), position, "the engine and the model count alike");
            cache.snapshots.put(node, state, sequence.line);
        }
    }

    /// Brings a sequence back to `start` positions after a forward pass that failed, or to the nearest place before it that can be
    /// restored, and returns that place. 0 means starting afresh.
    pub(super) fn return_to(&mut self, index: usize, start: usize) -> usize {
        let sequence = &mut self.running[index];
        if self.model.take_back(slot(sequence), start) {
            return start;
        }
        let found = self.cache.as_ref().and_then(|cache| cache.newest_snapshot(sequence.node, start));
        let found = found.filter(|(_, depth)| self.pool.truncate(&mut sequence.pages, depth * self.pool.page_len()));
        let (node, depth) = found.unwrap_or((ROOT, 0));
        if depth == 0 {
            let none = self.pool.table();
            self.pool.release(std::mem::replace(&mut sequence.pages, none));
        }
        let at = depth * self.pool.page_len();
        if let Some(cache) = &mut self.cache {
            if let Some(state) = cache.snapshots.at(node) {
                self.model.restore_state(slot(sequence), state);
            }
            cache.pin(node);
            cache.unpin(std::mem::replace(&mut sequence.node, node), at, false, &mut self.pool);
            sequence.inserted = depth;
            cache.shrink(&mut self.pool);
        }
        at
    }

    /// Keeps or frees the pages and the state of a sequence that ended.
    pub(super) fn park(&mut self, mut sequence: Sequence) {
        let Some(slot) = sequence.state.take() else { return };
        let mut left = Left::default();
        if let Some(cache) = &mut self.cache {
            let full = sequence.inserted * self.pool.page_len();
            let tokens = &sequence.history.tokens()[..sequence.computed];
            let decoded = tokens.len() > sequence.history.prompt().len();
            if decoded {
                // A block began earlier than plain decoding's last row, and kept more of a window for that.
                self.pool.drop_behind(&mut sequence.pages, tokens.len() - 1);
                cache.shrink(&mut self.pool);
            }
            if tokens.len() > full {
                cache.insert_tail(sequence.node, &tokens[full..], &sequence.pages, sequence.inserted, &mut self.pool);
            }
            left = Left { tokens: tokens.to_vec(), decoded };
            // After a fault nothing that it alone came by is offered again: should the fault be in there, the next one is spared.
            let failed = sequence.computed == 0;
            cache.unpin(sequence.node, full, failed, &mut self.pool);
        }
        self.pool.release(sequence.pages);
        self.states.release(slot, left);
        self.limit_cache();
    }

    /// Lets the cache have all pages but those that running sequences may yet need, which depends on nothing but their requests.
    pub(super) fn limit_cache(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        let needed = |group: usize| self.running.iter().map(|s| s.need[group]).sum::<usize>();
        let limits = self.pages.iter().enumerate().map(|(group, total)| total.saturating_sub(needed(group))).collect();
        cache.limit(limits, &mut self.pool);
    }

    /// Most rows of a sequence in a step: a block of drafts is a step, too.
    pub(super) fn step_rows(&self) -> usize {
        self.options.step_rows.max(MAX_BLOCK)
    }
}

fn slot(sequence: &Sequence) -> usize {
    sequence.state.as_ref().expect("a running sequence has a slot").number()
}
