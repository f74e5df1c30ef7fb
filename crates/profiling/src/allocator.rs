//! The system's allocator, with samples of allocations for heap profiles.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait; every call is handed on unchanged")]

use std::alloc::{GlobalAlloc, Layout, System};

use crate::heap;

/// The system's allocator. A heap profile needs it as the global allocator of the program.
#[derive(Debug, Clone, Copy, Default)]
pub struct SamplingAllocator;

// SAFETY: every call goes to `System` unchanged, and its result is returned unchanged. What `heap` does before or after never touches the
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
