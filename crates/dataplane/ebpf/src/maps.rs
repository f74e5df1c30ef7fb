//! The maps that user space reads and writes.

use std::os::fd::{AsFd, OwnedFd};

use crate::counters::CounterArray;
use crate::error::Error;
use crate::layout::{AFFINITY_SIZE, PEER_SIZE};
use crate::options::Options;
use crate::pools::PoolMaps;
use crate::service_table::ServiceTable;
use crate::sys::{HashMapFd, Mapping, open_pinned};

/// `datagram_peers`: the cookie of a connected UDP socket to its endpoint.
pub(crate) type PeerMap = HashMapFd<8, PEER_SIZE>;

/// `affinities`: network namespace and pool to the endpoint that the client used last.
pub(crate) type AffinityMap = HashMapFd<AFFINITY_SIZE, AFFINITY_SIZE>;

/// Open maps.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) services: ServiceTable,
    pub(crate) pools: PoolMaps,
    pub(crate) affinities: AffinityMap,
    pub(crate) counters: CounterArray,
    pub(crate) namespaces: HashMapFd<8, 4>,
    pub(crate) datagram_peers: PeerMap,
}

impl Maps {
    /// Opens what [`crate::object::load`] has pinned.
    pub(crate) fn open(options: &Options, processors: u32) -> Result<Maps, Error> {
        let sizes = options.sizes;
        let open = |map: &'static str| -> Result<OwnedFd, Error> {
            open_pinned(&options.map_path(map)).map_err(|source| Error::Map { action: "open", map, source })
        };
        let failed = |map| move |source| Error::Map { action: "map into memory", map, source };
        let pools = PoolMaps {
            pools: Mapping::of_map(open("pools")?.as_fd(), ServiceTable::pools(sizes.frontends) as usize)
                .map_err(failed("pools"))?,
            slots: Mapping::of_map(open("slots")?.as_fd(), sizes.slots() as usize)
                .map_err(failed("slots"))?,
            backends: Mapping::of_map(open("backends")?.as_fd(), sizes.backends() as usize)
                .map_err(failed("backends"))?,
        };
        let cells = ServiceTable::cells(sizes.frontends) as usize;
        let cells = Mapping::of_map(open("services")?.as_fd(), cells).map_err(failed("services"))?;
        Ok(Maps {
            services: ServiceTable::open(cells, sizes.frontends),
            pools,
            affinities: HashMapFd::new(open("affinities")?),
            counters: CounterArray::new(
                Mapping::of_map(open("counters")?.as_fd(), (sizes.counters() * processors) as usize)
                    .map_err(failed("counters"))?,
                sizes.counters(),
            ),
            namespaces: HashMapFd::new(open("namespaces")?),
            datagram_peers: HashMapFd::new(open("datagram_peers")?),
        })
    }
}
