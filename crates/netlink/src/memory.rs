//! The heap of the C library: shared by all threads, and returned to the kernel when it is free.
#![allow(unsafe_code, reason = "malloc_trim(3) and mallopt(3) have no safe wrapper")]

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
