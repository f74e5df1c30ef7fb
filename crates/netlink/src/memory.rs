//! The heap of the C library: shared by all threads, and returned to the kernel when it is free.
#![allow(unsafe_code, reason = "malloc_trim(3) and mallopt(3) have no safe wrapper")]

/// Returns free pages to the kernel. The allocator keeps them after a burst of work, for ever if small allocations lie between them.
pub fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes all threads allocate from one heap. By default each thread has its own, and memory that one thread allocates and another frees
/// leaves holes in both.
///
/// Call it before the first thread starts.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) sets a number that the allocator reads when a thread first allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
