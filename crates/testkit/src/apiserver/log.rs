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
    /// The path.
    pub path: String,
    /// The query, as it was written.
    pub query: String,
    /// Whether it is a watch.
    pub watch: bool,
    /// What went wrong with it.
    pub fault: Option<Fault>,
}

/// The most requests that came within any window of this length.
pub fn busiest(requests: &[Seen], window: Duration) -> usize {
    let times: Vec<Duration> = requests.iter().map(|request| request.at).collect();
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
        let seen = |seconds| Seen {
            at: Duration::from_secs(seconds),
            method: "GET".into(),
            path: "/".into(),
            query: String::new(),
            watch: false,
            fault: None,
        };
        let requests: Vec<Seen> = [0, 50, 100, 101, 102, 159, 160, 400].into_iter().map(seen).collect();
        assert_eq!(busiest(&requests, Duration::from_secs(60)), 4);
        assert_eq!(busiest(&[], Duration::from_secs(60)), 0);
    }
}
