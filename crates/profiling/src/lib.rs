//! Profiles of the running process, in the format that `go tool pprof` and every tool built on it reads.
//!
//! | file | what |
//! |---|---|
//! | `allocator.rs` | the global allocator: the system's, which samples allocations; the only `unsafe` code |
//! | `heap.rs` | which allocations are looked at, and which of them still live |
//! | `cpu.rs` | samples of all threads, taken by the kernel |
//! | `modules.rs` | the files that code was loaded from, and how to walk their stacks |
//! | `symbols.rs` | from addresses to functions and lines |
//! | `profile.rs`, `proto.rs` | the format |
//!
//! Nothing here costs anything until it is asked for: no handler is installed, no thread runs, and an allocation costs one load of a
//! flag more than before.

mod allocator;
mod cpu;
mod heap;
mod modules;
mod profile;
pub mod proto;
mod symbols;

pub use allocator::SamplingAllocator;
pub use cpu::{Cancel, CpuError, cpu};
pub use heap::{HeapView, heap, sample_heap};
pub use symbols::functions_at;
