//! Waiting for a condition instead of sleeping.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Time between two looks at a condition that nothing announces.
const INTERVAL: Duration = Duration::from_millis(2);

/// Repeats `condition` until it returns a value, at most for `timeout`.
pub fn until<T>(timeout: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("timed out after {timeout:?} waiting for {what}");
        }
        thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_first_value() {
        let mut asked = 0;
        let value = until(Duration::from_secs(5), "the third answer", || {
            asked += 1;
            (asked == 3).then_some(asked)
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn names_what_never_came() {
        let error = until(Duration::ZERO, "a green moon", || None::<()>).unwrap_err();
        assert!(error.to_string().contains("a green moon"), "{error}");
    }
}
