//! A Service that the kernel refuses is left out and reported, and everything else is committed.

use std::sync::Arc;

use portwarden_model::{NamespacedName, ProxiedService, RefusedService, Report};
use portwarden_netlink::Error as NetlinkError;

use super::write::WriteError;
use super::{FamilyTable, Wanted};
use crate::error::Error;
use crate::tampering::TamperMonitor;

/// Whether a failure is attributable to a Service.
pub(super) enum Excluded {
    Some,
    None(NetlinkError),
}

impl FamilyTable {
    /// Takes the Services out of `wanted` that caused a failure.
    pub(super) fn exclude(
        &self,
        error: WriteError,
        wanted: &mut Wanted<'_>,
        refused: &mut Vec<RefusedService>,
    ) -> Result<Excluded, Error> {
        let found: Vec<RefusedService> = match error {
            WriteError::Fatal(error) => return Err(error),
            WriteError::Unfit(service, reason) => vec![RefusedService { service, reason }],
            WriteError::Rejected(rejected, plan) => {
                let found = rejected.failures.iter().filter_map(|failure| {
                    let service = plan.service_at(&failure.place)?.clone();
                    Some(RefusedService { service, reason: failure.to_string() })
                });
                let found: Vec<RefusedService> = found.collect();
                if found.is_empty() {
                    return Ok(Excluded::None(NetlinkError::Rejected(*rejected)));
                }
                found
            }
        };
        for service in found {
            if wanted.remove(&service.service).is_some() {
                refused.push(service);
            }
        }
        Ok(Excluded::Some)
    }

    /// Writes Services in groups. A group that the kernel refuses is halved until each refused Service is alone.
    pub(super) fn write_groups(
        &mut self,
        services: &[(&NamespacedName, Option<&Arc<ProxiedService>>)],
        monitor: &TamperMonitor,
        report: &mut Report,
    ) -> Result<(), Error> {
        let wanted: Wanted<'_> = services.iter().copied().collect();
        match self.write_changes(None, &wanted, monitor) {
            Ok(written) => report.written += written,
            Err(WriteError::Fatal(error)) => return Err(error),
            Err(error) if services.len() <= 1 => {
                let reason = error.reason();
                let service = services.first().map(|(name, _)| (*name).clone());
                report.refused.extend(service.map(|service| RefusedService { service, reason }));
            }
            Err(_) => {
                let (left, right) = services.split_at(services.len() / 2);
                self.write_groups(left, monitor, report)?;
                self.write_groups(right, monitor, report)?;
            }
        }
        Ok(())
    }
}
