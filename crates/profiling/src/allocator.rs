//! The system's allocator, with a look at some of the allocations.
#![expect(
    unsafe_code,
    reason = "a global allocator is an unsafe trait, every call is handed on unchanged; the system's allocator is a C library"
)]

use std::alloc::{GlobalAlloc, Layout, System};

use crate::heap;

/// The system's allocator. Heap profiles know only of programs that have it as their global allocator.
#[derive(Debug, Clone, Copy, Default)]
pub struct SamplingAllocator;

// SAFETY: every request goes to `System` as it came, and its answer is returned as it is. What `heap` does before or after never touches the
// memory itself: it takes addresses as numbers.
unsafe impl GlobalAlloc for SamplingAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that `System` asks for.
        let memory = unsafe { System.alloc(layout) };
        heap::allocated(memory.addr(), layout.size(), walk);
        memory
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let memory = unsafe { System.alloc_zeroed(layout) };
        heap::allocated(memory.addr(), layout.size(), walk);
        memory
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // First: once it is free, another thread may get the same address.
        heap::freed(memory.addr());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        heap::freed(memory.addr());
        // SAFETY: as above.
        let memory = unsafe { System.realloc(memory, layout, size) };
        heap::allocated(memory.addr(), size, walk);
        memory
    }
}

/// Walks this thread's stack.
fn walk(found: &mut dyn FnMut(usize) -> bool) {
    // SAFETY: synchronisation matters only where the debugging library of Windows is used. Without it, a thread that looks up symbols for a
    // profile cannot hold up one that allocates.
    unsafe { backtrace::trace_unsynchronized(|frame| found(frame.ip().addr())) };
}

/// Gives pages that hold nothing back to the system. The allocator keeps them after a burst of work, for good if small things lie
/// between them.
pub fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has all threads allocate from one heap. By default each has its own, and what one thread makes and another drops leaves holes in both.
///
/// To be called before the first thread is started.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number that the allocator reads when a thread first allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
