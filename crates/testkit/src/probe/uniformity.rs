//! Whether counts look like uniform random choice.

/// How far counts are from equal: Pearson's chi-squared against the uniform distribution.
pub fn chi_squared(counts: &[u32]) -> f64 {
    let total: f64 = counts.iter().copied().map(f64::from).sum();
    let expected = total / f64::from(u32::try_from(counts.len()).unwrap_or(u32::MAX));
    counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
}

/// The value that chi-squared of truly uniform choice exceeds at most once in a million times.
pub fn limit(choices: usize) -> f64 {
    /// The quantile of the normal distribution for one in a million.
    const NORMAL: f64 = 4.753;
    let freedom = f64::from(u32::try_from(choices.saturating_sub(1).max(1)).unwrap_or(u32::MAX));
    // Wilson and Hilferty: the cube root of chi-squared is nearly normal; with few choices this errs upwards.
    let variance = 2.0 / (9.0 * freedom);
    freedom * (1.0 - variance + NORMAL * variance.sqrt()).powi(3)
}

/// Whether `counts`, one for every choice there was (zeros included), look uniform.
///
/// Needs enough draws to mean something: at least five per choice, else the answer is no.
pub fn is_uniform(counts: &[u32]) -> bool {
    let enough = counts.iter().map(|count| u64::from(*count)).sum::<u64>() >= 5 * counts.len() as u64;
    !counts.is_empty() && enough && chi_squared(counts) <= limit(counts.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_counts_are_no_distance_apart() {
        assert_eq!(chi_squared(&[25, 25, 25, 25]), 0.0);
        assert!(is_uniform(&[25, 25, 25, 25]));
    }

    #[test]
    fn the_limit_is_the_quantile_or_a_little_more() {
        // Exact quantiles of chi-squared for one in a million.
        for (choices, exact) in [(2, 23.93), (3, 27.63), (4, 30.66), (11, 46.86), (101, 182.13)] {
            let ratio = limit(choices) / exact;
            assert!((1.0..1.15).contains(&ratio), "{choices} choices: {ratio} times the quantile");
        }
    }

    #[test]
    fn a_choice_that_is_never_made_or_made_too_often_shows() {
        assert!(!is_uniform(&[100, 0]));
        assert!(!is_uniform(&[600, 400]));
        assert!(is_uniform(&[530, 470]));
        assert!(!is_uniform(&[]));
    }

    #[test]
    fn few_draws_prove_nothing() {
        assert!(!is_uniform(&[4, 4]));
    }
}
