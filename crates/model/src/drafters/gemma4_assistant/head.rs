//! The drafter's output: all tokens scored, or the tokens of the best clusters only (gemma4.md §5.6).

use mlxcel_checkpoint::gemma4::Centroids;
use mlxcel_compute::Backend;

use crate::ModelError;
use crate::drafters::{Candidate, top_candidates};
use crate::layers::Loader;
use crate::tap::{Tap, show};

/// Output matrix, with or without clusters before it.
pub struct Head<B: Backend> {
    embed_tokens: B::Weight, // [vocab, hidden]
    clusters: Option<Clusters<B>>,
    vocab: usize,
    hidden: usize,
}

struct Clusters<B: Backend> {
    centroids: B::Weight,     // [clusters, hidden]
    token_ordering: Vec<u32>, // [clusters, vocab / clusters], a permutation of the vocabulary
    sizes: Centroids,
}

impl<B: Backend> Head<B> {
    /// Reads `model.embed_tokens` and, for a clustered head, `masked_embedding`; `load` stands at the root. `refuse` makes an error
    /// of what is wrong with the list of tokens.
    pub fn load(
        load: &Loader<'_, B>,
        vocab: usize,
        hidden: usize,
        sizes: Option<Centroids>,
        refuse: impl Fn(String) -> ModelError,
    ) -> Result<Self, ModelError> {
        const LIST: &str = "masked_embedding.token_ordering";
        let clusters = sizes.map(|sizes| -> Result<_, ModelError> {
            let centroids = load.linear("masked_embedding.centroids", sizes.num_centroids, hidden)?;
            load.ledger.vector(LIST, vocab);
            let list = permutation(&load.weights.integers(LIST, vocab)?);
            let token_ordering =
                list.map_err(|problem| refuse(format!("{LIST}{problem}; download or convert it again")))?;
            Ok(Clusters { centroids, token_ordering, sizes })
        });
        let embed_tokens = load.linear("model.embed_tokens", vocab, hidden)?;
        Ok(Head { embed_tokens, clusters: clusters.transpose()?, vocab, hidden })
    }

    /// Scores of all tokens for each row of `y` `[rows, hidden]`; `None` where only those of the best clusters are scored.
    pub fn logits(&self, backend: &B, y: &B::Buffer, tap: &mut Option<&mut dyn Tap>) -> Option<B::Buffer> {
        if self.clusters.is_some() {
            return None;
        }
        let mut logits = backend.buffer(backend.shape(y).0, self.vocab);
        backend.linear(y, &[&self.embed_tokens], &mut [&mut logits]);
        show(tap, backend, None, "logits", &logits);
        Some(logits)
    }

    /// Whether [`Head::logits`] gives any.
    pub fn scores_all(&self) -> bool {
        self.clusters.is_none()
    }

    /// The best candidates of each row of `y` `[rows, hidden]`, as many as `counts` says or as there are; `None` for a row with a
    /// score that is not finite.
    pub fn candidates(
        &self,
        backend: &B,
        y: &B::Buffer,
        counts: &[usize],
        tap: &mut Option<&mut dyn Tap>,
    ) -> Vec<Option<Vec<Candidate>>> {
        if let Some(logits) = self.logits(backend, y, tap) {
            // One candidate alone is known without the row's values.
            let largest = if counts.contains(&1) { backend.argmax(&logits) } else { Vec::new() };
            let of_row = |(row, count): (usize, &usize)| match count {
                1 => largest[row].map(|token| vec![Candidate { token, logit: 0.0 }]),
                _ => top_candidates(&backend.read_rows(&logits, row..row + 1), *count),
            };
            return counts.iter().enumerate().map(of_row).collect();
        }
        let Some(clusters) = &self.clusters else { return vec![None; counts.len()] };
        let sizes = clusters.sizes;
        let mut scores = backend.buffer(counts.len(), sizes.num_centroids);
        backend.linear(y, &[&clusters.centroids], &mut [&mut scores]);
        show(tap, backend, None, "centroids", &scores);
        let (scores, y) = (backend.read(&scores), backend.read(y));
        let rows = scores.chunks_exact(sizes.num_centroids).zip(y.chunks_exact(self.hidden)).zip(counts);
        rows.map(|((scores, y), count)| {
            let best = top_candidates(scores, sizes.centroid_intermediate_top_k)?;
            let share = self.vocab / sizes.num_centroids;
            let of_cluster = |c: &Candidate| &clusters.token_ordering[c.token as usize * share..][..share];
            let mut tokens: Vec<u32> = best.iter().flat_map(of_cluster).copied().collect();
            // Equal logits are for the lower id to win.
            tokens.sort_unstable();
            // A few thousand rows out of a matrix of any format: cheaper than all its rows.
            if tap.is_some() {
                let mut rows = backend.buffer(tokens.len(), self.hidden);
                backend.embed(&self.embed_tokens, &tokens, 1.0, &mut rows);
                show(tap, backend, None, "embed_tokens", &rows);
            }
            let logits = backend.row_dots(&self.embed_tokens, &tokens, y);
            let mut candidates = top_candidates(&logits, *count)?;
            candidates.iter_mut().for_each(|c| c.token = tokens[c.token as usize]);
            Some(candidates)
        })
        .collect()
    }
}

/// The list as ids, or what is wrong with it.
fn permutation(list: &[i64]) -> Result<Vec<u32>, String> {
    let mut seen = vec![false; list.len()];
    let mut out = Vec::with_capacity(list.len());
    for (i, id) in list.iter().enumerate() {
        let place = usize::try_from(*id).ok().and_then(|id| seen.get_mut(id));
        match place {
            Some(seen) if !*seen => *seen = true,
            Some(_) => return Err(format!("[{i}] is {id} once more; expected every token id once")),
            None => return Err(format!("[{i}] is {id}; expected token ids below {} (vocab_size)", list.len())),
        }
        out.push(*id as u32);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permutations_pass() {
        assert_eq!(permutation(&[2, 0, 1]), Ok(vec![2, 0, 1]));
        for (list, problem) in [
            ([2, 0, 2], "[2] is 2 once more"),
            ([0, 3, 1], "[1] is 3; expected token ids below 3"),
            ([-1, 0, 1], "[0] is -1;"),
            ([0, 1 << 32, 1], "[1] is 4294967296;"),
        ] {
            let found = permutation(&list).expect_err("no permutation");
            assert!(found.contains(problem), "{found}");
        }
    }
}
