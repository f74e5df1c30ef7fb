//! Portwarden: a drop-in replacement for kube-proxy.

use std::process::ExitCode;

use portwarden_profiling::{SamplingAllocator, share_one_heap};

/// The system's allocator; it looks at allocations only while profiling is switched on.
#[global_allocator]
static ALLOCATOR: SamplingAllocator = SamplingAllocator;

fn main() -> ExitCode {
    share_one_heap();
    let mut arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let called_as = arguments.next().unwrap_or_default();
    portwarden::command::main(&called_as, &arguments.collect::<Vec<_>>())
}
