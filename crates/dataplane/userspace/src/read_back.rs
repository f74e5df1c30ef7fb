//! Reads back what the kernel does with connections to a frontend: to which socket its rules redirect them, and whether that socket is open.
//! Which endpoint they reach is decided in the process and cannot be read.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use portwarden_model::{Family, FrontendKey, ObservedFrontend, Protocol, Treatment};
use portwarden_netlink::Error;

use crate::redirect::nftables::Redirections;
use crate::redirect::{Action, Origin, Place};

/// The redirections of one family and the open sockets, as the kernel has them.
#[derive(Debug)]
pub struct ReadBack {
    redirections: Redirections,
    open: BTreeSet<(Protocol, SocketAddr)>,
}

impl ReadBack {
    /// Reads them in the network namespace of the calling thread. `None` if nf_tables has no table of ours; iptables may have the rules.
    pub fn read(family: Family) -> Result<Option<Self>, Error> {
        let Some(redirections) = Redirections::read(family)? else { return Ok(None) };
        Ok(Some(ReadBack { redirections, open: open_sockets() }))
    }

    /// Every frontend in the kernel.
    pub fn frontends(&self) -> BTreeSet<FrontendKey> {
        let key = |place: &Place| FrontendKey { ip: place.ip, port: place.port, protocol: place.protocol };
        self.redirections.places().iter().map(key).collect()
    }

    /// What the kernel does with connections to a frontend.
    pub fn frontend(&self, key: &FrontendKey) -> ObservedFrontend {
        let place = Place { ip: key.ip, port: key.port, protocol: key.protocol };
        let mut observed = ObservedFrontend::not_served();
        for origin in Origin::BOTH {
            let whose = match origin {
                Origin::Node => "from this node",
                Origin::Elsewhere => "from elsewhere",
            };
            let (treatment, evidence) = match self.redirections.action(origin, place) {
                None => (Treatment::NotServed, format!("{whose}: no rule")),
                Some(Action::Reject) => (Treatment::Rejected, format!("{whose}: rejected")),
                Some(Action::Drop) => (Treatment::Dropped, format!("{whose}: dropped")),
                Some(Action::Redirect(to)) if self.is_open(key.protocol, to) => {
                    (Treatment::Proxied, format!("{whose}: redirected to the proxy's socket {to}"))
                }
                Some(Action::Redirect(to)) => {
                    (Treatment::Rejected, format!("{whose}: redirected to {to}, where no socket is open"))
                }
            };
            observed.evidence.push(evidence);
            match origin {
                Origin::Node => observed.from_node = treatment,
                Origin::Elsewhere => observed.from_elsewhere = treatment,
            }
        }
        observed
    }

    fn is_open(&self, protocol: Protocol, to: SocketAddr) -> bool {
        let open = |ip: IpAddr| self.open.contains(&(protocol, SocketAddr::new(ip, to.port())));
        open(to.ip()) || open(IpAddr::from([0u8; 4])) || open(IpAddr::from([0u8; 16]))
    }
}

/// TCP sockets that listen, and UDP sockets, of all processes.
fn open_sockets() -> BTreeSet<(Protocol, SocketAddr)> {
    let files = [
        ("tcp", Protocol::Tcp, "0A"),
        ("tcp6", Protocol::Tcp, "0A"),
        ("udp", Protocol::Udp, "07"),
        ("udp6", Protocol::Udp, "07"),
    ];
    let mut open = BTreeSet::new();
    for (file, protocol, state) in files {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        open.extend(text.lines().filter_map(|line| socket(line, state)).map(|address| (protocol, address)));
    }
    open
}

/// The local address of a line of `/proc/net/tcp` whose socket is in this state.
fn socket(line: &str, wanted: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    if words.nth(1)? != wanted {
        return None;
    }
    // Each four bytes are printed as a number of this machine.
    let mut bytes = Vec::new();
    for start in (0..address.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(address.get(start..start + 8)?, 16).ok()?.to_ne_bytes());
    }
    let ip = match bytes.as_slice() {
        [a, b, c, d] => IpAddr::from([*a, *b, *c, *d]),
        all => IpAddr::from(<[u8; 16]>::try_from(all).ok()?).to_canonical(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn sockets_are_read_from_the_kernels_tables() {
        let line = "   0: 0100007F:9C41 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1";
        assert_eq!(socket(line, "0A"), Some("127.0.0.1:40001".parse().expect("an address")));
        assert_eq!(socket(line, "07"), None);
        let line = "   1: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0 0";
        assert_eq!(socket(line, "0A"), Some("[::1]:80".parse().expect("an address")));
        assert_eq!(socket("  sl  local_address rem_address   st", "0A"), None);
    }
}
