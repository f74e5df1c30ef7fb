//! DNS look-ups of the API server, with their duration for metrics.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper_util::client::legacy::connect::dns::{GaiAddrs, GaiResolver, Name};
use tower::Service;

/// Look-ups with their duration, until [`Resolutions::take`].
#[derive(Debug, Clone, Default)]
pub(super) struct Resolutions(Arc<Mutex<Vec<(String, Duration)>>>);

impl Resolutions {
    /// The look-ups since the last call.
    pub(super) fn take(&self) -> Vec<(String, Duration)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, name: String, took: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, took));
    }
}

/// The system resolver with a clock.
#[derive(Debug, Clone)]
pub(super) struct TimedResolver {
    inner: GaiResolver,
    resolutions: Resolutions,
}

impl TimedResolver {
    pub(super) fn new(resolutions: Resolutions) -> Self {
        TimedResolver { inner: GaiResolver::new(), resolutions }
    }
}

impl Service<Name> for TimedResolver {
    type Response = GaiAddrs;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<GaiAddrs, std::io::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (text, resolutions) = (name.as_str().to_owned(), self.resolutions.clone());
        let (start, looking) = (Instant::now(), self.inner.call(name));
        Box::pin(async move {
            let found = looking.await;
            resolutions.add(text, start.elapsed());
            found
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_look_up_is_timed_once() {
        let resolutions = Resolutions::default();
        let mut resolver = TimedResolver::new(resolutions.clone());
        let found =
            resolver.call("localhost".parse().expect("a name")).await.expect("it is in every hosts file");
        assert!(found.count() > 0);
        assert!(matches!(resolutions.take().as_slice(), [(name, _)] if name == "localhost"));
        assert!(resolutions.take().is_empty());
    }
}
