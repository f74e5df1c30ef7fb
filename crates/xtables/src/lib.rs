//! The iptables programs as a library, for every mode that writes iptables rules.
//!
//! [`Programs`] runs `iptables`, `iptables-save` and `iptables-restore` of one family and variant. A [`Transaction`] is what
//! `iptables-restore` reads, as a value; a restore that is refused names the lines ([`RestoreError`]). [`SavedTable`] is what
//! `iptables-save` printed, and can be compared with rules that are about to be written. [`ChangeNotices`] reports what other processes
//! change, where the kernel sends notifications (the nft variant).
//!
//! All calls block until the program has ended; a program that hangs is killed.

mod change_notices;
mod children;
mod error;
mod process;
mod programs;
mod restore;
mod save;
mod table;

pub use change_notices::{Change, ChangeNotices};
pub use error::Error;
pub use programs::{Presence, Programs, Variant};
pub use restore::{Culprit, RejectedLine, RestoreError, Section, Transaction, count_lines};
pub use save::{Fingerprint, PrintedForm, SavedTable, SavedTables};
pub use table::Table;
