//! Packet counters of the kernel (nfacct objects) that two rules refer to by name.

use portwarden_netlink::nfacct::Accounting;

use crate::names::{INVALID_COUNTER, LOOPBACK_COUNTER};

/// A metric whose value the kernel keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketCounter {
    #[allow(missing_docs, reason = "the name says it")]
    pub metric: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// The kernel's object.
    pub object: &'static str,
}

/// The metrics whose values the kernel keeps; both families count into the same objects.
pub const PACKET_COUNTERS: [PacketCounter; 2] = [
    PacketCounter {
        metric: "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        help: "packets dropped by iptables to work around conntrack problems",
        object: INVALID_COUNTER,
    },
    PacketCounter {
        metric: "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        help: "Number of packets accepted on nodeports of loopback interface",
        object: LOOPBACK_COUNTER,
    },
];

impl PacketCounter {
    /// Its value in the network namespace of the calling thread; `None` if nothing counts there.
    pub fn read(&self) -> Result<Option<u64>, portwarden_netlink::Error> {
        Ok(Accounting::open()?.read(self.object)?.map(|counted| counted.packets))
    }
}

/// Which counters rules can refer to. A rule whose counter is missing is written without it.
#[derive(Debug)]
pub(crate) struct Counters {
    accounting: Option<Accounting>,
    loopback: bool,
    invalid: bool,
}

impl Counters {
    /// Asks whether the kernel has such counters at all.
    pub(crate) fn probe() -> Self {
        let probed = Accounting::open().and_then(|mut accounting| {
            accounting.read(INVALID_COUNTER)?;
            Ok(accounting)
        });
        let accounting = probed
            .inspect_err(
                |error| tracing::info!(%error, "the kernel has no nfacct counters; their metrics are not published"),
            )
            .ok();
        Counters { accounting, loopback: false, invalid: false }
    }

    /// Makes the counters that are missing.
    pub(crate) fn ensure(&mut self) {
        let Some(accounting) = &mut self.accounting else { return };
        let mut ensure = |name| {
            let made = accounting.ensure(name);
            made.inspect_err(
                |error| tracing::warn!(%error, name, "cannot create a counter; its metric does not grow"),
            )
            .is_ok()
        };
        self.loopback = ensure(LOOPBACK_COUNTER);
        self.invalid = ensure(INVALID_COUNTER);
    }

    /// Whether packets to node ports on loopback addresses can be counted.
    pub(crate) fn loopback(&self) -> bool {
        self.loopback
    }

    /// Whether dropped invalid packets can be counted.
    pub(crate) fn invalid(&self) -> bool {
        self.invalid
    }
}
