//! Snapshots of recurrent state at nodes of the prefix cache, under a budget in bytes.
//!
//! K/V of any position can be returned to by forgetting what came later; a recurrent state cannot. Chat templates often render a
//! past answer differently than it was generated, so that the next turn parts from the cache at the end of the prompt: of the
//! snapshots on a sequence's way, the newest inside its prompt and the newest of all are dear, and go when it is the longest
//! unused sequence. The others go first: those of the longest unused sequence, and of one sequence's the one whose loss leaves
//! the smallest gap.

use std::collections::BTreeMap;

use mlxcel_model::Snapshot;

use super::prefix::NodeId;

/// A sequence on whose way snapshots lie; later ones have greater numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// Its number.
    pub number: u64,
    /// Tokens of its prompt.
    pub prompt: usize,
}

/// The snapshots.
pub struct Snapshots {
    most: usize,
    /// By node, with the last sequence that came by.
    held: BTreeMap<NodeId, (Snapshot, Line)>,
}

/// How dear a snapshot is: the cheapest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// One of several; by its line, and by the gap its loss would leave.
    Between(Line, usize),
    /// By its line: the newest of it, or (true) the newest inside the prompt.
    End(Line, bool),
}

/// Ranks of a line's snapshots.
fn ranks(positions: &[usize], line: Line) -> Vec<Rank> {
    let anchor = positions.iter().rposition(|p| *p <= line.prompt);
    let rank = |i: usize| match i {
        _ if Some(i) == anchor => Rank::End(line, true),
        _ if i + 1 == positions.len() => Rank::End(line, false),
        _ => Rank::Between(line, positions[i + 1] - if i == 0 { 0 } else { positions[i - 1] }),
    };
    (0..positions.len()).map(rank).collect()
}

impl Snapshots {
    /// Room for so many.
    pub fn new(most: usize) -> Self {
        Snapshots { most, held: BTreeMap::new() }
    }

    /// Snapshots that fit the budget.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Number of snapshots.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The snapshot at a node.
    pub fn at(&self, node: NodeId) -> Option<&Snapshot> {
        self.held.get(&node).map(|(snapshot, _)| snapshot)
    }

    /// Makes room for one at `position` of a line; false when it would be the first to go. It competes before it is copied.
    pub fn make_room(&mut self, position: usize, line: Line) -> bool {
        if self.held.len() < self.most {
            return true;
        }
        match self.cheapest(position, line) {
            Some(node) => self.held.remove(&node).is_some(),
            None => false,
        }
    }

    /// Keeps one at a node.
    pub fn put(&mut self, node: NodeId, snapshot: Snapshot, line: Line) {
        self.held.insert(node, (snapshot, line));
    }

    /// Notes that a sequence came by.
    pub fn pass(&mut self, node: NodeId, line: Line) {
        if let Some((_, own)) = self.held.get_mut(&node) {
            *own = line;
        }
    }

    /// Forgets the one at a node.
    pub fn remove(&mut self, node: NodeId) {
        self.held.remove(&node);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.held.clear();
    }

    /// The node whose snapshot to give up, `None` for the new one at `position` of `line`.
    fn cheapest(&self, position: usize, line: Line) -> Option<NodeId> {
        let mut lines: BTreeMap<Line, Vec<(usize, Option<NodeId>)>> = BTreeMap::new();
        lines.entry(line).or_default().push((position, None));
        for (node, (snapshot, line)) in &self.held {
            lines.entry(*line).or_default().push((snapshot.position(), Some(*node)));
        }
        let mut all = Vec::new();
        for (line, mut own) in lines {
            own.sort_unstable();
            let positions: Vec<usize> = own.iter().map(|(position, _)| *position).collect();
            all.extend(ranks(&positions, line).into_iter().zip(own));
        }
        all.into_iter().min().and_then(|(_, (_, node))| node)
    }

    /// Looks for one too many, and for one whose node does not end at its position.
    ///
    /// # Errors
    /// What is wrong.
    #[doc(hidden)]
    pub fn audit(&self, ends_at: impl Fn(NodeId, usize) -> bool) -> Result<(), String> {
        if self.len() > self.most {
            return Err(format!("{} snapshots, at most {} may be", self.len(), self.most));
        }
        let wrong = self.held.iter().find(|(node, (snapshot, _))| !ends_at(**node, snapshot.position()));
        wrong.map_or(Ok(()), |(node, (snapshot, _))| {
            Err(format!("the snapshot of position {} is at node {node}, which ends elsewhere", snapshot.position()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Line = Line { number: 1, prompt: 200 };

    #[test]
    fn the_snapshot_inside_the_prompt_is_dearest() {
        use Rank::{Between, End};
        let longer = Line { number: 2, prompt: 600 };
        assert_eq!(ranks(&[64, 128, 512], LINE), [Between(LINE, 128), End(LINE, true), End(LINE, false)]);
        assert_eq!(ranks(&[64, 128, 512], longer), [Between(longer, 128), Between(longer, 448), End(longer, true)]);
        let short = Line { number: 3, prompt: 10 };
        assert_eq!(ranks(&[64, 128], short), [Between(short, 128), End(short, false)]);
        assert_eq!(ranks(&[], LINE), []);
        assert!(Between(longer, usize::MAX) < End(LINE, false) && End(LINE, false) < End(LINE, true));
        assert!(Between(LINE, 64) < Between(LINE, 128) && Between(LINE, 128) < Between(longer, 64));
        assert!(End(LINE, true) < End(longer, false), "the longest unused goes first");
    }

    /// Snapshots of one sequence, each at the node of its position.
    fn walk(snapshots: &mut Snapshots, line: Line, nodes: NodeId, positions: impl Iterator<Item = usize>) {
        for position in positions {
            if snapshots.make_room(position, line) {
                snapshots.put(nodes + position, Snapshot::new(position, ()), line);
            }
        }
    }

    fn positions(snapshots: &Snapshots, number: u64) -> Vec<usize> {
        let own = snapshots.held.values().filter(|(_, line)| line.number == number);
        let mut positions: Vec<usize> = own.map(|(snapshot, _)| snapshot.position()).collect();
        positions.sort_unstable();
        positions
    }

    #[test]
    fn a_long_answer_leaves_the_place_of_the_next_turn() {
        // A prompt of 500, an answer of 4,000, room for so many.
        for room in [1, 2, 3, 8] {
            let mut snapshots = Snapshots::new(room);
            let line = Line { number: 1, prompt: 500 };
            walk(&mut snapshots, line, 0, (64..=4500).step_by(64));
            let kept = positions(&snapshots, 1);
            assert_eq!(kept.len(), room);
            assert!(kept.contains(&448), "room for {room}: {kept:?}");
            assert!(room == 1 || kept.contains(&4480), "room for {room}: {kept:?}");
        }
    }

    #[test]
    fn conversations_leave_their_ends_and_the_longest_unused_goes() {
        let mut snapshots = Snapshots::new(6);
        for number in 1..=5 {
            let line = Line { number, prompt: 500 };
            walk(&mut snapshots, line, 10_000 * number as usize, (64..=1500).step_by(64));
        }
        // Three conversations of two, the last ones.
        assert_eq!(snapshots.len(), 6);
        assert_eq!((positions(&snapshots, 2), positions(&snapshots, 3)), (vec![], vec![448, 1472]));
        assert_eq!((positions(&snapshots, 4), positions(&snapshots, 5)), (vec![448, 1472], vec![448, 1472]));
        // Whoever comes by makes it his own.
        let next = Line { number: 6, prompt: 2000 };
        [30_448, 31_472].into_iter().for_each(|node| snapshots.pass(node, next));
        walk(&mut snapshots, next, 60_000, std::iter::once(1984));
        assert_eq!(positions(&snapshots, 6), [1472, 1984], "448 is one of several now, and gave way");
        assert_eq!(positions(&snapshots, 4), [448, 1472]);
        assert!(snapshots.audit(|node, position| node % 10_000 == position).is_ok());
        assert!(snapshots.audit(|node, _| node < 60_000).is_err());
    }

    #[test]
    fn without_room_there_are_none() {
        let mut snapshots = Snapshots::new(0);
        assert!(!snapshots.make_room(64, LINE));
        assert!(snapshots.is_empty());
    }
}
