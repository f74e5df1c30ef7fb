//! ServiceCIDRs: the ranges from which Services get their addresses.

use ipnet::IpNet;

use crate::ip::parse_cidr;
use crate::manifest;
use crate::name::Name;
use crate::problem::{Problem, Problems};

/// A ServiceCIDR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Who it is.
    pub name: Name,
    /// Its ranges, both families.
    pub cidrs: Box<[IpNet]>,
}

impl ServiceCidr {
    /// Settles a ServiceCIDR; ranges that are none are left out.
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
