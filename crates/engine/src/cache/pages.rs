//! Pages and page tables. A page holds a fixed run of positions for all layers of a KV group; a sequence has one table a
//! group. Window groups give pages back once no later row can see them.
//!
//! Several sequences may use a page, and the prefix cache may keep it beside or after them; it is free again when neither does.

use mlxcel_compute::{KvGroup, NO_PAGE};

/// Positions behind the newest that a window group still serves: taking back up to this many costs nothing. Covers the widest
/// verify block, and a conversation that goes on a little before its cached end.
pub const SLACK: usize = 64;

/// The pages of each group, and who holds them.
#[derive(Debug)]
pub struct PagePool {
    page_len: usize,
    windows: Vec<Option<usize>>,
    free: Vec<Vec<u32>>,
    /// By group and page: tables that name it, and whether the prefix cache keeps it.
    holders: Vec<Vec<Holders>>,
    in_use: Vec<usize>,
    cached: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Holders {
    tables: u32,
    kept: bool,
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
            holders: pages.iter().map(|n| vec![Holders::default(); *n]).collect(),
            in_use: vec![0; pages.len()],
            cached: vec![0; pages.len()],
        }
    }

    /// A table without pages.
    pub fn table(&self) -> PageTable {
        PageTable { tables: vec![Vec::new(); self.windows.len()] }
    }

    /// Positions of a page.
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Window of each group.
    pub fn windows(&self) -> &[Option<usize>] {
        &self.windows
    }

    /// Pages that sequences use, per group; a page that several use counts once.
    pub fn in_use(&self) -> &[usize] {
        &self.in_use
    }

    /// Pages that only the prefix cache keeps, per group.
    pub fn cached(&self) -> &[usize] {
        &self.cached
    }

    /// Whether only the prefix cache keeps a page.
    pub fn is_cached(&self, group: usize, page: u32) -> bool {
        let holders = self.holders[group][page as usize];
        holders.kept && holders.tables == 0
    }

    /// Makes room for positions up to `end`, of which `start..end` are about to be written. Pages that no row from
    /// `start - SLACK` on can see are given back first; when that leaves too few, false, and none are taken.
    pub fn extend(&mut self, table: &mut PageTable, start: usize, end: usize) -> bool {
        self.drop_behind(table, start);
        let wanted: Vec<usize> =
            table.tables.iter().map(|t| end.div_ceil(self.page_len).saturating_sub(t.len())).collect();
        if wanted.iter().zip(&self.free).any(|(w, f)| *w > f.len()) {
            return false;
        }
        for (group, wanted) in wanted.into_iter().enumerate() {
            for _ in 0..wanted {
                let Some(page) = self.free[group].pop() else { return false };
                self.use_page(group, page);
                table.tables[group].push(page);
            }
        }
        true
    }

    /// Gives back the pages of window groups that rows from `start - SLACK` on cannot see.
    pub fn drop_behind(&mut self, table: &mut PageTable, start: usize) {
        for group in 0..self.windows.len() {
            let first = self.first_seen(group, start.saturating_sub(SLACK));
            let own = &mut table.tables[group];
            // What was given back before lies together at the beginning.
            let seen = own.len().min(first);
            let known = own[..seen].iter().rposition(|p| *p == NO_PAGE).map_or(0, |i| i + 1);
            for entry in &mut own[known..seen] {
                let page = std::mem::replace(entry, NO_PAGE);
                self.leave_page(group, page);
            }
        }
    }

    /// Index of the first page that a row at `position` sees.
    pub fn first_seen(&self, group: usize, position: usize) -> usize {
        // It sees keys from position + 1 - window.
        self.windows[group].map_or(0, |w| (position + 1).saturating_sub(w)) / self.page_len
    }

    /// Takes back positions from `len` on: a sequence continued from `len` finds what it would have found had the rest
    /// never been written. False, changing nothing, when a window needs pages that were given back.
    pub fn truncate(&mut self, table: &mut PageTable, len: usize) -> bool {
        let keep = len.div_ceil(self.page_len);
        let gone = table
            .tables
            .iter()
            .enumerate()
            .any(|(group, t)| t.len() < keep || t[self.first_seen(group, len).min(keep)..keep].contains(&NO_PAGE));
        if gone {
            return false;
        }
        for (group, own) in table.tables.iter_mut().enumerate() {
            for page in own.drain(keep..).filter(|p| *p != NO_PAGE) {
                self.leave_page(group, page);
            }
        }
        true
    }

    /// Gives all pages of a sequence back.
    pub fn release(&mut self, table: PageTable) {
        for (group, own) in table.tables.into_iter().enumerate() {
            for page in own.into_iter().filter(|p| *p != NO_PAGE) {
                self.leave_page(group, page);
            }
        }
    }

    /// Lets a sequence use pages that are there, one a group ([`NO_PAGE`] where it sees none), behind those it has.
    pub fn share(&mut self, table: &mut PageTable, pages: &[u32]) {
        for (group, page) in pages.iter().enumerate() {
            if *page != NO_PAGE {
                self.use_page(group, *page);
            }
            table.tables[group].push(*page);
        }
    }

    /// Puts a page that is there in the place of a sequence's own, which holds the same.
    pub fn swap(&mut self, table: &mut PageTable, group: usize, index: usize, page: u32) {
        self.use_page(group, page);
        let own = std::mem::replace(&mut table.tables[group][index], page);
        self.leave_page(group, own);
    }

    /// Keeps a page for the prefix cache.
    pub fn keep(&mut self, group: usize, page: u32) {
        let holders = &mut self.holders[group][page as usize];
        debug_assert!(!holders.kept && holders.tables > 0, "page {page} of group {group} cannot be kept: {holders:?}");
        holders.kept = true;
    }

    /// The prefix cache keeps a page no longer.
    pub fn forget(&mut self, group: usize, page: u32) {
        let holders = &mut self.holders[group][page as usize];
        debug_assert!(holders.kept, "page {page} of group {group} is not kept");
        holders.kept = false;
        if holders.tables == 0 {
            self.cached[group] -= 1;
            self.free[group].push(page);
        }
    }

    /// A fault for tests: a page becomes free whoever uses it.
    #[doc(hidden)]
    pub fn seize(&mut self, group: usize, page: u32) {
        self.free[group].push(page);
    }

    /// Whether no other sequence and no cache would see positions `start..end` of a table change.
    pub fn is_writable(&self, table: &PageTable, start: usize, end: usize) -> bool {
        let pages = start / self.page_len..end.div_ceil(self.page_len);
        let own = |group: usize, page: u32| {
            let holders = self.holders[group][page as usize];
            holders.tables == 1 && !holders.kept
        };
        table.tables.iter().enumerate().all(|(g, t)| t[pages.clone()].iter().all(|p| own(g, *p)))
    }

    /// Compares the books with those who hold pages: the running sequences, and the cache's pages as (group, page).
    ///
    /// # Errors
    /// What differs.
    #[doc(hidden)]
    pub fn audit<'a>(
        &self,
        tables: impl Iterator<Item = &'a PageTable>,
        kept: impl Iterator<Item = (usize, u32)>,
    ) -> Result<(), String> {
        let mut count: Vec<Vec<Holders>> = self.holders.iter().map(|g| vec![Holders::default(); g.len()]).collect();
        for table in tables {
            for (group, own) in table.tables.iter().enumerate() {
                own.iter().filter(|p| **p != NO_PAGE).for_each(|p| count[group][*p as usize].tables += 1);
            }
        }
        for (group, page) in kept {
            if std::mem::replace(&mut count[group][page as usize].kept, true) {
                return Err(format!("page {page} of group {group} is kept twice"));
            }
        }
        for (group, want) in count.iter().enumerate() {
            let mut free = vec![0; want.len()];
            self.free[group].iter().for_each(|p| free[*p as usize] += 1);
            for (page, (want, got)) in want.iter().zip(&self.holders[group]).enumerate() {
                let held = want.tables > 0 || want.kept;
                if (want.tables, want.kept) != (got.tables, got.kept) || free[page] != u32::from(!held) {
                    let free = free[page];
                    return Err(format!("page {page} of group {group}: {want:?} counted, {got:?} noted, free {free}"));
                }
            }
            let sums =
                (want.iter().filter(|h| h.tables > 0).count(), want.iter().filter(|h| h.kept && h.tables == 0).count());
            if sums != (self.in_use[group], self.cached[group]) {
                let noted = (self.in_use[group], self.cached[group]);
                return Err(format!("group {group}: {sums:?} pages in use and cached counted, {noted:?} noted"));
            }
        }
        Ok(())
    }

    fn use_page(&mut self, group: usize, page: u32) {
        let holders = &mut self.holders[group][page as usize];
        if holders.tables == 0 {
            self.in_use[group] += 1;
            self.cached[group] -= usize::from(holders.kept);
        }
        holders.tables += 1;
    }

    fn leave_page(&mut self, group: usize, page: u32) {
        let holders = &mut self.holders[group][page as usize];
        holders.tables -= 1;
        if holders.tables == 0 {
            self.in_use[group] -= 1;
            if holders.kept {
                self.cached[group] += 1;
            } else {
                self.free[group].push(page);
            }
        }
    }
}

impl PageTable {
    /// One table a group, for a batch.
    pub fn tables(&self) -> Vec<&[u32]> {
        self.tables.iter().map(Vec::as_slice).collect()
    }

    /// The page of a group that holds positions from `index * page_len` on; [`NO_PAGE`] where it has none.
    pub fn page(&self, group: usize, index: usize) -> u32 {
        self.tables[group].get(index).copied().unwrap_or(NO_PAGE)
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
        assert_eq!(pool.in_use(), [0, 0]);
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
        assert_eq!(pool.in_use(), [0, 0]);
    }

    #[test]
    fn a_full_pool_changes_nothing() {
        let layout = layout();
        let mut pool = PagePool::new(&layout, 64, &[1, 1]);
        let mut table = pool.table();
        assert!(pool.extend(&mut table, 0, 64));
        assert!(!pool.extend(&mut table, 64, 65));
        assert_eq!(pool.in_use(), [1, 1]);
    }
}
