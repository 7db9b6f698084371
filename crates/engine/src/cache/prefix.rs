//! The prefix cache: a radix tree over pages. A node is a full page of tokens after those of its parent, so that what a node's
//! pages hold is a function of the path to it; sequences that agree share them, and nobody writes to them again. A sequence that
//! ended also leaves its last, partly filled page, as a leaf that one successor may take over and go on in.
//!
//! Pages that sequences use stay. Of the others the longest unused goes first: full layers give up a path from its end, windows give
//! up any page. A place can be resumed where full layers have all pages before it, and windows those that its rows see.

use std::collections::{BTreeSet, HashMap};

use mlxcel_compute::NO_PAGE;

use super::pages::{PagePool, PageTable, SLACK};
use super::snapshots::Snapshots;

/// A node's number; it may be given to another node later.
pub type NodeId = usize;

/// The node before every first page.
pub const ROOT: NodeId = 0;

/// A cache that is wrong on purpose, so that tests can be seen to fail.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheFault {
    /// The last token of a page is not compared.
    ShortKey,
    /// A hit goes one page beyond what agrees.
    LongHit,
    /// Pages in use may be given up.
    EvictInUse,
}

#[derive(Debug)]
struct Node {
    parent: NodeId,
    /// Pages from the root to this one.
    depth: usize,
    /// Its own tokens: a full page of them, or fewer in a tail.
    tokens: Box<[u32]>,
    children: HashMap<Box<[u32]>, NodeId>,
    tails: Vec<NodeId>,
    /// Its page of each group, and when that was last of use.
    pages: Vec<u32>,
    used: Vec<u64>,
    /// Running sequences that have come as far as this.
    pins: usize,
}

/// Where a sequence may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Positions that need not be computed.
    pub len: usize,
    /// Nodes of the full pages before it, from the first on.
    pub path: Vec<NodeId>,
    /// The tail that holds the rest.
    tail: Option<NodeId>,
}

impl Place {
    /// The last full page's node.
    pub fn node(&self) -> NodeId {
        self.path.last().copied().unwrap_or(ROOT)
    }

    /// Whether it lies inside a page.
    pub fn is_inside(&self) -> bool {
        self.tail.is_some()
    }
}

/// The tree.
pub struct PrefixCache {
    page_len: usize,
    windows: Vec<Option<usize>>,
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    /// Pages of each group that may be kept beside those in use.
    limits: Vec<usize>,
    /// Kept pages of each group, the longest unused first.
    oldest: Vec<BTreeSet<(u64, NodeId)>>,
    clock: u64,
    evictions: u64,
    /// States at the ends of nodes.
    pub snapshots: Snapshots,
    fault: Option<CacheFault>,
}

impl PrefixCache {
    /// An empty cache over a pool's pages.
    pub fn new(pool: &PagePool, limits: Vec<usize>, snapshots: Snapshots) -> Self {
        let windows = pool.windows().to_vec();
        let oldest = vec![BTreeSet::new(); windows.len()];
        let mut cache = PrefixCache {
            page_len: pool.page_len(),
            windows,
            nodes: Vec::new(),
            vacant: Vec::new(),
            limits,
            oldest,
            clock: 0,
            evictions: 0,
            snapshots,
            fault: None,
        };
        cache.nodes.push(Some(cache.blank(ROOT, 0, Box::default())));
        cache
    }

    /// Breaks it.
    #[doc(hidden)]
    pub fn plant(&mut self, fault: CacheFault) {
        self.fault = Some(fault);
    }

    /// Pages given up so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Sets how many pages of each group may be kept beside those in use, and gives up what is beyond.
    pub fn limit(&mut self, limits: Vec<usize>, pool: &mut PagePool) {
        self.limits = limits;
        self.shrink(pool);
    }

    /// Pages of the longest beginning of `tokens` that is in the tree.
    pub fn depth(&self, tokens: &[u32]) -> usize {
        self.path(tokens).len()
    }

    /// Places inside `tokens` that can be resumed, the farthest first.
    pub fn places(&self, tokens: &[u32]) -> Vec<Place> {
        let mut path = self.path(tokens);
        if self.fault == Some(CacheFault::LongHit) && (path.len() + 1) * self.page_len <= tokens.len() {
            let last = path.last().copied().unwrap_or(ROOT);
            path.extend(self.node(last).children.values().next());
        }
        let mut places = Vec::new();
        // Consecutive pages before each depth, by group.
        let mut run = vec![0; self.windows.len()];
        for depth in 0..=path.len() {
            if depth > 0 {
                let pages = &self.node(path[depth - 1]).pages;
                run.iter_mut().zip(pages).for_each(|(n, page)| *n = if *page == NO_PAGE { 0 } else { *n + 1 });
                let len = depth * self.page_len;
                if self.sees_enough(&run, depth, len) {
                    places.push(Place { len, path: path[..depth].to_vec(), tail: None });
                }
            }
            if depth == path.len() {
                places.extend(self.inside(&path, &run, tokens));
            }
        }
        places.reverse();
        places
    }

    /// The place inside the page after `path` that agrees longest.
    fn inside(&self, path: &[NodeId], run: &[usize], tokens: &[u32]) -> Option<Place> {
        let at = path.len() * self.page_len;
        let rest = &tokens[at.min(tokens.len())..];
        let same = |id: &NodeId| self.node(*id).tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
        let tails = &self.node(path.last().copied().unwrap_or(ROOT)).tails;
        let (tail, same) = tails.iter().map(|id| (*id, same(id))).max_by_key(|(_, same)| *same)?;
        let fits = same > 0 && self.sees_enough(run, path.len(), at + same);
        fits.then(|| Place { len: at + same, path: path.to_vec(), tail: Some(tail) })
    }

    /// Whether a row at `len` finds the pages that it sees among the `run` ones before page `depth`.
    fn sees_enough(&self, run: &[usize], depth: usize, len: usize) -> bool {
        (0..run.len()).all(|group| run[group] >= depth.saturating_sub(self.first_seen(group, len)))
    }

    fn first_seen(&self, group: usize, position: usize) -> usize {
        self.windows[group].map_or(0, |w| (position + 1).saturating_sub(w)) / self.page_len
    }

    /// Lets a sequence without pages go on from a place, and pins it there.
    pub fn resume(&mut self, place: &Place, table: &mut PageTable, pool: &mut PagePool) -> NodeId {
        // A sequence that had computed all this itself would have kept a little more than it sees.
        let first = |group: usize| {
            let least = self.first_seen(group, place.len.saturating_sub(SLACK));
            let there = |id: &&NodeId| self.node(**id).pages[group] != NO_PAGE;
            least.max(place.path.len() - place.path.iter().rev().take_while(there).count())
        };
        let first: Vec<usize> = (0..self.windows.len()).map(first).collect();
        for (index, id) in place.path.iter().enumerate() {
            let of = |group: usize| if index >= first[group] { self.node(*id).pages[group] } else { NO_PAGE };
            pool.share(table, &(0..first.len()).map(of).collect::<Vec<u32>>());
        }
        if let Some(tail) = place.tail {
            // It is written to from now on: nobody else may find it.
            pool.share(table, &self.node(tail).pages.clone());
            self.remove(tail, pool);
        }
        self.touch(&place.path, place.len);
        self.node_mut(place.node()).pins += 1;
        place.node()
    }

    /// Adds the page that follows `at`, which is page `index` of a sequence's table, and moves the sequence's pin there. Where the tree
    /// has that page already, the sequence uses it from now on: it holds the same.
    pub fn insert(
        &mut self,
        at: NodeId,
        tokens: &[u32],
        table: &mut PageTable,
        index: usize,
        pool: &mut PagePool,
    ) -> NodeId {
        let known = self.node(at).children.get(tokens).copied();
        let id = known.unwrap_or_else(|| {
            let id = self.add(at, tokens);
            self.node_mut(at).children.insert(tokens.into(), id);
            id
        });
        for group in 0..self.windows.len() {
            let (own, kept) = (table.page(group, index), self.node(id).pages[group]);
            if kept == NO_PAGE && own != NO_PAGE {
                self.hold(id, group, own, pool);
            } else if own != NO_PAGE && own != kept {
                pool.swap(table, group, index, kept);
            }
        }
        self.node_mut(at).pins -= 1;
        self.node_mut(id).pins += 1;
        id
    }

    /// Adds the partly filled page of a sequence that ends.
    pub fn insert_tail(&mut self, at: NodeId, tokens: &[u32], table: &PageTable, index: usize, pool: &mut PagePool) {
        let mut shorter = Vec::new();
        for id in self.node(at).tails.clone() {
            if self.node(id).tokens.starts_with(tokens) {
                return self.restamp(id, 0..self.windows.len());
            }
            if tokens.starts_with(&self.node(id).tokens) {
                shorter.push(id);
            }
        }
        let pages: Vec<u32> = (0..self.windows.len()).map(|group| table.page(group, index)).collect();
        if pages.contains(&NO_PAGE) {
            return;
        }
        shorter.into_iter().for_each(|id| self.remove(id, pool));
        let id = self.add(at, tokens);
        self.node_mut(at).tails.push(id);
        for (group, page) in pages.into_iter().enumerate() {
            self.hold(id, group, page, pool);
        }
    }

    /// Pins a sequence that begins at the root, or one that has gone back to another node of its path.
    pub fn pin(&mut self, id: NodeId) {
        self.node_mut(id).pins += 1;
    }

    /// A sequence of `len` positions that had come as far as this uses it no longer; `forget` says to forget the way to it from where
    /// it is nobody else's.
    pub fn unpin(&mut self, id: NodeId, len: usize, forget: bool, pool: &mut PagePool) {
        self.node_mut(id).pins -= 1;
        let path = self.path_to(id);
        self.touch(&path, len);
        self.prune(id, forget, pool);
    }

    /// The newest snapshot on the way to a node, at no more than `len` positions: its node, and the pages before it.
    pub fn newest_snapshot(&self, mut id: NodeId, len: usize) -> Option<(NodeId, usize)> {
        while id != ROOT {
            let depth = self.node(id).depth;
            if depth * self.page_len <= len && self.snapshots.at(id).is_some() {
                return Some((id, depth));
            }
            id = self.node(id).parent;
        }
        None
    }

    /// Gives up pages until the limits are met.
    pub fn shrink(&mut self, pool: &mut PagePool) {
        // Full layers first: what goes with their pages may be enough for windows, and leaves the rest of a path of use.
        let mut order: Vec<usize> = (0..self.windows.len()).collect();
        order.sort_by_key(|group| self.windows[*group].is_some());
        for group in order {
            while pool.cached()[group] > self.limits[group] && self.evict(group, pool) {}
        }
    }

    /// Forgets all that no sequence uses, and all snapshots.
    pub fn clear(&mut self, pool: &mut PagePool) {
        let before = self.evictions;
        self.snapshots.clear();
        for group in 0..self.windows.len() {
            while self.evict(group, pool) {}
        }
        self.evictions = before;
    }

    /// Gives up the longest unused page of a group; false when there is none to give up.
    fn evict(&mut self, group: usize, pool: &mut PagePool) -> bool {
        let careless = self.fault == Some(CacheFault::EvictInUse);
        let may_go = |(_, id): &&(u64, NodeId)| {
            let node = self.node(*id);
            let leaf = node.children.is_empty() && node.tails.is_empty() && node.pins == 0;
            pool.is_cached(group, node.pages[group]) && (self.windows[group].is_some() || leaf)
        };
        let mut order = self.oldest[group].iter();
        let victim = if careless { order.next_back() } else { order.find(may_go) };
        let Some((_, id)) = victim.copied() else { return false };
        self.evictions += 1;
        let page = self.node(id).pages[group];
        if careless && !pool.is_cached(group, page) {
            pool.seize(group, page);
            self.oldest[group].retain(|(_, other)| *other != id);
            return true;
        }
        // A page of full layers is worth nothing without what it follows, a tail nothing without all of it.
        if self.windows[group].is_none() || self.is_tail(id) {
            let parent = self.node(id).parent;
            self.remove(id, pool);
            self.prune(parent, false, pool);
        } else {
            self.give_up(id, group, pool);
            self.prune(id, false, pool);
        }
        true
    }

    /// Removes nodes that lead nowhere, from `id` upwards: those that hold nothing, or whatever they hold.
    fn prune(&mut self, mut id: NodeId, all: bool, pool: &mut PagePool) {
        while id != ROOT {
            let node = self.node(id);
            let empty = node.pages.iter().all(|p| *p == NO_PAGE);
            if !(empty || all) || node.pins > 0 || !node.children.is_empty() || !node.tails.is_empty() {
                return;
            }
            let parent = node.parent;
            self.remove(id, pool);
            id = parent;
        }
    }

    fn remove(&mut self, id: NodeId, pool: &mut PagePool) {
        for group in 0..self.windows.len() {
            self.give_up(id, group, pool);
        }
        self.snapshots.remove(id);
        let Some(node) = self.nodes[id].take() else { return };
        let parent = self.node_mut(node.parent);
        if parent.children.get(&node.tokens) == Some(&id) {
            parent.children.remove(&node.tokens);
        }
        parent.tails.retain(|tail| *tail != id);
        self.vacant.push(id);
    }

    fn hold(&mut self, id: NodeId, group: usize, page: u32, pool: &mut PagePool) {
        pool.keep(group, page);
        self.clock += 1;
        let now = self.clock;
        let node = self.node_mut(id);
        (node.pages[group], node.used[group]) = (page, now);
        self.oldest[group].insert((now, id));
    }

    fn give_up(&mut self, id: NodeId, group: usize, pool: &mut PagePool) {
        let node = self.node_mut(id);
        let page = std::mem::replace(&mut node.pages[group], NO_PAGE);
        let used = node.used[group];
        if page != NO_PAGE {
            self.oldest[group].remove(&(used, id));
            pool.forget(group, page);
        }
    }

    /// Notes that a path was of use up to `len` positions: all of it for full layers, what rows there see for windows. The
    /// end of a path goes before its beginning in full layers, and after it in windows.
    fn touch(&mut self, path: &[NodeId], len: usize) {
        for group in 0..self.windows.len() {
            if self.windows[group].is_none() {
                path.iter().rev().for_each(|id| self.restamp(*id, group..group + 1));
            } else {
                let first = self.first_seen(group, len.saturating_sub(SLACK)).min(path.len());
                path[first..].iter().for_each(|id| self.restamp(*id, group..group + 1));
            }
        }
    }

    fn restamp(&mut self, id: NodeId, groups: std::ops::Range<usize>) {
        for group in groups {
            let now = self.clock + 1;
            let node = self.node_mut(id);
            if node.pages[group] != NO_PAGE {
                let before = std::mem::replace(&mut node.used[group], now);
                self.oldest[group].remove(&(before, id));
                self.oldest[group].insert((now, id));
                self.clock = now;
            }
        }
    }

    fn is_tail(&self, id: NodeId) -> bool {
        self.node(id).tokens.len() < self.page_len
    }

    /// Nodes of the longest beginning of `tokens` in the tree.
    fn path(&self, tokens: &[u32]) -> Vec<NodeId> {
        let mut at = ROOT;
        let mut path = Vec::new();
        for page in tokens.chunks_exact(self.page_len) {
            let children = &self.node(at).children;
            let next = match self.fault {
                Some(CacheFault::ShortKey) => {
                    let key = &page[..page.len() - 1];
                    children.iter().find(|(tokens, _)| tokens.starts_with(key)).map(|(_, id)| *id)
                }
                _ => children.get(page).copied(),
            };
            let Some(next) = next else { break };
            path.push(next);
            at = next;
        }
        path
    }

    /// Nodes from the first page to a node.
    pub fn path_to(&self, mut id: NodeId) -> Vec<NodeId> {
        let mut path = Vec::with_capacity(self.node(id).depth);
        while id != ROOT {
            path.push(id);
            id = self.node(id).parent;
        }
        path.reverse();
        path
    }

    fn blank(&self, parent: NodeId, depth: usize, tokens: Box<[u32]>) -> Node {
        let groups = self.windows.len();
        let (children, tails) = (HashMap::new(), Vec::new());
        Node { parent, depth, tokens, children, tails, pages: vec![NO_PAGE; groups], used: vec![0; groups], pins: 0 }
    }

    fn add(&mut self, parent: NodeId, tokens: &[u32]) -> NodeId {
        let node = Some(self.blank(parent, self.node(parent).depth + 1, tokens.into()));
        match self.vacant.pop() {
            Some(id) => {
                self.nodes[id] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id].as_ref().expect("a node of the tree")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id].as_mut().expect("a node of the tree")
    }

    /// Compares its books with each other and with the pool's; `running` has the table and the node of each sequence.
    ///
    /// # Errors
    /// What differs.
    #[doc(hidden)]
    pub fn audit(&self, running: &[(&PageTable, NodeId)], pool: &PagePool) -> Result<(), String> {
        let nodes = || self.nodes.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?)));
        let kept = nodes().flat_map(|(_, n)| n.pages.iter().copied().enumerate().filter(|(_, p)| *p != NO_PAGE));
        pool.audit(running.iter().map(|(table, _)| *table), kept)?;
        for (group, limit) in self.limits.iter().enumerate() {
            if pool.cached()[group] > *limit {
                return Err(format!("group {group}: {} pages cached, at most {limit} may be", pool.cached()[group]));
            }
            let want: BTreeSet<(u64, NodeId)> =
                nodes().filter(|(_, n)| n.pages[group] != NO_PAGE).map(|(id, n)| (n.used[group], id)).collect();
            if want != self.oldest[group] {
                return Err(format!("group {group}: the order of use names other pages than the tree"));
            }
        }
        for (id, node) in nodes() {
            let parent = self.nodes[node.parent].as_ref().ok_or_else(|| format!("node {id} has no parent"))?;
            let known = parent.children.get(&node.tokens) == Some(&id) || parent.tails.contains(&id);
            if id != ROOT && (!known || node.depth != parent.depth + 1) {
                return Err(format!("node {id} is not below its parent"));
            }
            let pins = running.iter().filter(|(_, at)| *at == id).count();
            if pins != node.pins {
                return Err(format!("node {id}: {pins} sequences stand there, {} noted", node.pins));
            }
            let whole = self.windows.iter().zip(&node.pages).all(|(w, page)| w.is_some() || *page != NO_PAGE);
            let empty = node.pages.iter().all(|p| *p == NO_PAGE);
            let leaf = node.children.is_empty() && node.tails.is_empty() && node.pins == 0;
            if id != ROOT && (!whole || (empty && leaf)) {
                return Err(format!("node {id} is of no use: {node:?}"));
            }
        }
        self.snapshots.audit(|id, position| {
            self.nodes.get(id).and_then(Option::as_ref).is_some_and(|n| n.depth * self.page_len == position)
        })
    }
}
