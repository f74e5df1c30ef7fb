//! The programs that one [`Programs`](crate::Programs) value and its clones have started.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How many ended programs are remembered until [`Children::forget_ended`]: more than one sync starts.
const REMEMBERED: usize = 1024;

/// Process numbers of running programs, and of those that ended since notifications were last read.
#[derive(Debug, Default)]
pub(crate) struct Children(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// With their command lines.
    running: BTreeMap<Pid, String>,
    ended: VecDeque<Pid>,
    stopped: bool,
}

impl Children {
    /// Starts a program and adds it. Kills it at once if [`kill_all`](Self::kill_all) came first.
    pub(crate) fn start(&self, command: &str, start: impl FnOnce() -> io::Result<Pid>) -> io::Result<Pid> {
        let child = start()?;
        let mut state = self.state();
        state.running.insert(child, command.to_owned());
        if state.stopped {
            kill_group(child);
        }
        Ok(child)
    }

    /// How the program ended, if it has. Until this has returned that, its number is not given to another process, so that
    /// nothing else is ever killed.
    pub(crate) fn try_wait(&self, child: Pid) -> io::Result<Option<WaitStatus>> {
        let mut state = self.state();
        let status = loop {
            match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return Ok(None),
                Ok(status) => break status,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if state.running.remove(&child).is_some() {
            if state.ended.len() == REMEMBERED {
                state.ended.pop_front();
            }
            state.ended.push_back(child);
        }
        Ok(Some(status))
    }

    /// Kills a program and what it started, unless it has ended.
    pub(crate) fn kill(&self, child: Pid) {
        if self.state().running.contains_key(&child) {
            kill_group(child);
        }
    }

    /// Kills all of them, and every one that is started later.
    pub(crate) fn kill_all(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.running.keys().for_each(|child| kill_group(*child));
    }

    pub(crate) fn running(&self) -> Vec<String> {
        self.state().running.values().cloned().collect()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Whether this process number belongs, or belonged until recently, to one of the programs.
    pub(crate) fn contains(&self, id: u32) -> bool {
        let Ok(id) = i32::try_from(id).map(Pid::from_raw) else { return false };
        let state = self.state();
        state.running.contains_key(&id) || state.ended.contains(&id)
    }

    /// The programs that have ended by now. What they changed has been reported by the kernel: a commit sends its notifications
    /// before it returns.
    pub(crate) fn ended(&self) -> Vec<Pid> {
        self.state().ended.iter().copied().collect()
    }

    /// Forgets these, so that another process that gets one of the numbers is not taken for ours.
    pub(crate) fn forget_ended(&self, ids: &[Pid]) {
        self.state().ended.retain(|id| !ids.contains(id));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The programs lead process groups of their own: the legacy ones start modprobe. One that ended meanwhile needs no signal.
fn kill_group(leader: Pid) {
    let _ = killpg(leader, Signal::SIGKILL);
}
