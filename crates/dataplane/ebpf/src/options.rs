//! What only this mode has to know.

use std::path::{Path, PathBuf};

use portwarden_model::Family;

use crate::layout::{SOCKETS_VERSION, TABLES_VERSION};
use crate::object::SOCKET_MAPS;

/// Where maps and links are pinned unless the operator says otherwise.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/portwarden";

/// The settings of this mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The families to serve.
    pub families: Vec<Family>,
    /// The cgroup whose processes are served; `None` means the root of cgroup v2 as mounted on this host.
    pub cgroup: Option<PathBuf>,
    /// A directory on a BPF file system. What is pinned there outlives the process.
    pub pin_directory: PathBuf,
    /// How much the maps hold.
    pub sizes: Sizes,
    /// The network namespaces to serve, as files (`/proc/PID/ns/net`); `None` means all.
    pub namespaces: Option<Vec<PathBuf>>,
}

/// How much the maps hold. A Service that does not fit is left to nftables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Endpoints of all pools, each as often as pools have it.
    pub endpoints: u32,
    /// Frontends: addresses with port and protocol.
    pub frontends: u32,
    /// Service ports with counters of their own.
    pub counted_ports: u32,
}

impl Options {
    /// All network namespaces, the root of cgroup v2, and maps for 250,000 endpoints.
    pub fn new(families: &[Family]) -> Self {
        Options {
            families: families.to_vec(),
            cgroup: None,
            pin_directory: PIN_DIRECTORY.into(),
            sizes: Sizes::default(),
            namespaces: None,
        }
    }

    /// Where tables are pinned: those of another version or size never share a directory with these.
    pub(crate) fn table_directory(&self) -> PathBuf {
        let Sizes { endpoints, frontends, counted_ports } = self.sizes;
        self.pin_directory.join(format!("maps-v{TABLES_VERSION}-{endpoints}-{frontends}-{counted_ports}"))
    }

    /// Where the maps are pinned that hold what is remembered for sockets. They outlive a change of the tables.
    pub(crate) fn socket_directory(&self) -> PathBuf {
        self.pin_directory.join(format!("sockets-v{SOCKETS_VERSION}"))
    }

    /// Where a map is pinned.
    pub(crate) fn map_path(&self, map: &str) -> PathBuf {
        let of_sockets = SOCKET_MAPS.contains(&map);
        let directory = if of_sockets { self.socket_directory() } else { self.table_directory() };
        directory.join(map)
    }

    pub(crate) fn link_directory(&self) -> PathBuf {
        link_directory(&self.pin_directory)
    }
}

pub(crate) fn link_directory(pin_directory: &Path) -> PathBuf {
    pin_directory.join("links")
}

impl Sizes {
    /// For so many endpoints. There are at least as many frontends as by default, and half as many as endpoints.
    pub fn for_endpoints(endpoints: u32) -> Self {
        let default = Sizes::default();
        Sizes { endpoints, frontends: default.frontends.max(endpoints / 2), ..default }
    }

    /// A range of slots may be twice as large as its pool, and while a pool changes it has two.
    pub(crate) fn slots(self) -> u32 {
        self.endpoints.next_power_of_two().saturating_mul(2)
    }

    /// Number 0 is not used.
    pub(crate) fn backends(self) -> u32 {
        self.endpoints + 1
    }

    pub(crate) fn counters(self) -> u32 {
        self.counted_ports + 1
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { endpoints: 1 << 18, frontends: 1 << 17, counted_ports: 1 << 12 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_more_endpoints_is_room_for_more_frontends() {
        let frontends = |endpoints| Sizes::for_endpoints(endpoints).frontends;
        assert_eq!([frontends(1), frontends(1 << 18), frontends(1 << 20)], [1 << 17, 1 << 17, 1 << 19]);
        assert_eq!(Sizes::for_endpoints(1 << 18), Sizes::default());
    }
}
