//! Reduces a schedule that fails: removes ever smaller groups of steps as long as it still fails.

use crate::schedule::Step;

/// Returns a schedule from which no single step can be removed, and its violation.
pub(crate) fn shrink(
    mut steps: Vec<Step>,
    mut violation: String,
    run: impl Fn(&[Step]) -> Option<String>,
) -> (Vec<Step>, String) {
    let mut size = steps.len().div_ceil(2).max(1);
    loop {
        let mut removed = false;
        let mut start = 0;
        while start < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(start..(start + size).min(steps.len()));
            match run(&fewer) {
                Some(still) => (steps, violation, removed) = (fewer, still, true),
                None => start += size,
            }
        }
        if size == 1 && !removed {
            return (steps, violation);
        }
        size = size.div_ceil(2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_steps_that_matter_remain() {
        let pass = |millis| Step::Pass { millis };
        let fails = |steps: &[Step]| {
            let found = steps.contains(&pass(7)) && steps.contains(&pass(30));
            found.then(|| "both are there".to_owned())
        };
        let (steps, violation) = shrink((0..50).map(pass).collect(), String::new(), fails);
        assert_eq!((steps, violation.as_str()), (vec![pass(7), pass(30)], "both are there"));
    }
}
