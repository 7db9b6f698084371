//! The best few of a row of logits.

use super::Candidate;

/// Values looked at together when a bound for the best ones is sought.
const BLOCK: usize = 32;

/// The `count` largest logits of a row, best first, the lower id first among equals; fewer only if the row is shorter. `None` when a
/// logit is NaN or infinite.
///
/// The maxima of blocks give a bound that at least `count` values reach, and few values beside them do: two passes over the row and
/// a sort of little more than what is asked for.
pub fn top_candidates(row: &[f32], count: usize) -> Option<Vec<Candidate>> {
    let mut maxima = Vec::with_capacity(row.len() / BLOCK + 1);
    for block in row.chunks(BLOCK) {
        // Without an early exit the loop vectorises; a NaN loses every comparison, so finiteness is asked beside.
        let (max, finite) = block
            .iter()
            .fold((f32::MIN, true), |(max, finite), x| (if *x > max { *x } else { max }, finite & x.is_finite()));
        if !finite {
            return None;
        }
        maxima.push(max);
    }
    let bound = match count {
        0 => return Some(Vec::new()),
        n if n > maxima.len() => f32::MIN,
        n => {
            let mut order = maxima.clone();
            *order.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1
        }
    };
    let mut out = Vec::with_capacity(2 * count);
    for (block, _) in maxima.iter().enumerate().filter(|(_, max)| **max >= bound) {
        let first = block * BLOCK;
        let values = row[first..].iter().take(BLOCK).enumerate();
        out.extend(
            values.filter(|(_, x)| **x >= bound).map(|(i, x)| Candidate { token: (first + i) as u32, logit: *x }),
        );
    }
    // Ids ascend so far: a stable sort keeps them so among equals.
    out.sort_by(|a, b| b.logit.total_cmp(&a.logit));
    out.truncate(count);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(row: &[f32], count: usize) -> Vec<Candidate> {
        let mut all: Vec<Candidate> =
            row.iter().enumerate().map(|(i, x)| Candidate { token: i as u32, logit: *x }).collect();
        all.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token)));
        all.truncate(count);
        all
    }

    proptest! {
        #[test]
        fn the_best_of_any_row(
            row in prop::collection::vec((-20i32..20).prop_map(|x| x as f32 * 0.5 + 0.0), 0..400),
            count in 0usize..80,
        ) {
            // -0.0 and 0.0 are one value to a sampler and two to a total order.
            let row: Vec<f32> = row.iter().map(|x| if *x == 0.0 { 0.0 } else { *x }).collect();
            prop_assert_eq!(top_candidates(&row, count).expect("finite"), naive(&row, count));
        }
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 31, 32, 99] {
                let mut row = vec![1.0; 100];
                row[place] = bad;
                assert_eq!(top_candidates(&row, 3), None, "{bad} at {place}");
            }
        }
    }
}
