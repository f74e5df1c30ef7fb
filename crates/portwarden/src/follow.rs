//! Following what the engine wants.

use std::time::Duration;

use tokio::sync::watch;

/// What could not be had is tried again this often.
const RETRY: Duration = Duration::from_secs(5);

/// Waits until the engine wants something else, or, if something `failed`, until it is time to try again. `false` if the engine is gone.
pub(crate) async fn is_due<T>(wanted: &mut watch::Receiver<T>, failed: bool) -> bool {
    tokio::select! {
        changed = wanted.changed() => changed.is_ok(),
        () = tokio::time::sleep(RETRY), if failed => true,
    }
}
