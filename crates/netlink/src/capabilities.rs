//! Capabilities of this process.
#![allow(unsafe_code, reason = "capget(2) and capset(2) have no safe wrapper")]

use std::io;

/// Version 3: two words of 32 capabilities.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Word {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Makes every permitted capability effective. A container's user that is not root gets capabilities from the program's file; if the file
/// had them as effective, the program could not even start where the container does not allow them.
///
/// Call it before the first thread starts: capabilities belong to threads.
pub fn use_permitted_capabilities() -> io::Result<()> {
    let found = current()?;
    let wanted = found.map(|word| Word { effective: word.permitted, ..word });
    if wanted == found {
        return Ok(());
    }
    let header = Header { version: VERSION, pid: 0 };
    // SAFETY: both pointers are valid for the call, which reads a header and, for version 3, two words.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, wanted.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn current() -> io::Result<[Word; 2]> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut words = [Word::default(); 2];
    // SAFETY: both pointers are valid for the call, which writes the header's version and, for version 3, two words.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) };
    if result == 0 { Ok(words) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_permitted_becomes_effective() {
        use_permitted_capabilities().expect("nothing is asked for that is not permitted");
        for word in current().expect("readable") {
            assert_eq!(word.effective, word.permitted);
        }
    }
}
