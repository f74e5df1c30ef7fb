//! Portwarden: a drop-in replacement for kube-proxy.

use std::process::ExitCode;

use portwarden_netlink::memory::share_one_heap;

/// The system's allocator, with sampling of allocations while profiling is on.
#[cfg(feature = "profiling")]
#[global_allocator]
static ALLOCATOR: portwarden_profiling::SamplingAllocator = portwarden_profiling::SamplingAllocator;

fn main() -> ExitCode {
    share_one_heap();
    let mut arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let called_as = arguments.next().unwrap_or_default();
    portwarden::command::main(&called_as, &arguments.collect::<Vec<_>>())
}
