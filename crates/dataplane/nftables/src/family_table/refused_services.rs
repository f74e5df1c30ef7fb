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
                    let service = plan.service_at(&failure.part)?.clone();
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::dataplane::Options;
    use crate::samples;
    use portwarden_model::{Changes, Cluster, Family};
    use portwarden_netlink::Errno;
    use portwarden_netlink::error::{Answer, FailedPart, Failure, Rejected};
    use portwarden_testkit::Namespace;
    use portwarden_testkit::build::{endpoint, port, slice};

    /// Five Services with one endpoint each; `demo/c` has more than session affinity can have.
    fn cluster() -> Cluster {
        let mut objects = Vec::new();
        for (number, name) in (1..).zip(["a", "b", "c", "d", "e"]) {
            objects.push(samples::dual_stack(name, number).affinity(600).port(port(80)).into());
            objects.extend(samples::endpoints(name, &[number]));
        }
        let first = u32::from(std::net::Ipv4Addr::new(10, 200, 0, 0));
        let endpoints = (0..17_000).map(|number| endpoint(std::net::Ipv4Addr::from(first + number)));
        let slice = endpoints.fold(slice("c", "c-many").port(port(8080)), |slice, one| slice.endpoint(one));
        objects.push(slice.into());
        samples::cluster(samples::settings(), objects)
    }

    fn names(refused: &[RefusedService]) -> Vec<String> {
        refused.iter().map(|refused| refused.service.to_string()).collect()
    }

    #[test]
    fn groups_are_halved_until_the_refused_service_is_alone() {
        let namespace = Namespace::new("nftables-refused").unwrap();
        let _inside = namespace.enter().unwrap();
        let mut monitor = TamperMonitor::open().unwrap();
        let mut table = FamilyTable::open(Family::V4, Options::default(), &mut monitor).unwrap();
        let (empty, cluster) = (samples::cluster(samples::settings(), Vec::new()), cluster());
        table.sync(empty.desired(Family::V4), &Changes::everything(), &mut monitor, Instant::now()).unwrap();
        let desired = cluster.desired(Family::V4);
        let wanted: Wanted<'_> = desired.services().map(|(name, service)| (name, Some(service))).collect();
        let services: Vec<_> = wanted.into_iter().collect();
        let mut report = Report::default();
        table.write_groups(&services, &monitor, &mut report).unwrap();
        assert_eq!(names(&report.refused), ["demo/c"]);
        assert!(report.refused[0].reason.contains("endpoints"), "{report:?}");
        let all = Changes {
            services: desired.services().map(|(name, _)| name.clone()).collect(),
            ..Changes::default()
        };
        let again = table.sync(desired, &all, &mut monitor, Instant::now()).unwrap();
        assert_eq!(
            (again.written, names(&again.refused)),
            (0, vec!["demo/c".to_owned()]),
            "the others were written"
        );
    }

    #[test]
    fn a_failure_without_an_element_is_attributed_to_no_service() {
        let namespace = Namespace::new("nftables-refused").unwrap();
        let _inside = namespace.enter().unwrap();
        let mut monitor = TamperMonitor::open().unwrap();
        let table = FamilyTable::open(Family::V4, Options::default(), &mut monitor).unwrap();
        let answer = Answer { errno: Errno::ENOMEM, code: Errno::ENOMEM as i32, text: None, offset: None };
        let rejected = Rejected { failures: vec![Failure { part: FailedPart::Whole, answer }] };
        let error = WriteError::Rejected(Box::new(rejected), crate::plan::Plan::new());
        let (mut wanted, mut refused) = (Wanted::new(), Vec::new());
        let outcome = table.exclude(error, &mut wanted, &mut refused).unwrap();
        assert!(matches!(outcome, Excluded::None(_)) && refused.is_empty());
    }
}
