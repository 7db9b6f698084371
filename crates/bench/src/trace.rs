//! Rounds written down one by one, so that two hosts can be compared round by round.
//!
//! A trace file is a report ([`Report`](crate::report::json::Report)) with one field more, `traces`.

use mlxcel_engine::RoundRecord;
use serde::{Deserialize, Serialize};

/// The rounds of one sequence of one row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Name of the pairing.
    pub pairing: String,
    /// Kind of the drafter.
    pub kind: String,
    /// Block width; `None` = adaptive.
    pub k: Option<usize>,
    /// Sequences at once.
    pub batch: usize,
    /// Which of them.
    pub sequence: usize,
    /// Name of the prompt.
    pub prompt: String,
    /// Its tokens.
    pub prompt_ids: Vec<u32>,
    /// Hash of the checkpoints' files.
    pub checkpoint: String,
    /// How tokens were chosen: temperature and seed of the sequence.
    pub sampling: (f32, u64),
    /// The backend.
    pub backend: String,
    /// Its rounds, one of a single row where nothing was drafted.
    pub rounds: Vec<TraceRound>,
}

/// One round. Hashes are hexadecimal, since JSON readers lose integers beyond 2^53.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceRound {
    /// Position of its first row.
    pub position: usize,
    /// Tokens drafted.
    pub proposed: Vec<u32>,
    /// Of those, accepted.
    pub accepted: usize,
    /// The tokens that were chosen, from the block's first row on.
    pub tokens: Vec<u32>,
    /// The token of each of these rows' largest logit.
    pub argmax: Vec<u32>,
    /// The largest logit of each less its second; `None` where there is no second.
    pub margins: Vec<Option<f32>>,
    /// The drafter's largest logit less its second for each draft, as far as it told.
    pub draft_margins: Vec<Option<f32>>,
    /// Hash of each row of logits.
    pub logits: Vec<String>,
    /// Hash of each row's hidden state, where a drafter reads it.
    pub hidden: Vec<Option<String>>,
}

impl From<&RoundRecord> for TraceRound {
    fn from(round: &RoundRecord) -> Self {
        let finite = |x: f32| x.is_finite().then_some(x);
        let hex = |hash: u64| format!("{hash:016x}");
        TraceRound {
            position: round.position,
            proposed: round.proposed.clone(),
            accepted: round.accepted,
            tokens: round.rows.iter().map(|r| r.token).collect(),
            argmax: round.rows.iter().map(|r| r.argmax).collect(),
            margins: round.rows.iter().map(|r| finite(r.margin)).collect(),
            draft_margins: round.draft_margins.iter().map(|m| finite(*m)).collect(),
            logits: round.rows.iter().map(|r| hex(r.logits)).collect(),
            hidden: round.rows.iter().map(|r| r.hidden.map(hex)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlxcel_engine::RowRecord;

    #[test]
    fn rounds_are_written_whole() {
        let rows = vec![
            RowRecord { token: 3, argmax: 3, margin: 0.5, logits: u64::MAX, hidden: Some(1) },
            RowRecord { token: 9, argmax: 8, margin: f32::INFINITY, logits: 2, hidden: None },
        ];
        let record = RoundRecord {
            position: 17,
            proposed: vec![3, 4],
            accepted: 1,
            emitted: 2,
            rows,
            draft_margins: vec![0.25, 0.125],
            ..RoundRecord::default()
        };
        let round = TraceRound::from(&record);
        assert_eq!(round.logits, ["ffffffffffffffff", "0000000000000002"]);
        assert_eq!((round.margins[1], round.hidden[1].as_deref()), (None, None));
        let text = serde_json::to_string(&round).expect("JSON");
        assert_eq!(serde_json::from_str::<TraceRound>(&text).expect("read"), round);
    }
}
