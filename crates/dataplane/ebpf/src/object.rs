//! Loads the programs and their maps.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::programs::{Program, ProgramError};
use aya::{EbpfLoader, include_bytes_aligned};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use tracing::debug;

use crate::error::Error;
use crate::features::Features;
use crate::options::Options;
use crate::service_table::ServiceTable;
use crate::sys::load_despite_signals;

/// Compiled from `programs/` by `scripts/build-ebpf`.
static OBJECT: &[u8] = include_bytes_aligned!("../programs/socket.bpf.o");

/// Where a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hook {
    /// The name of the program, and of its pinned link.
    pub(crate) name: &'static str,
    /// The kernel's number of the hook.
    pub(crate) attach_type: u32,
}

/// Those that restore addresses come first: whatever is translated can then be restored.
pub(crate) const HOOKS: [Hook; 9] = [
    Hook { name: "sock_release", attach_type: 34 },
    Hook { name: "getpeername4", attach_type: 29 },
    Hook { name: "getpeername6", attach_type: 30 },
    Hook { name: "recvmsg4", attach_type: 19 },
    Hook { name: "recvmsg6", attach_type: 20 },
    Hook { name: "sendmsg4", attach_type: 14 },
    Hook { name: "sendmsg6", attach_type: 15 },
    Hook { name: "connect4", attach_type: 10 },
    Hook { name: "connect6", attach_type: 11 },
];

/// The maps of Services and their endpoints, which are pinned.
pub(crate) const TABLES: [&str; 7] =
    ["services", "pools", "slots", "backends", "affinities", "counters", "namespaces"];

/// The maps that hold what is remembered for sockets. They are pinned, too, so that it survives a restart.
pub(crate) const SOCKET_MAPS: [&str; 4] =
    ["connections", "connected_sockets", "datagram_peers", "datagram_sockets"];

/// A program in the kernel that is not attached yet.
#[derive(Debug)]
pub(crate) struct LoadedProgram {
    pub(crate) hook: Hook,
    pub(crate) fd: OwnedFd,
}

/// Opens the maps that are pinned, or creates and pins them; then loads the programs over them.
pub(crate) fn load(
    options: &Options,
    processors: u32,
    features: Features,
) -> Result<Vec<LoadedProgram>, Error> {
    load_object(OBJECT, options, processors, features)
}

fn load_object(
    bytes: &[u8],
    options: &Options,
    processors: u32,
    features: Features,
) -> Result<Vec<LoadedProgram>, Error> {
    // Before 5.11, maps count against this limit.
    if let Err(error) = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
        debug!(err = %error, "Cannot raise the limit of locked memory");
    }
    let can_set_error = u32::from(features.can_set_error);
    let node_namespace = features.node_namespace.unwrap_or(0);
    let listed_namespaces_only = u32::from(options.namespaces.is_some());
    let sizes = options.sizes;
    let counters_per_processor = sizes.counters();
    let all = TABLES.into_iter().chain(SOCKET_MAPS);
    let paths: Vec<_> = all.map(|map| (map, options.map_path(map))).collect();
    let mut loader = EbpfLoader::new();
    loader
        .btf(None)
        .override_global("can_set_error", &can_set_error, true)
        .override_global("node_namespace", &node_namespace, true)
        .override_global("listed_namespaces_only", &listed_namespaces_only, true)
        .override_global("counters_per_processor", &counters_per_processor, true)
        .map_max_entries("services", ServiceTable::cells(sizes.frontends))
        .map_max_entries("pools", ServiceTable::pools(sizes.frontends))
        .map_max_entries("slots", sizes.slots())
        .map_max_entries("backends", sizes.backends())
        .map_max_entries("counters", sizes.counters() * processors);
    for (map, path) in &paths {
        loader.map_pin_path(map, path.as_path());
    }
    let mut object = loader.load(bytes).map_err(|source| Error::Maps(Box::new(source)))?;
    let mut programs = Vec::new();
    for hook in HOOKS {
        let program = object.program_mut(hook.name).ok_or(Error::NoProgram(hook.name))?;
        let refused = |source| Error::program(hook.name, source);
        let load = || match program {
            Program::CgroupSockAddr(program) => program.load(),
            Program::CgroupSock(program) => program.load(),
            _ => Err(ProgramError::UnexpectedProgramType),
        };
        load_despite_signals(load, answer).map_err(refused)?;
        let fd = program.fd().map_err(refused)?.as_fd().try_clone_to_owned();
        programs.push(LoadedProgram { hook, fd: fd.map_err(|error| refused(error.into()))? });
    }
    Ok(programs)
}

/// What the kernel said to a program.
fn answer(refusal: &ProgramError) -> Option<&io::Error> {
    match refusal {
        ProgramError::LoadError { io_error, .. } => Some(io_error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup;
    use crate::options::Sizes;
    use portwarden_model::Family;
    use portwarden_testkit::bpf;

    /// Where a section of an ELF file (64 bits, little-endian) starts.
    fn section(bytes: &[u8], wanted: &str) -> usize {
        let number = |at: usize, size: usize| {
            bytes[at..at + size].iter().rev().fold(0_usize, |number, byte| number << 8 | usize::from(*byte))
        };
        let header = |index: usize| number(0x28, 8) + index * number(0x3a, 2);
        let names = number(header(number(0x3e, 2)) + 0x18, 8);
        let name = |index: usize| &bytes[names + number(header(index), 4)..];
        let found = (0..number(0x3c, 2))
            .find(|index| name(*index).starts_with(wanted.as_bytes()) && name(*index)[wanted.len()] == 0);
        number(header(found.expect("the section exists")) + 0x18, 8)
    }

    #[test]
    fn a_program_that_the_verifier_refuses_is_named_with_its_reason() {
        let mut bytes = OBJECT.to_vec();
        // r0 = *(u64 *)(r9 + 0), while r9 holds nothing yet.
        let start = section(&bytes, "cgroup/connect4");
        bytes[start..start + 8].copy_from_slice(&[0x79, 0x90, 0, 0, 0, 0, 0, 0]);
        let directory = bpf::pin_directory("refused").unwrap();
        let sizes = Sizes { endpoints: 16, frontends: 16, counted_ports: 1 };
        let options = Options { pin_directory: directory.clone(), sizes, ..Options::new(&Family::BOTH) };
        for directory in [options.table_directory(), options.socket_directory()] {
            std::fs::create_dir_all(&directory).unwrap();
        }
        let features = Features { can_set_error: false, node_namespace: None };
        let error = load_object(&bytes, &options, 1, features).unwrap_err().to_string();
        assert!(cleanup(&directory).unwrap());
        assert!(error.contains("program connect4 (the verifier's last lines: "), "{error}");
        assert!(error.contains("R9 !read_ok"), "{error}");
        assert!(error.contains("use another mode"), "{error}");
        assert!(error.len() < 1500, "{error}");
        assert!(!cleanup(&directory).unwrap());
    }
}
