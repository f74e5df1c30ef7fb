//! Starts programs that cannot outlive us: the kernel kills them when the thread that started them ends, even if that is by SIGKILL.
//!
//! The standard library offers this only through `fork`, which copies the page tables of the whole process: with 60 MB in use a start
//! took 15 ms that way, and 2 ms this way, in which the child borrows our memory until it executes the program.
#![allow(
    unsafe_code,
    reason = "clone(2) and what has to happen between it and execve(2) have no safe wrapper"
)]

use std::ffi::{CString, OsString, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// For the child's few calls before it executes the program.
const STACK_BYTES: usize = 64 * 1024;

/// Starts a program in a process group of its own. It is killed when the calling thread ends, so call
/// [`waitpid`](nix::sys::wait::waitpid) for it on the same thread. `stdio` become its standard input, output and error;
/// `environment` is added to ours.
pub fn spawn_bound(
    program: &Path,
    arguments: &[&str],
    environment: &[(OsString, OsString)],
    stdio: [BorrowedFd<'_>; 3],
) -> io::Result<Pid> {
    let path = CString::new(program.as_os_str().as_bytes())?;
    let arguments = arguments.iter().map(|argument| CString::new(*argument));
    let arguments = std::iter::once(Ok(path.clone())).chain(arguments).collect::<Result<Vec<_>, _>>()?;
    let environment = merged(environment)?;
    let argument_pointers = pointers(&arguments);
    let environment_pointers = pointers(&environment);
    let mut start = Start {
        path: path.as_ptr(),
        arguments: argument_pointers.as_ptr(),
        environment: environment_pointers.as_ptr(),
        stdio: stdio.map(|fd| fd.as_raw_fd()),
        parent: nix::unistd::getpid().as_raw(),
        errno: 0,
    };
    let child = Pid::from_raw(clone_and_wait(&mut start)?);
    if start.errno == 0 {
        return Ok(child);
    }
    // It has ended already. There is nothing to learn from its status.
    let _ = waitpid(child, None);
    Err(io::Error::from_raw_os_error(start.errno))
}

/// Everything that the child needs, prepared before: it must not allocate.
struct Start {
    path: *const libc::c_char,
    arguments: *const *const libc::c_char,
    environment: *const *const libc::c_char,
    stdio: [RawFd; 3],
    parent: libc::pid_t,
    /// Why the program was not executed; 0 if it was.
    errno: c_int,
}

/// Our environment with these variables set.
fn merged(changes: &[(OsString, OsString)]) -> io::Result<Vec<CString>> {
    let ours = std::env::vars_os().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    let line = |(name, value): (OsString, OsString)| {
        let mut line = name.into_vec();
        line.push(b'=');
        line.extend(value.into_vec());
        CString::new(line)
    };
    Ok(ours.chain(changes.iter().cloned()).map(line).collect::<Result<_, _>>()?)
}

/// A list as `execve` takes it.
fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Returns when the child has executed the program, or has failed to and ended.
fn clone_and_wait(start: &mut Start) -> io::Result<libc::pid_t> {
    let mut stack = vec![0u8; STACK_BYTES];
    let top = stack.as_mut_ptr_range().end.map_addr(|address| address & !15);
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises `all`, and `pthread_sigmask` initialises `before`; both live on this frame.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: With CLONE_VFORK this thread sleeps until the child has executed the program or ended, so `start`, what it points to
    // and `stack` outlive the child's use of them, and nothing else touches them meanwhile. `top` is the aligned end of
    // `stack`, which grows down and is far larger than the child's frames. The child runs only `child`, which allocates nothing,
    // takes no lock and never returns. Signals are blocked, so that no handler of ours runs on the child's stack.
    let pid = unsafe {
        libc::clone(
            child,
            top.cast::<c_void>(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            ptr::from_mut(start).cast::<c_void>(),
        )
    };
    let result = Errno::result(pid);
    // SAFETY: `before` was initialised above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    Ok(result?)
}

/// The child: leaves our process group and signal handlers, asks to be killed with us, and executes the program.
extern "C" fn child(start: *mut c_void) -> c_int {
    // SAFETY: The parent passes a `Start` and sleeps, see `clone_and_wait`.
    let start = unsafe { &mut *start.cast::<Start>() };
    let Err(errno) = execute(start);
    start.errno = errno as c_int;
    // SAFETY: Ends the child without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

fn execute(start: &Start) -> Result<std::convert::Infallible, Errno> {
    // SAFETY: Each call is async-signal-safe and works on this process alone: without CLONE_SIGHAND and CLONE_FILES the child has its own
    // signal handlers and descriptors. All pointers are to memory that the parent prepared and keeps, or to this frame.
    unsafe {
        Errno::result(libc::setpgid(0, 0))?;
        Errno::result(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // The kernel sends no signal for a parent that had ended before the last call.
        if libc::getppid() != start.parent {
            return Err(Errno::ESRCH);
        }
        for (target, fd) in (0..).zip(start.stdio) {
            // To itself it would stay closed on execution.
            let answer =
                if fd == target { libc::fcntl(fd, libc::F_SETFD, 0) } else { libc::dup2(fd, target) };
            Errno::result(answer)?;
        }
        let mut default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        default.sa_sigaction = libc::SIG_DFL;
        for signal in 1..=64 {
            // Some cannot be changed, and need not be.
            libc::sigaction(signal, &raw const default, ptr::null_mut());
        }
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        libc::execve(start.path, start.arguments, start.environment);
    }
    Err(Errno::last())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]

    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use nix::fcntl::OFlag;
    use nix::sys::signal::Signal;
    use nix::sys::wait::WaitStatus;
    use nix::unistd::pipe2;

    fn shell(script: &str, stdin: BorrowedFd<'_>, stdout: BorrowedFd<'_>) -> io::Result<Pid> {
        let environment = [("GIVEN".into(), "x y".into())];
        spawn_bound(Path::new("/bin/sh"), &["-c", script], &environment, [stdin, stdout, stdout])
    }

    fn output(script: &str) -> (String, WaitStatus) {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let null = File::open("/dev/null").unwrap();
        let child = shell(script, null.as_fd(), writer.as_fd()).unwrap();
        drop(writer);
        let mut text = String::new();
        File::from(reader).read_to_string(&mut text).unwrap();
        (text, waitpid(child, None).unwrap())
    }

    #[test]
    fn a_program_gets_its_arguments_environment_and_pipes() {
        let (text, status) = output("echo \"$GIVEN\" \"$HOME\"; echo to-stderr >&2; exit 3");
        let home = std::env::var("HOME").unwrap_or_default();
        assert_eq!(text, format!("x y {home}\nto-stderr\n"));
        assert!(matches!(status, WaitStatus::Exited(_, 3)), "{status:?}");
    }

    #[test]
    fn a_program_leads_its_own_group_and_has_no_signal_blocked_or_ignored() {
        let (text, _) = output("ps -o pgid= -p $$; echo $$; grep -E '^Sig(Blk|Ign)' /proc/self/status");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[0], words[1], "{text}");
        for (name, mask) in [(words[2], words[3]), (words[4], words[5])] {
            let mask = u64::from_str_radix(mask, 16).unwrap();
            // The two signals of the C library itself cannot be changed.
            assert_eq!(mask & !(0b11 << 31), 0, "{name} in {text}");
        }
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let null = File::open("/dev/null").unwrap();
        let stdio = [null.as_fd(); 3];
        let error = spawn_bound(Path::new("/nonexistent"), &[], &[], stdio).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = spawn_bound(Path::new("/etc/passwd"), &[], &[], stdio).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_program_ends_with_the_thread_that_started_it() {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let start = move || {
            let null = File::open("/dev/null").unwrap();
            shell("exec sleep 1000", null.as_fd(), writer.as_fd()).unwrap()
        };
        let child = std::thread::spawn(start).join().unwrap();
        let status = waitpid(child, None).unwrap();
        assert!(matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)), "{status:?}");
        drop(reader);
    }
}
