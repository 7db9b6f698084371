//! Speculation: what is drafted, how wide, and whether it may be (DESIGN §5). It changes the speed of an answer and nothing else:
//! each token is the request's own sampler's choice from the target's row, in order; a draft only lets several rows be
//! computed at once.

mod acceptance;
pub mod gate;
pub mod probe;
pub(crate) mod rounds;
pub mod verdict;
pub mod width;

pub use acceptance::Acceptance;
pub use width::Costs;

/// Widest block: positions verified in a round.
pub const MAX_BLOCK: usize = mlxcel_model::TAKE_BACK;

/// How drafts of sampled requests are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coupling {
    /// With the request's own noise: where drafter and target nearly agree, they sample the same token.
    #[default]
    Coupled,
    /// The drafter's likeliest token.
    Greedy,
    /// With noise of its own. For measuring what coupling gives.
    Independent,
}

impl Coupling {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Coupling::Coupled => "coupled",
            Coupling::Greedy => "greedy",
            Coupling::Independent => "independent",
        }
    }
}

/// How an engine speculates.
#[derive(Clone, Debug)]
pub struct Speculation {
    /// Block width K of every request that names none; `None` = measured and adapted.
    pub block_size: Option<usize>,
    /// Without a block width: measure and adapt it, or use the drafter's own.
    pub adaptive: bool,
    /// Whether a sequence that runs alone drafts, at the drafter's own width; `None` = as the rest says.
    pub alone: Option<bool>,
    /// How drafts of sampled requests are chosen.
    pub coupling: Coupling,
    /// Plain steps to run and measure before the first draft.
    pub calibrate: usize,
    /// Widest block that is used, whoever asks for more: what the probe has looked at.
    pub most: usize,
    /// Whether an engine without its drafter is an error; else it goes on without, and says so.
    pub required: bool,
}

impl Default for Speculation {
    fn default() -> Self {
        Speculation {
            block_size: None,
            adaptive: true,
            alone: None,
            coupling: Coupling::Coupled,
            calibrate: 4,
            most: MAX_BLOCK,
            required: true,
        }
    }
}

/// Counts of rounds (DESIGN §5 for the names).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// Rounds with at least one draft.
    pub rounds: u64,
    /// Tokens drafted and verified.
    pub proposed: u64,
    /// Of those, the ones the target chose as well.
    pub accepted: u64,
    /// Tokens that these rounds emitted.
    pub emitted: u64,
    /// Steps without a draft.
    pub plain_steps: u64,
    /// Rounds whose draft at a depth was accepted; the first depth is 1.
    pub accepted_by_depth: [u64; MAX_BLOCK - 1],
}

impl Rounds {
    /// Counts a step.
    pub fn add(&mut self, proposed: usize, accepted: usize, emitted: usize) {
        if proposed == 0 {
            self.plain_steps += 1;
            return;
        }
        self.rounds += 1;
        self.proposed += proposed as u64;
        self.accepted += accepted as u64;
        self.emitted += emitted as u64;
        self.accepted_by_depth.iter_mut().take(accepted).for_each(|count| *count += 1);
    }

    /// accepted / proposed; `None` before the first draft.
    pub fn acceptance_rate(&self) -> Option<f64> {
        (self.proposed > 0).then(|| self.accepted as f64 / self.proposed as f64)
    }

    /// accepted / rounds, the bonus token not counted.
    pub fn mean_accepted_len(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.accepted as f64 / self.rounds as f64)
    }

    /// emitted / rounds, the bonus token counted.
    pub fn tokens_per_round(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.emitted as f64 / self.rounds as f64)
    }
}
