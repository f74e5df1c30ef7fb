//! `bpf(2)` calls that aya does not offer, and array maps as memory: the only unsafe code of this crate.
#![allow(unsafe_code, reason = "bpf(2), mmap(2) and SO_NETNS_COOKIE have no safe wrapper")]

use std::ffi::CString;
use std::io;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::layout::{BackendCell, CounterCell, PoolCell, ServiceCell, SlotCell};

/// Commands of `bpf(2)`.
mod command {
    pub(super) const MAP_CREATE: u32 = 0;
    pub(super) const MAP_LOOKUP: u32 = 1;
    pub(super) const MAP_UPDATE: u32 = 2;
    pub(super) const MAP_NEXT_KEY: u32 = 4;
    pub(super) const PROGRAM_LOAD: u32 = 5;
    pub(super) const OBJECT_PIN: u32 = 6;
    pub(super) const OBJECT_GET: u32 = 7;
    pub(super) const OBJECT_INFO: u32 = 15;
    pub(super) const LINK_CREATE: u32 = 28;
    pub(super) const LINK_UPDATE: u32 = 29;
}

/// The argument of a call: a union whose members start at given offsets. Unused bytes are zero, as the kernel demands.
struct Attribute([u64; 16]);

impl Attribute {
    fn new() -> Self {
        Attribute([0; 16])
    }

    fn u32(mut self, offset: usize, value: u32) -> Self {
        let word = &mut self.0[offset / 8];
        let shift = if offset.is_multiple_of(8) == cfg!(target_endian = "little") { 0 } else { 32 };
        *word |= u64::from(value) << shift;
        self
    }

    fn u64(mut self, offset: usize, value: u64) -> Self {
        self.0[offset / 8] = value;
        self
    }

    fn fd(self, offset: usize, fd: BorrowedFd<'_>) -> Self {
        self.u32(offset, fd.as_raw_fd().cast_unsigned())
    }

    fn pointer<T: ?Sized>(self, offset: usize, to: *const T) -> Self {
        self.u64(offset, to.cast::<u8>().addr() as u64)
    }

    /// # Safety
    /// Every address in the attribute must be valid for what the command reads and writes there.
    unsafe fn call(mut self, command: u32) -> io::Result<i64> {
        // SAFETY: the attribute lives until the call returns, and its size is given; the caller vouches for the addresses in it.
        let answer =
            unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), size_of_val(&self.0)) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
    }

    /// # Safety
    /// As for `call`; the command must return a new descriptor.
    unsafe fn call_for_descriptor(self, command: u32) -> io::Result<OwnedFd> {
        // SAFETY: the caller vouches for the addresses.
        let answer = unsafe { self.call(command) }?;
        let fd = RawFd::try_from(answer).map_err(io::Error::other)?;
        // SAFETY: the kernel has just opened this descriptor for us, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Opens a pinned object.
pub(crate) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path is a string with a final zero that outlives the call.
    unsafe { Attribute::new().pointer(0, path.as_ptr()).call_for_descriptor(command::OBJECT_GET) }
}

/// Pins an object. The path must be free, and on a BPF file system.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is a string with a final zero that outlives the call.
    unsafe { Attribute::new().pointer(0, path.as_ptr()).fd(8, object).call(command::OBJECT_PIN) }.map(drop)
}

/// A map with keys of `K` and values of `V` bytes.
#[derive(Debug)]
pub(crate) struct HashMapFd<const K: usize, const V: usize>(OwnedFd);

impl<const K: usize, const V: usize> HashMapFd<K, V> {
    /// Takes a descriptor of a map with these sizes.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        HashMapFd(fd)
    }

    pub(crate) fn insert(&self, key: &[u8; K], value: &[u8; V]) -> io::Result<()> {
        let attribute = Attribute::new().fd(0, self.0.as_fd()).pointer(8, key).pointer(16, value);
        // SAFETY: the kernel reads K and V bytes, the sizes of the map, from arrays of these lengths.
        unsafe { attribute.call(command::MAP_UPDATE) }.map(drop)
    }

    pub(crate) fn get(&self, key: &[u8; K]) -> io::Result<Option<[u8; V]>> {
        let mut value = [0; V];
        let attribute = Attribute::new().fd(0, self.0.as_fd()).pointer(8, key).pointer(16, &raw mut value);
        // SAFETY: the kernel reads K bytes and writes V bytes, the sizes of the map.
        match unsafe { attribute.call(command::MAP_LOOKUP) } {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All keys. Complete if nothing else changes the map meanwhile; otherwise some may be missing, or there several times.
    pub(crate) fn keys(&self) -> io::Result<Vec<[u8; K]>> {
        /// More than any of our maps has. The kernel starts again when the last key is gone.
        const MOST: usize = 1 << 23;
        let mut keys: Vec<[u8; K]> = Vec::new();
        loop {
            if keys.len() >= MOST {
                return Ok(keys);
            }
            let mut next = [0; K];
            let attribute = Attribute::new().fd(0, self.0.as_fd()).pointer(16, &raw mut next);
            let attribute = match keys.last() {
                Some(last) => attribute.pointer(8, last),
                None => attribute,
            };
            // SAFETY: the kernel reads and writes K bytes; a missing key means the first one.
            match unsafe { attribute.call(command::MAP_NEXT_KEY) } {
                Ok(_) => keys.push(next),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(keys),
                Err(error) => return Err(error),
            }
        }
    }
}

/// What the kernel says about a link to a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    /// Type and number of the link.
    pub(crate) identity: u64,
    /// The number of the cgroup, 0 if it is gone.
    pub(crate) cgroup: u64,
}

/// Attaches a program to a cgroup, beside those of others.
pub(crate) fn create_link(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    let attribute = Attribute::new().fd(0, program).fd(4, cgroup).u32(8, attach_type);
    // SAFETY: the attribute holds no addresses.
    unsafe { attribute.call_for_descriptor(command::LINK_CREATE) }
}

/// Replaces the program of a link. Every call of a process runs either the old or the new one.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the attribute holds no addresses.
    unsafe { Attribute::new().fd(0, link).fd(4, program).call(command::LINK_UPDATE) }.map(drop)
}

/// Describes a link to a cgroup.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    /// The start of `struct bpf_link_info`: type and id, program and padding, cgroup, attach type and padding.
    const WORDS: usize = 4;
    let mut info = [0_u64; WORDS];
    let size = u32::try_from(size_of_val(&info)).map_err(io::Error::other)?;
    let attribute = Attribute::new().fd(0, link).u32(4, size).pointer(8, info.as_mut_ptr());
    // SAFETY: the kernel writes at most the size given.
    unsafe { attribute.call(command::OBJECT_INFO) }?;
    Ok(LinkInfo { identity: info[0], cgroup: info[2] })
}

/// Whether programs at the connect hook may call a helper.
pub(crate) fn has_helper(helper: i32) -> bool {
    // r1 = -1; call helper; r0 = 1; exit
    let program = [
        instruction(0xb7, 1, 0, -1),
        instruction(0x85, 0, 0, helper),
        instruction(0xb7, 0, 0, 1),
        instruction(0x95, 0, 0, 0),
    ];
    load_connect_program(&program).is_ok()
}

/// The destination by which the program of [`load_cookie_probe`] knows a connection. The range is reserved, and no host has it.
pub(crate) const COOKIE_PROBE_ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::new(240, 80, 87, 1), 9);

/// A program for the connect hook that writes the cookie of the network namespace into the map, for connections to [`COOKIE_PROBE_ADDRESS`].
pub(crate) fn load_cookie_probe(map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const GET_NETNS_COOKIE: i32 = 122;
    const MAP_UPDATE_ELEM: i32 = 2;
    let address = u32::from_ne_bytes(COOKIE_PROBE_ADDRESS.0.octets()).cast_signed();
    let program = [
        // w2 = ctx->user_ip4; if it is another address, go to the end
        instruction(0x61, 0x12, 4, 0),
        instruction(0x56, 2, 11, address),
        // cookie = bpf_get_netns_cookie(ctx), key = 0
        instruction(0x85, 0, 0, GET_NETNS_COOKIE),
        instruction(0x7b, 0x0a, -8, 0),
        instruction(0x62, 0x0a, -12, 0),
        // bpf_map_update_elem(map, &key, &cookie, 0)
        instruction(0x18, 0x11, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0),
        instruction(0xbf, 0xa2, 0, 0),
        instruction(0x07, 2, 0, -12),
        instruction(0xbf, 0xa3, 0, 0),
        instruction(0x07, 3, 0, -8),
        instruction(0xb7, 4, 0, 0),
        instruction(0x85, 0, 0, MAP_UPDATE_ELEM),
        // return 1
        instruction(0xb7, 0, 0, 1),
        instruction(0x95, 0, 0, 0),
    ];
    load_connect_program(&program)
}

/// One instruction: the destination register is in the lower half of `registers`, the source in the upper half.
fn instruction(opcode: u8, registers: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(opcode)
        | u64::from(registers) << 8
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(immediate.cast_unsigned()) << 32
}

fn load_connect_program(program: &[u64]) -> io::Result<OwnedFd> {
    const CGROUP_SOCK_ADDR: u32 = 18;
    const INET4_CONNECT: u32 = 10;
    let count = u32::try_from(program.len()).map_err(io::Error::other)?;
    let license = c"GPL";
    let load = || {
        let attribute = Attribute::new()
            .u32(0, CGROUP_SOCK_ADDR)
            .u32(4, count)
            .pointer(8, program.as_ptr())
            .pointer(16, license.as_ptr())
            .u32(68, INET4_CONNECT);
        // SAFETY: the program has as many instructions as stated, the licence a final zero; both outlive the call.
        unsafe { attribute.call_for_descriptor(command::PROGRAM_LOAD) }
    };
    load_despite_signals(load, |error| Some(error))
}

/// Loads a program. The kernel stops verifying it when a signal arrives for the calling thread, and wants to be asked again (`EAGAIN`).
pub(crate) fn load_despite_signals<T, E>(
    mut load: impl FnMut() -> Result<T, E>,
    answer: impl Fn(&E) -> Option<&io::Error>,
) -> Result<T, E> {
    /// More signals than that do not arrive by chance.
    const ATTEMPTS: usize = 20;
    let interrupted = |result: &Result<T, E>| {
        let error = result.as_ref().err().and_then(&answer);
        error.is_some_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    };
    let mut result = load();
    for _ in 1..ATTEMPTS {
        if !interrupted(&result) {
            break;
        }
        result = load();
    }
    result
}

/// An array of one value.
pub(crate) fn create_array(value_size: u32) -> io::Result<OwnedFd> {
    const ARRAY: u32 = 2;
    let attribute = Attribute::new().u32(0, ARRAY).u32(4, 4).u32(8, value_size).u32(12, 1);
    // SAFETY: the attribute holds no addresses.
    unsafe { attribute.call_for_descriptor(command::MAP_CREATE) }
}

/// The cookie of the network namespace in which a socket was opened. Kernels from 5.14 on have it.
pub(crate) fn network_namespace_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0_u64;
    let mut size = libc::socklen_t::try_from(size_of::<u64>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `size` bytes, the size of the cookie, and the size itself.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut size,
        )
    };
    if answer == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// A type that array maps hold: valid for any bytes, and changed only by atomic operations.
///
/// # Safety
/// Every bit pattern must be valid, and every byte must be part of an atomic type or padding that is never read.
pub(crate) unsafe trait Cell {}

// SAFETY: atomic integers without gaps.
unsafe impl Cell for ServiceCell {}
// SAFETY: atomic integers without gaps.
unsafe impl Cell for PoolCell {}
// SAFETY: atomic integers without gaps.
unsafe impl Cell for CounterCell {}
// SAFETY: an atomic integer and padding.
unsafe impl Cell for SlotCell {}
// SAFETY: atomic integers without gaps.
unsafe impl Cell for BackendCell {}

/// An array map as memory, shared with the programs that run in the kernel.
#[derive(Debug)]
pub(crate) struct Mapping<T: Cell> {
    start: NonNull<T>,
    length: usize,
    bytes: usize,
    holds: PhantomData<T>,
}

// SAFETY: the memory belongs to the process, not to a thread, and is changed only by atomic operations.
unsafe impl<T: Cell> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Cell> Sync for Mapping<T> {}

impl<T: Cell> Mapping<T> {
    /// Maps an array with `length` values, whose size rounded up to 8 is that of `T`.
    pub(crate) fn of_map(map: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        Self::map(map.as_raw_fd(), libc::MAP_SHARED, length)
    }

    /// Memory that no program reads, for tests.
    #[cfg(test)]
    pub(crate) fn anonymous(length: usize) -> io::Result<Self> {
        Self::map(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, length)
    }

    fn map(fd: RawFd, flags: libc::c_int, length: usize) -> io::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8) };
        let bytes = (length * size_of::<T>()).next_multiple_of(page_size());
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory. The kernel refuses a length beyond the map's.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, length, bytes, holds: PhantomData })
    }
}

impl<T: Cell> Deref for Mapping<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping has room for `length` values, lives as long as `self`, is aligned to a page, and `T` is valid for any bytes.
        // The kernel's programs change it at the same time, by the atomic operations that `Cell` demands.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl<T: Cell> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`, with its length; no reference to it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn page_size() -> usize {
    // SAFETY: sysconf(3) has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Orders what was written to maps before, so that no reader sees the later write without the earlier ones.
pub(crate) const PUBLISH: Ordering = Ordering::Release;
