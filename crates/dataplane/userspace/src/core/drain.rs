//! Waiting for connections that outlive their dataplane.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Counts threads that carry connections of dataplanes that are gone. All clones count the same.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<(Mutex<usize>, Condvar)>);

impl Drain {
    /// Blocks until there are none. Each ends after its drain time at the latest.
    pub fn wait(&self) {
        let (threads, ended) = &*self.0;
        // Nothing is half done under this lock.
        let mut threads = threads.lock().unwrap_or_else(PoisonError::into_inner);
        while *threads > 0 {
            threads = ended.wait(threads).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn begin(&self, more: usize) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += more;
    }

    pub(crate) fn end(&self) {
        let (threads, ended) = &*self.0;
        let mut threads = threads.lock().unwrap_or_else(PoisonError::into_inner);
        *threads = threads.saturating_sub(1);
        ended.notify_all();
    }
}
