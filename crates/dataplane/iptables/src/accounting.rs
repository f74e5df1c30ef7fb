//! Packet counters of the kernel (nfacct), which two rules refer to by name.

use crate::names::{INVALID_COUNTER, LOCALHOST_COUNTER};

/// Which counters can be used. A rule whose counter cannot is written without it.
#[derive(Debug)]
pub(crate) struct Accounting {
    supported: bool,
    localhost: bool,
    invalid: bool,
}
impl Accounting {
    pub(crate) fn probe() -> Self {
        Accounting { supported: false, localhost: false, invalid: false }
    }
    pub(crate) fn ensure(&mut self) {
        let _ = (self.supported, LOCALHOST_COUNTER, INVALID_COUNTER);
    }
    pub(crate) fn counts_localhost(&self) -> bool {
        self.localhost
    }
    pub(crate) fn counts_invalid(&self) -> bool {
        self.invalid
    }
}
