//! Waits for new values of the engine's outputs, with retries.

use std::time::Duration;

use tokio::sync::watch;

/// How often a failed attempt is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// Waits until the engine publishes another value or, if the last attempt `failed`, until it is time to retry. `false` if the engine is gone.
pub(crate) async fn is_due<T>(wanted: &mut watch::Receiver<T>, failed: bool) -> bool {
    tokio::select! {
        changed = wanted.changed() => changed.is_ok(),
        () = tokio::time::sleep(RETRY), if failed => true,
    }
}
