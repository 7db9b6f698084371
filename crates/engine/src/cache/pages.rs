//! Pages and page tables. A page holds a fixed run of positions for all layers of a KV group; a sequence has one table a
//! group. Window groups give pages back once no later row can see them.

use mlxcel_compute::{KvGroup, NO_PAGE};

/// Positions behind the newest that a window group still serves: taking back up to this many costs nothing. Covers the widest
/// verify block, and a conversation that goes on a little before its cached end.
pub const SLACK: usize = 64;

/// The free pages of each group.
#[derive(Debug)]
pub struct PagePool {
    page_len: usize,
    windows: Vec<Option<usize>>,
    free: Vec<Vec<u32>>,
    total: Vec<usize>,
}

/// Pages of one sequence: `tables()[group][position / page_len]`.
#[derive(Debug)]
pub struct PageTable {
    tables: Vec<Vec<u32>>,
}

/// Pages each group needs for `sequences` of up to `context` positions, computed in steps of at most `step` rows.
pub fn pages_needed(layout: &[KvGroup], page_len: usize, sequences: usize, context: usize, step: usize) -> Vec<usize> {
    layout
        .iter()
        .map(|group| {
            let all = context.div_ceil(page_len);
            // A window and a step may each straddle one page more than they fill.
            let windowed = group.window.map_or(all, |w| (w + SLACK).div_ceil(page_len) + step.div_ceil(page_len) + 2);
            all.min(windowed) * sequences
        })
        .collect()
}

impl PagePool {
    /// A pool over pages numbered `0..pages[group]`.
    pub fn new(layout: &[KvGroup], page_len: usize, pages: &[usize]) -> Self {
        PagePool {
            page_len,
            windows: layout.iter().map(|g| g.window).collect(),
            free: pages.iter().map(|n| (0..*n as u32).rev().collect()).collect(),
            total: pages.to_vec(),
        }
    }

    /// A table without pages.
    pub fn table(&self) -> PageTable {
        PageTable { tables: vec![Vec::new(); self.windows.len()] }
    }

    /// Pages in use, per group.
    pub fn used(&self) -> Vec<usize> {
        self.free.iter().zip(&self.total).map(|(f, t)| t - f.len()).collect()
    }

    /// Makes room for positions up to `end`, of which `start..end` are about to be written. Pages that no row from
    /// `start - SLACK` on can see are given back first; when that leaves too few, false, and none are taken.
    pub fn extend(&mut self, table: &mut PageTable, start: usize, end: usize) -> bool {
        self.drop_unseen(table, start.saturating_sub(SLACK));
        let wanted: Vec<usize> = table
            .tables
            .iter()
            .zip(&self.windows)
            .map(|(t, _)| end.div_ceil(self.page_len).saturating_sub(t.len()))
            .collect();
        if wanted.iter().zip(&self.free).any(|(w, f)| *w > f.len()) {
            return false;
        }
        for ((table, free), wanted) in table.tables.iter_mut().zip(&mut self.free).zip(wanted) {
            table.extend(free.drain(free.len() - wanted..));
        }
        true
    }

    /// Gives back what a sequence of `len` positions that decodes token by token would have given back by now.
    pub fn trim(&mut self, table: &mut PageTable, len: usize) {
        self.drop_unseen(table, len.saturating_sub(1 + SLACK));
    }

    /// Gives back the pages of window groups that rows from `position` on cannot see.
    fn drop_unseen(&mut self, table: &mut PageTable, position: usize) {
        for ((table, free), window) in table.tables.iter_mut().zip(&mut self.free).zip(&self.windows) {
            let Some(window) = window else { continue };
            // The row at `position` sees keys from position + 1 - window.
            let first = (position + 1).saturating_sub(*window) / self.page_len;
            for page in table.iter_mut().take(first).filter(|p| **p != NO_PAGE) {
                free.push(*page);
                *page = NO_PAGE;
            }
        }
    }

    /// Takes back positions from `len` on: a sequence continued from `len` finds what it would have found had the rest
    /// never been written. False, changing nothing, when a window needs pages that were given back.
    pub fn truncate(&mut self, table: &mut PageTable, len: usize) -> bool {
        let keep = len.div_ceil(self.page_len);
        let gone = table.tables.iter().zip(&self.windows).any(|(t, window)| {
            let first = window.map_or(0, |w| (len + 1).saturating_sub(w)) / self.page_len;
            t.len() < keep || t[first.min(keep)..keep].contains(&NO_PAGE)
        });
        if gone {
            return false;
        }
        for (table, free) in table.tables.iter_mut().zip(&mut self.free) {
            free.extend(table.drain(keep..).filter(|p| *p != NO_PAGE));
        }
        true
    }

    /// Gives all pages of a sequence back.
    pub fn release(&mut self, table: PageTable) {
        for (table, free) in table.tables.into_iter().zip(&mut self.free) {
            free.extend(table.into_iter().filter(|p| *p != NO_PAGE));
        }
    }
}

impl PageTable {
    /// One table a group, for a batch.
    pub fn tables(&self) -> Vec<&[u32]> {
        self.tables.iter().map(Vec::as_slice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlxcel_compute::KvShape;

    fn layout() -> Vec<KvGroup> {
        let layers = vec![KvShape { kv_heads: 1, head_dim: 16 }];
        vec![KvGroup { window: None, layers: layers.clone() }, KvGroup { window: Some(100), layers }]
    }

    #[test]
    fn windows_give_pages_back_and_the_plan_suffices() {
        let layout = layout();
        let need = pages_needed(&layout, 64, 1, 4096, 33);
        assert_eq!(need, [64, 3 + 1 + 2]);
        let mut pool = PagePool::new(&layout, 64, &need);
        let mut table = pool.table();
        let mut at = 0;
        for step in [33, 1, 7, 33].iter().cycle() {
            let end = (at + step).min(4096);
            assert!(pool.extend(&mut table, at, end), "position {at}");
            let tables = table.tables();
            let first = (at + 1usize).saturating_sub(100) / 64;
            assert!(tables[1][first..end.div_ceil(64)].iter().all(|p| *p != NO_PAGE), "visible pages at {at}");
            at = end;
            if at == 4096 {
                break;
            }
        }
        pool.release(table);
        assert_eq!(pool.used(), [0, 0]);
    }

    #[test]
    fn truncate_refuses_what_it_cannot_restore() {
        let layout = layout();
        let mut pool = PagePool::new(&layout, 64, &[64, 64]);
        let mut table = pool.table();
        for at in 0..1000 {
            assert!(pool.extend(&mut table, at, at + 1));
        }
        assert!(!pool.truncate(&mut table, 500), "its window's pages are gone");
        // The last step, at 999, gave back what rows from 935 on cannot see: positions before 832. The row at 930 sees from 831.
        assert!(!pool.truncate(&mut table, 930));
        assert!(pool.truncate(&mut table, 931));
        assert!(pool.extend(&mut table, 931, 1000));
        pool.release(table);
        assert_eq!(pool.used(), [0, 0]);
    }

    #[test]
    fn a_full_pool_changes_nothing() {
        let layout = layout();
        let mut pool = PagePool::new(&layout, 64, &[1, 1]);
        let mut table = pool.table();
        assert!(pool.extend(&mut table, 0, 64));
        assert!(!pool.extend(&mut table, 64, 65));
        assert_eq!(pool.used(), [1, 1]);
    }
}
