//! What a resolve reports is exactly what differs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portwarden_model::{Cluster, Desired, Family, NamespacedName, Protocol};
use portwarden_testkit::strategies::{Shape, settings};
use proptest::prelude::*;

use crate::server::{Change, desired, histories};

/// The Services that are not the same in both states.
fn differing(before: &Desired, after: &Desired) -> BTreeSet<NamespacedName> {
    let names = before.services().chain(after.services()).map(|(name, _)| name);
    names.filter(|name| before.service(name) != after.service(name)).cloned().collect()
}

fn has_udp(desired: &Desired, name: &NamespacedName) -> bool {
    desired.service(name).is_some_and(|s| s.ports.iter().any(|port| port.protocol() == Protocol::Udp))
}

/// Where UDP can be sent to.
fn udp_frontends(desired: &Desired) -> BTreeSet<(Option<IpAddr>, u16)> {
    let ports = desired.ports().filter(|port| port.protocol() == Protocol::Udp);
    let allowed = ports.flat_map(|port| port.frontends.iter().filter(|frontend| frontend.is_allowed()));
    allowed.map(|frontend| (frontend.ip, frontend.port)).collect()
}

proptest! {
    #[test]
    fn changes_are_exactly_the_differences(
        history in histories(&Shape::default()),
        resolves in prop::collection::vec(any::<bool>(), 40),
        settings in settings(&Shape::default()),
    ) {
        let mut cluster = Cluster::new(settings);
        let mut before = desired(&cluster);
        for (change, resolve) in history.iter().map(Change::event).zip(resolves) {
            cluster.apply(change);
            prop_assert_eq!(&desired(&cluster), &before, "nothing moves before a resolve");
            if !resolve {
                continue;
            }
            let changes = cluster.resolve();
            let after = desired(&cluster);
            for (index, family) in Family::BOTH.into_iter().enumerate() {
                let (before, after, changes) = (&before[index], &after[index], &changes[family]);
                let differing = differing(before, after);
                let udp = differing.iter().any(|name| has_udp(before, name) || has_udp(after, name));
                let gone: BTreeSet<_> =
                    udp_frontends(before).difference(&udp_frontends(after)).copied().collect();
                let reported: BTreeSet<_> = changes.gone.iter().map(|g| (g.ip, g.port)).collect();
                prop_assert_eq!(&changes.services, &differing);
                prop_assert_eq!(changes.node, before.node != after.node);
                prop_assert_eq!(changes.udp, udp);
                prop_assert_eq!(reported, gone);
                prop_assert!(!changes.full);
            }
            before = after;
        }
    }
}
