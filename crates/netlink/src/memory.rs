//! Memory that the process does not need: the heap of the C library, shared by all threads and returned to the kernel when it is free, and
//! code that ran once.
#![allow(unsafe_code, reason = "malloc_trim(3), mallopt(3) and madvise(2) have no safe wrapper")]

use std::ops::Range;

/// Buffers of at least so many bytes are not part of the heap: the default, which setting it makes permanent.
#[cfg(target_env = "gnu")]
const LARGE_BUFFER: libc::c_int = 128 * 1024;

/// Returns free pages to the kernel. The allocator keeps them after a burst of work, for ever if small allocations lie between them.
pub fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Takes the pages of the program's code out of the process. Much of it runs once, at the start; what runs again comes back from the page
/// cache, 64 KiB at a time, in microseconds. The rest no longer counts as in use, and the kernel can reclaim it.
pub fn return_code_pages() {
    let here = return_code_pages as *const () as usize;
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    let Some(code) = unchanged_code(&smaps, here) else { return };
    // SAFETY: the range is one mapping of the program's file, which the kernel reported just now and which lasts as long as the process. It is
    // private, not writable, and has no page that differs from the file, so a page that is needed again is read from there as it was. The
    // kernel lets nothing write to the file of a running program.
    unsafe {
        libc::madvise(code.start as *mut libc::c_void, code.len(), libc::MADV_DONTNEED);
    }
}

/// The mapping of code with this address, by `/proc/PID/smaps`; `None` if a page of it was changed, as a debugger or a uprobe does.
fn unchanged_code(smaps: &str, address: usize) -> Option<Range<usize>> {
    let mut found = None;
    for line in smaps.lines() {
        if let Some(range) = mapping(line) {
            let is_code = line.split_whitespace().nth(1) == Some("r-xp");
            found = (is_code && range.contains(&address)).then_some(range);
        } else if let (Some(range), Some(size)) = (&found, line.strip_prefix("Anonymous:")) {
            return (size.trim() == "0 kB").then(|| range.clone());
        }
    }
    None
}

/// The range of addresses of a mapping, if this is the first line of one.
fn mapping(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

/// Makes all threads allocate from one heap, and large buffers outside of it. By default each thread has a heap of its own, and memory that one
/// thread allocates and another frees leaves holes in both; and when the first large buffer is freed, the allocator puts the next ones into the
/// heap, where it clears their pages even if nothing ever uses them, and where they leave holes.
///
/// Call it before the first thread starts.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) sets numbers that the allocator reads when it is asked for memory; there is only one thread yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BUFFER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00400000-00500000 r--p 00000000 08:01 42                 /usr/bin/portwarden
Size:               1024 kB
Anonymous:             0 kB
00500000-00900000 r-xp 00100000 08:01 42                 /usr/bin/portwarden
Size:               4096 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00900000-00a00000 rw-p 00500000 08:01 42                 /usr/bin/portwarden
Anonymous:          1024 kB
";

    #[test]
    fn only_code_that_is_as_in_the_file_is_returned() {
        assert_eq!(unchanged_code(SMAPS, 0x50_1234), Some(0x50_0000..0x90_0000));
        assert_eq!(unchanged_code(SMAPS, 0x40_1234), None, "constants");
        assert_eq!(unchanged_code(SMAPS, 0x90_1234), None, "variables");
        assert_eq!(unchanged_code(SMAPS, 0xb0_1234), None, "nothing");
        let changed =
            SMAPS.replacen("Anonymous:             0 kB\nVmFlags", "Anonymous:             4 kB\nVmFlags", 1);
        assert_eq!(unchanged_code(&changed, 0x50_1234), None, "a breakpoint");
    }

    #[test]
    fn code_runs_after_its_pages_were_returned() {
        let here = return_code_pages as *const () as usize;
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
        assert!(unchanged_code(&smaps, here).is_some_and(|code| code.contains(&here)));
        return_code_pages();
        return_free_memory();
    }
}
