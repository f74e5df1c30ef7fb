//! Portwarden: a drop-in replacement for kube-proxy.

use std::process::ExitCode;

use portwarden_netlink::capabilities::use_permitted_capabilities;
use portwarden_netlink::memory::share_one_heap;

/// The system's allocator, with sampling of allocations while profiling is on.
#[cfg(feature = "profiling")]
#[global_allocator]
static ALLOCATOR: portwarden_profiling::SamplingAllocator = portwarden_profiling::SamplingAllocator;

fn main() -> ExitCode {
    share_one_heap();
    if let Err(error) = use_permitted_capabilities() {
        eprintln!("Warning: cannot use the capabilities that this process has: {error}");
    }
    let mut arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let called_as = arguments.next().unwrap_or_default();
    portwarden::command::main(&called_as, &arguments.collect::<Vec<_>>())
}
