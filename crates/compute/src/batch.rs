//! The ragged batch: what one forward pass works on (DESIGN §2).
//!
//! Rows are token positions, flat over all spans. A prompt chunk is a long span, a decode step a span of 1, a verify
//! block a span of K; they mix freely, because by the row law a row's bits do not depend on its neighbours.

/// A page-table entry for positions whose page was dropped (they left every window) or never allocated.
pub const NO_PAGE: u32 = u32::MAX;

/// Consecutive positions of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which sequence: the slot of its recurrent state. Attention uses only the span's page tables.
    pub sequence: usize,
    /// Absolute position of the first row.
    pub start: usize,
    /// Number of rows.
    pub len: usize,
    /// Index of the first row in the batch.
    pub first_row: usize,
}

/// Which rows of a span should come back as logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None: a prompt chunk that is not the last.
    None,
    /// The last row: the end of a prompt, or a decode step.
    Last,
    /// Every row: a verify block, or perplexity.
    All,
}

/// One step's rows: spans of several sequences with their tokens and page tables.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    spans: Vec<Span>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    span_of: Vec<u32>,
    wanted: Vec<u32>,
    tables: Vec<Vec<Vec<u32>>>, // [span][group][page index]
    rope: Option<(usize, Vec<u32>)>,
    vectors: Option<(Vec<u32>, Vec<f32>)>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes all spans, keeping the memory.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.tokens.clear();
        self.positions.clear();
        self.span_of.clear();
        self.wanted.clear();
        self.tables.clear();
        self.rope = None;
        self.vectors = None;
    }

    /// Appends a span: `tokens` at positions `start..`, with one page table per KV group, each covering at least
    /// `start + tokens.len()` positions. A sequence may appear once in a batch.
    ///
    /// # Panics
    /// After rotary positions or vectors were set: they would no longer fit the rows.
    pub fn push(&mut self, sequence: usize, start: usize, tokens: &[u32], tables: &[&[u32]], wanted: Wanted) {
        assert!(self.rope.is_none() && self.vectors.is_none(), "spans come before positions and vectors");
        let first_row = self.tokens.len();
        let span = Span { sequence, start, len: tokens.len(), first_row };
        self.span_of.extend(std::iter::repeat_n(self.spans.len() as u32, tokens.len()));
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((start..start + tokens.len()).map(|p| p as u32));
        match wanted {
            Wanted::None => {}
            Wanted::Last if tokens.is_empty() => {}
            Wanted::Last => self.wanted.push((first_row + tokens.len() - 1) as u32),
            Wanted::All => self.wanted.extend((first_row..first_row + tokens.len()).map(|r| r as u32)),
        }
        self.tables.push(tables.iter().map(|t| t.to_vec()).collect());
        self.spans.push(span);
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// True when there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The spans in order.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Token id of each row.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Absolute position of each row.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Gives rows positions for rotary embeddings that are not their places in the sequence: `positions` is `[rows, axes]`, as
    /// images have them (qwen3_5.md §6).
    ///
    /// # Panics
    /// When the number of positions does not fit the rows.
    pub fn set_rope_positions(&mut self, axes: usize, positions: Vec<u32>) {
        assert_eq!(positions.len(), axes * self.rows(), "positions of {} rows on {axes} axes", self.rows());
        self.rope = Some((axes, positions));
    }

    /// Axes and positions `[rows, axes]` for rotary embeddings: the places in the sequence unless others were given.
    pub fn rope_positions(&self) -> (usize, &[u32]) {
        self.rope.as_ref().map_or((1, &self.positions), |(axes, positions)| (*axes, positions))
    }

    /// Lets some rows (ascending) bring a vector in place of their token's embedding: `values` is `[rows.len(), hidden]`. Only
    /// for networks that take image features.
    ///
    /// # Panics
    /// When the rows are not ascending rows of the batch, or the values do not fit them.
    pub fn set_vectors(&mut self, rows: Vec<u32>, values: Vec<f32>) {
        assert!(
            rows.is_sorted_by(|a, b| a < b) && rows.last().is_none_or(|r| (*r as usize) < self.rows()),
            "rows {rows:?}"
        );
        assert!(values.len().is_multiple_of(rows.len().max(1)), "{} values for {} rows", values.len(), rows.len());
        self.vectors = Some((rows, values));
    }

    /// True when rows bring nothing but tokens and their places: all that a text-only network takes.
    pub fn is_text(&self) -> bool {
        self.rope.is_none() && self.vectors.is_none()
    }

    /// Rows that bring vectors, and the vectors.
    pub fn vectors(&self) -> Option<(&[u32], &[f32])> {
        self.vectors.as_ref().map(|(rows, values)| (rows.as_slice(), values.as_slice()))
    }

    /// Rows whose logits are wanted, ascending.
    pub fn wanted(&self) -> &[u32] {
        &self.wanted
    }

    /// Index of the span a row belongs to.
    pub fn span_of(&self, row: usize) -> usize {
        self.span_of[row] as usize
    }

    /// Page table of a row's sequence in a KV group: page of positions `i * page_len ..`.
    pub fn table(&self, row: usize, group: usize) -> &[u32] {
        &self.tables[self.span_of(row)][group]
    }

    /// The batch of some of the rows (ascending), all of them wanted. Rows keep positions and page tables, so an
    /// operation that writes no cache gives each the same bits as in the whole batch. A span's positions need no longer
    /// be consecutive: `start` is its first row's. Rotary positions go along, vectors do not: they are used by then.
    pub fn select(&self, rows: &[u32]) -> Batch {
        let mut out = Batch { wanted: (0..rows.len() as u32).collect(), ..Batch::default() };
        let mut last = None;
        for row in rows {
            let (row, span) = (*row as usize, self.span_of(*row as usize));
            if last != Some(span) {
                last = Some(span);
                let sequence = self.spans[span].sequence;
                out.spans.push(Span {
                    sequence,
                    start: self.positions[row] as usize,
                    len: 0,
                    first_row: out.tokens.len(),
                });
                out.tables.push(self.tables[span].clone());
            }
            out.spans.last_mut().expect("just pushed").len += 1;
            out.span_of.push(out.spans.len() as u32 - 1);
            out.tokens.push(self.tokens[row]);
            out.positions.push(self.positions[row]);
        }
        if let Some((axes, positions)) = &self.rope {
            let own = rows.iter().flat_map(|r| &positions[*r as usize * axes..][..*axes]).copied().collect();
            out.rope = Some((*axes, own));
        }
        out
    }
}
