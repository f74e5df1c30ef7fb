//! The programs that one [`Programs`](crate::Programs) value and its clones have started.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How many ended programs are remembered until [`Children::forget_ended`]: more than one sync starts.
const REMEMBERED: usize = 1024;

/// Process numbers of running programs, and of those that ended since notifications were last read.
#[derive(Debug, Default)]
pub(crate) struct Children(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: BTreeSet<u32>,
    ended: VecDeque<u32>,
    stopped: bool,
}

impl Children {
    /// Adds a program that was just started. Kills it if [`kill_all`](Self::kill_all) came first.
    pub(crate) fn add(&self, child: &Child) {
        let mut state = self.state();
        state.running.insert(child.id());
        if state.stopped {
            kill_group(child.id());
        }
    }

    /// Whether the program has ended, and how. Its number is free for other processes only after this has returned it, so that
    /// nothing else is ever killed.
    pub(crate) fn try_wait(&self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let mut state = self.state();
        let status = child.try_wait()?;
        if status.is_some() && state.running.remove(&child.id()) {
            if state.ended.len() == REMEMBERED {
                state.ended.pop_front();
            }
            state.ended.push_back(child.id());
        }
        Ok(status)
    }

    /// Kills a program and what it started, unless it has ended.
    pub(crate) fn kill(&self, id: u32) {
        if self.state().running.contains(&id) {
            kill_group(id);
        }
    }

    /// Kills all of them, and every one that is started later.
    pub(crate) fn kill_all(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.running.iter().for_each(|id| kill_group(*id));
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Whether this process number belongs, or belonged until recently, to one of the programs.
    pub(crate) fn contains(&self, id: u32) -> bool {
        let state = self.state();
        state.running.contains(&id) || state.ended.contains(&id)
    }

    /// The programs that have ended by now. What they changed has been reported by the kernel: a commit sends its notifications
    /// before it returns.
    pub(crate) fn ended(&self) -> Vec<u32> {
        self.state().ended.iter().copied().collect()
    }

    /// Forgets these, so that another process that gets one of the numbers is not taken for ours.
    pub(crate) fn forget_ended(&self, ids: &[u32]) {
        self.state().ended.retain(|id| !ids.contains(id));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The programs lead process groups of their own: the legacy ones start modprobe. One that ended meanwhile needs no signal.
fn kill_group(id: u32) {
    if let Ok(group) = i32::try_from(id) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}
