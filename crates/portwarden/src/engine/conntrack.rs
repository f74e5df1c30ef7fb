//! Removes stale flows from the kernel's connection tracking.

use std::net::{IpAddr, SocketAddr};

use portwarden_model::{Changes, Desired, Family, Flow, Protocol, StaleFlows};
use portwarden_netlink::IpFamily;
use portwarden_netlink::conntrack::{self, Conntrack};
use portwarden_netlink::socket::Consistency;

use super::flows::{Flows, FlowsError};

/// Why stale flows may be left.
#[derive(Debug, thiserror::Error)]
enum FlowError {
    #[error(
        "cannot open a netlink socket to connection tracking; is CAP_NET_ADMIN there and nf_conntrack loaded?"
    )]
    Open(#[source] portwarden_netlink::Error),
    #[error("cannot list flows for {family}")]
    List { family: Family, source: portwarden_netlink::Error },
    #[error("{count} flows for {family} cannot be deleted, the first of them because")]
    Delete { family: Family, count: usize, source: portwarden_netlink::Error },
    #[error("flows for {0} changed all the time while they were listed")]
    Interrupted(Family),
}

/// Connection tracking of the network namespace that the engine's thread is in.
#[derive(Debug, Default)]
pub struct ConntrackFlows {
    connection: Option<Conntrack>,
}

impl Flows for ConntrackFlows {
    fn clean(&mut self, desired: &Desired, changes: &Changes, host: &[IpAddr]) -> Result<usize, FlowsError> {
        let Some(stale) = StaleFlows::after(changes, desired, host) else { return Ok(0) };
        let result = self.delete(desired.family, &stale);
        if result.is_err() {
            // A socket that failed once may still deliver answers to earlier requests.
            self.connection = None;
        }
        Ok(result?)
    }
}

impl ConntrackFlows {
    fn delete(&mut self, family: Family, stale: &StaleFlows<'_>) -> Result<usize, FlowError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Conntrack::open().map_err(FlowError::Open)?),
        };
        let kernel_family = match family {
            Family::V4 => IpFamily::Ipv4,
            Family::V6 => IpFamily::Ipv6,
        };
        let deletion = connection
            .delete(kernel_family, |flow| seen(flow).is_some_and(|flow| stale.is_stale(&flow)))
            .map_err(|source| FlowError::List { family, source })?;
        let count = deletion.errors.len();
        match deletion.errors.into_iter().next() {
            Some(source) => Err(FlowError::Delete { family, count, source }),
            None if deletion.consistency == Consistency::Interrupted => Err(FlowError::Interrupted(family)),
            None => Ok(deletion.deleted),
        }
    }
}

/// A flow as the model sees it; `None` for protocols that Services cannot have.
fn seen(flow: &conntrack::Flow) -> Option<Flow> {
    Some(Flow {
        protocol: Protocol::from_number(flow.original.protocol)?,
        source: flow.original.source,
        destination: SocketAddr::new(flow.original.destination, flow.original.destination_port),
        reply_source: SocketAddr::new(flow.reply.source, flow.reply.source_port),
        answered: flow.is_answered(),
    })
}
