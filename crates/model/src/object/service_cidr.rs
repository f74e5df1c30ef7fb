//! ServiceCIDRs: the ranges from which Services get their addresses.

use ipnet::IpNet;

use crate::ip::parse_cidr;
use crate::manifest;
use crate::name::Name;
use crate::problem::{Problem, Problems};

/// A ServiceCIDR object; the union of all of them is what counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceCidr {
    /// `metadata.name`.
    pub name: Name,
    /// `spec.cidrs`, both families, without invalid ones.
    pub cidrs: Box<[IpNet]>,
}

impl ServiceCidr {
    /// Parses a ServiceCIDR. Invalid ranges are left out.
    pub fn from_manifest(from: &manifest::ServiceCidr) -> (ServiceCidr, Vec<Problem>) {
        let mut problems = Problems::of("ServiceCIDR", &from.metadata.name);
        let mut cidrs = Vec::with_capacity(from.spec.cidrs.len());
        for (index, text) in from.spec.cidrs.iter().enumerate() {
            match parse_cidr(text.trim()) {
                Some(net) => cidrs.push(net),
                None => {
                    problems.add(format!("spec.cidrs[{index}]"), format!("{text:?} is not a CIDR; left out"));
                }
            }
        }
        (
            ServiceCidr { name: Name::from(from.metadata.name.as_str()), cidrs: cidrs.into() },
            problems.into_vec(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::service_cidr;

    #[test]
    fn ranges_of_both_families_are_kept_and_bad_ones_reported() {
        let given = service_cidr("kubernetes", &["10.96.0.1/12", "bad", "fd00:96::/108"]);
        let (cidr, problems) = ServiceCidr::from_manifest(&given);
        let found: Vec<String> = cidr.cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.96.0.0/12", "fd00:96::/108"]);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].field, "spec.cidrs[1]");
    }
}
