//! Which Service a redirected connection was for.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use nix::sys::socket::{getsockopt, sockopt};
use portwarden_model::{PoolKind, Protocol};
use tokio::net::TcpStream;

use crate::core::{Route, Router, Target};
use crate::redirect::{Origin, Place};

/// The TCP places of one family. The workers read them, a sync changes them.
#[derive(Debug, Default)]
pub(crate) struct Routes(RwLock<HashMap<Place, Entry>>);

/// What a place leads to.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) target: Arc<Target>,
    pub(crate) from_node: Option<PoolKind>,
    pub(crate) from_elsewhere: Option<PoolKind>,
}

impl Routes {
    pub(crate) fn insert(&self, place: Place, entry: Entry) {
        // Nothing is half done under this lock.
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(place, entry);
    }

    /// Removes a place, unless another service port has it by now.
    pub(crate) fn remove(&self, place: Place, target: &Arc<Target>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.get(&place).is_some_and(|entry| Arc::ptr_eq(&entry.target, target)) {
            all.remove(&place);
        }
    }

    /// The service port and pool for a connection to this address.
    fn find(&self, to: SocketAddr, origin: Origin) -> Option<(Arc<Target>, PoolKind)> {
        let place = |ip| Place { ip, port: to.port(), protocol: Protocol::Tcp };
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let entry = all.get(&place(Some(to.ip()))).or_else(|| all.get(&place(None)))?;
        let pool = match origin {
            Origin::Node => entry.from_node,
            Origin::Elsewhere => entry.from_elsewhere,
        }?;
        Some((Arc::clone(&entry.target), pool))
    }
}

/// Routes connections that the rules redirected to the listener of one origin.
#[derive(Debug)]
pub(crate) struct Redirected {
    pub(crate) routes: Arc<Routes>,
    pub(crate) origin: Origin,
}

impl Router for Redirected {
    fn route(&self, stream: &TcpStream, peer: SocketAddr) -> Option<Route> {
        let to = original_destination(stream, peer.is_ipv4())?;
        let (target, pool) = self.routes.find(to, self.origin)?;
        Some(Route { target, pool, client: peer.ip() })
    }
}

/// Where the client connected to. A connection that no rule redirected has our own address, which no Service has.
fn original_destination(stream: &TcpStream, v4: bool) -> Option<SocketAddr> {
    if v4 {
        let address = getsockopt(stream, sockopt::OriginalDst).ok()?;
        let ip = IpAddr::from(address.sin_addr.s_addr.to_ne_bytes());
        Some(SocketAddr::new(ip, u16::from_be(address.sin_port)))
    } else {
        let address = getsockopt(stream, sockopt::Ip6tOriginalDst).ok()?;
        Some(SocketAddr::new(IpAddr::from(address.sin6_addr.s6_addr), u16::from_be(address.sin6_port)))
    }
}
