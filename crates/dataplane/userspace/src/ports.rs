//! The numbers of our sockets: chosen by the kernel, or from `--proxy-port-range`, and kept over a restart.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::RangeInclusive;

use portwarden_model::{Family, Protocol};

use crate::core::Sharing;

/// Numbers that are in use, or that rules of an earlier process lead to.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    range: Option<RangeInclusive<u16>>,
    taken: BTreeSet<(Family, Protocol, u16)>,
}

impl Ports {
    /// `None` means that the kernel chooses.
    pub(crate) fn new(range: Option<RangeInclusive<u16>>) -> Self {
        Ports { range, taken: BTreeSet::new() }
    }

    /// Keeps a number from being chosen for anything else.
    pub(crate) fn reserve(&mut self, family: Family, protocol: Protocol, port: u16) {
        self.taken.insert((family, protocol, port));
    }

    /// Frees a number.
    pub(crate) fn release(&mut self, family: Family, protocol: Protocol, port: u16) {
        self.taken.remove(&(family, protocol, port));
    }

    /// Opens a socket on `kept` if that is possible, else on a free number: a random one of the range and upwards from there. `open` returns
    /// the socket with its number.
    pub(crate) fn open<S>(
        &mut self,
        (family, protocol): (Family, Protocol),
        kept: Option<u16>,
        mut open: impl FnMut(u16, Sharing) -> io::Result<(S, u16)>,
    ) -> io::Result<(S, u16)> {
        let allowed = |port: &u16| self.range.as_ref().is_none_or(|range| range.contains(port));
        let kept = kept.filter(allowed).map(|port| open(port, Sharing::Existing));
        let (socket, port) = match kept {
            Some(Ok(opened)) => opened,
            _ => self.open_new((family, protocol), open)?,
        };
        self.reserve(family, protocol, port);
        Ok((socket, port))
    }

    fn open_new<S>(
        &self,
        (family, protocol): (Family, Protocol),
        mut open: impl FnMut(u16, Sharing) -> io::Result<(S, u16)>,
    ) -> io::Result<(S, u16)> {
        let Some(range) = &self.range else { return open(0, Sharing::New) };
        let count = u64::from(range.end() - range.start()) + 1;
        let first = RandomState::new().hash_one(()) % count;
        for offset in (first..count).chain(0..first) {
            let port = range.start().saturating_add(u16::try_from(offset).unwrap_or(u16::MAX));
            if self.taken.contains(&(family, protocol, port)) {
                continue;
            }
            match open(port, Sharing::New) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                other => return other,
            }
        }
        let (start, end) = (range.start(), range.end());
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("no port of --proxy-port-range {start}-{end} is free; widen the range"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: (Family, Protocol) = (Family::V4, Protocol::Tcp);

    fn free(port: u16, _: Sharing) -> io::Result<((), u16)> {
        Ok(((), port))
    }

    fn open(ports: &mut Ports, kept: Option<u16>) -> Option<u16> {
        ports.open(TCP, kept, free).ok().map(|(_, port)| port)
    }

    #[test]
    fn a_range_is_used_up_and_refilled() {
        let mut ports = Ports::new(Some(40_000..=40_003));
        let chosen: BTreeSet<_> = (0..4).filter_map(|_| open(&mut ports, None)).collect();
        assert_eq!(chosen, [40_000, 40_001, 40_002, 40_003].into());
        let error = ports.open(TCP, None, free).expect_err("all are taken");
        assert!(error.to_string().contains("--proxy-port-range 40000-40003"), "{error}");
        assert!(ports.open((Family::V6, Protocol::Tcp), None, free).is_ok(), "another family");
        ports.release(Family::V4, Protocol::Tcp, 40_002);
        assert_eq!(open(&mut ports, None), Some(40_002));
    }

    #[test]
    fn a_number_that_is_kept_comes_first_if_the_range_has_it() {
        let mut ports = Ports::new(Some(40_000..=40_001));
        ports.reserve(Family::V4, Protocol::Tcp, 40_001);
        assert_eq!(open(&mut ports, Some(40_001)), Some(40_001), "reserved for this");
        assert_eq!(open(&mut ports, Some(50_000)), Some(40_000), "outside of the range");
        let mut any = Ports::new(None);
        assert_eq!(open(&mut any, Some(50_000)), Some(50_000));
        assert_eq!(open(&mut any, None), Some(0), "the kernel chooses");
    }

    #[test]
    fn ports_of_other_programs_are_skipped() {
        let mut ports = Ports::new(Some(40_000..=40_001));
        let busy = |port, _| match port {
            40_000 => Err(io::ErrorKind::AddrInUse.into()),
            port => Ok(((), port)),
        };
        assert_eq!(ports.open(TCP, Some(40_000), busy).ok().map(|(_, port)| port), Some(40_001));
    }
}
