//! A cluster of any size, and changes to it whose traces can be found in the kernel.
//!
//! Every change replaces endpoints by ones with addresses that no other endpoint has, out of a range that nothing else uses: whatever program
//! sees such an address in a message of the kernel knows which change it belongs to.

use std::net::Ipv4Addr;

use portwarden_model::manifest::EndpointSlice;
use portwarden_testkit::build::{endpoint, port, service, slice};
use portwarden_testkit::rig::Object;

/// How many addresses there are for changes: more than any run needs, so that none is used twice.
pub(crate) const MARKED: u32 = 1 << 20;
const FIRST_MARKED: u32 = u32::from_be_bytes([198, 16, 0, 0]);
const FIRST_SERVICE: u32 = u32::from_be_bytes([10, 96, 1, 0]);
const FIRST_ENDPOINT: u32 = u32::from_be_bytes([10, 128, 0, 0]);

/// Services and endpoints of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.services, self.endpoints)
    }
}

/// The slices of a cluster, one for each Service, as they were written last.
pub(crate) struct Cluster {
    pub(crate) size: Size,
    slices: Vec<EndpointSlice>,
    /// Where the next replacement goes in each slice.
    positions: Vec<usize>,
    marks: u32,
}

/// The number of an address that a change brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(pub(crate) u32);

impl Cluster {
    pub(crate) fn new(size: Size) -> Cluster {
        let slices: Vec<_> = (0..size.services).map(|number| first_slice(number, size.endpoints)).collect();
        Cluster { size, positions: vec![0; slices.len()], slices, marks: 0 }
    }

    /// All objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Object> {
        let services = (0..self.size.services).map(|number| {
            Object::from(
                service(&service_name(number)).cluster_ip(service_ip(number)).port(port(80).name("http")),
            )
        });
        services.chain(self.slices.iter().cloned().map(Object::Slice))
    }

    /// Replaces so many endpoints of a Service.
    pub(crate) fn replace(&mut self, service: u32, count: u32) -> (Object, Vec<Mark>) {
        let index = usize::try_from(service % self.size.services).unwrap_or(0);
        let slice = &mut self.slices[index];
        let mut marks = Vec::new();
        for _ in 0..count {
            let mark = Mark(self.marks % MARKED);
            self.marks += 1;
            let position = self.positions[index] % slice.endpoints.len();
            self.positions[index] = position + 1;
            slice.endpoints[position].addresses = vec![mark.address().to_string()];
            marks.push(mark);
        }
        (Object::Slice(slice.clone()), marks)
    }

    /// The addresses of all endpoints.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        let endpoints = self.slices.iter().flat_map(|slice| &slice.endpoints);
        endpoints.filter_map(|endpoint| endpoint.addresses.first()?.parse().ok())
    }
}

impl Mark {
    pub(crate) fn address(self) -> Ipv4Addr {
        Ipv4Addr::from(FIRST_MARKED + self.0)
    }

    /// The mark of an address, if it is one.
    pub(crate) fn of(address: Ipv4Addr) -> Option<Mark> {
        u32::from(address).checked_sub(FIRST_MARKED).filter(|number| *number < MARKED).map(Mark)
    }

    /// As an index.
    pub(crate) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }
}

/// All marks in a netlink message, whose parts all begin at multiples of four bytes. That anything else looks like one of these addresses is too
/// rare to matter.
pub(crate) fn marks_in(message: &[u8]) -> impl Iterator<Item = Mark> {
    let words = message.as_chunks::<4>().0.iter();
    words.filter_map(|word| Mark::of(Ipv4Addr::from(*word)))
}

/// Whether an address can be one of an endpoint here.
pub(crate) fn is_endpoint(address: Ipv4Addr) -> bool {
    Mark::of(address).is_some() || u32::from(address) & 0xff80_0000 == FIRST_ENDPOINT
}

fn first_slice(number: u32, endpoints: u32) -> EndpointSlice {
    let name = service_name(number);
    let built = slice(&name, &format!("{name}-abcde")).port(port(8080).name("http"));
    let first = FIRST_ENDPOINT + number * endpoints;
    let built = (0..endpoints).fold(built, |built, index| {
        let node = format!("node-{}", (number * 7 + index) % 1000);
        built.endpoint(endpoint(Ipv4Addr::from(first + index)).on(&node).ready(true).serving(true))
    });
    built.build()
}

/// The cluster IP of a Service.
pub(crate) fn service_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(FIRST_SERVICE + number)
}

/// The name of a Service; all are in the same namespace.
pub(crate) fn service_name(number: u32) -> String {
    format!("service-{number}")
}
