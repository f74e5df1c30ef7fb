//! Calls a dataplane as the engine does: waits for its descriptors and deadlines, and repeats a sync that goes on in the background.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use portwarden_model::{Changes, Dataplane, Desired, Notification, Report, Retry, SyncError};

/// Longer than any sync in a test takes.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Syncs, and waits for the end if it goes on in the background.
pub fn sync_to_end(
    dataplane: &mut dyn Dataplane,
    desired: &Desired,
    changes: &Changes,
) -> Result<Report, SyncError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match dataplane.sync(desired, changes, Instant::now()) {
            Err(error) if error.retry == Retry::OnNotification && Instant::now() < deadline => {
                let ready = Notification::Ready { family: desired.family };
                while Instant::now() < deadline && !next_notifications(dataplane, deadline).contains(&ready) {
                }
            }
            result => return result,
        }
    }
}

/// Waits until the dataplane has something to do, at most until `until`, and returns what it reports.
pub fn next_notifications(dataplane: &mut dyn Dataplane, until: Instant) -> Vec<Notification> {
    let deadline = dataplane.next_deadline().map_or(until, |deadline| deadline.min(until));
    let left = deadline.saturating_duration_since(Instant::now());
    // Rounded up, so that the deadline has passed afterwards.
    let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    let mut watched: Vec<_> =
        dataplane.watch_fds().into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut watched, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => panic!("cannot wait for a dataplane: {error}"),
    }
    drop(watched);
    dataplane.poll(Instant::now())
}
