//! Which requests came.

use std::time::Duration;

use super::fault::Fault;

/// A request as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// When, counted from the server's start on the clock of its runtime.
    pub at: Duration,
    /// The HTTP method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query, as it was written.
    pub query: String,
    /// Whether it is a watch.
    pub watch: bool,
    /// What went wrong with it.
    pub fault: Option<Fault>,
}

/// The most of these moments, in order, that lie within any window of this length.
pub fn busiest(times: &[Duration], window: Duration) -> usize {
    let within = |(index, start): (usize, &Duration)| {
        times[index..].iter().take_while(|time| **time - *start < window).count()
    };
    times.iter().enumerate().map(within).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_window_is_found() {
        let times = [0, 50, 100, 101, 102, 159, 160, 400].map(Duration::from_secs);
        assert_eq!(busiest(&times, Duration::from_secs(60)), 4);
        assert_eq!(busiest(&[], Duration::from_secs(60)), 0);
    }
}
