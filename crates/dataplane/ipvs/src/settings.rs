//! What the kernel must have, and how it must be set, before this mode can work.

use std::fs;
use std::path::Path;

use portwarden_model::Family;
use portwarden_netlink::ipset::Sets;
use portwarden_netlink::ipvs::{Ipvs, ServerKey, Timeouts, VirtualServer};

use crate::error::Error;
use crate::kernel::Kernel;
use crate::names::SetId;
use crate::plan::scheduler_flags;

/// A kernel setting that this mode needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sysctl {
    /// The path below `/proc/sys`.
    pub name: &'static str,
    /// What it must be.
    pub value: &'static str,
}

const fn sysctl(name: &'static str, value: &'static str) -> Sysctl {
    Sysctl { name, value }
}

/// The settings, in order. `release` is the kernel's, as in `/proc/sys/kernel/osrelease`.
pub fn wanted_sysctls(release: &str, strict_arp: bool) -> Vec<Sysctl> {
    // Without it conntrack does not see the connections, and nothing is masqueraded.
    let mut all = vec![sysctl("net/ipv4/vs/conntrack", "1")];
    // Since 5.9 a reused source port is rescheduled without losing a second; before 4.1 there is no such setting.
    if ((4, 1)..(5, 9)).contains(&version(release)) {
        all.push(sysctl("net/ipv4/vs/conn_reuse_mode", "0"));
    }
    all.push(sysctl("net/ipv4/vs/expire_nodest_conn", "1"));
    all.push(sysctl("net/ipv4/vs/expire_quiescent_template", "1"));
    all.push(sysctl("net/ipv4/ip_forward", "1"));
    if strict_arp {
        all.push(sysctl("net/ipv4/conf/all/arp_ignore", "1"));
        all.push(sysctl("net/ipv4/conf/all/arp_announce", "2"));
    }
    all
}

/// Writes the settings that differ. `proc` is `/proc`.
pub fn apply_sysctls(proc: &Path, strict_arp: bool) -> Result<(), Error> {
    let sys = proc.join("sys");
    let release = fs::read_to_string(sys.join("kernel/osrelease")).unwrap_or_default();
    if lacks_conn_reuse_mode(&release) {
        tracing::error!(
            release = release.trim(),
            "Cannot set net/ipv4/vs/conn_reuse_mode: it exists since Linux 4.1. A client that reuses a source port can reach an endpoint that is being removed; upgrade the kernel"
        );
    }
    for Sysctl { name, value } in wanted_sysctls(&release, strict_arp) {
        let path = sys.join(name);
        let failed = |source| Error::Sysctl { name, value, source };
        if fs::read_to_string(&path).map_err(failed)?.trim() != value {
            tracing::info!(entry = name, value, "Set sysctl");
            fs::write(&path, value).map_err(failed)?;
        }
    }
    Ok(())
}

/// Whether a kernel has no setting for connections whose source port is reused. One whose release cannot be read is not judged.
fn lacks_conn_reuse_mode(release: &str) -> bool {
    let version = version(release);
    version != (0, 0) && version < (4, 1)
}

/// Makes the kernel load IPVS, where it is a module.
pub fn load_module() -> Result<(), Error> {
    let failed = |source| Error::Kernel { action: "opening netlink", family: Family::V4, source };
    Ipvs::open().map_err(failed)?.ok_or(Error::NoIpvs).map(drop)
}

/// Sets the timeouts of connections; those that are 0 stay.
pub fn set_timeouts(timeouts: Timeouts) -> Result<(), Error> {
    if timeouts == Timeouts::default() {
        return Ok(());
    }
    let failed =
        |source| Error::Kernel { action: "setting the timeouts of IPVS", family: Family::V4, source };
    let mut ipvs = Ipvs::open().map_err(failed)?.ok_or(Error::NoIpvs)?;
    ipvs.set_timeouts(timeouts).map_err(failed)
}

/// Checks that the kernel has what this mode needs: IPVS, the scheduler, every type of set. The first sync creates the device.
pub fn check_kernel(families: &[Family], scheduler: &str) -> Result<(), Error> {
    let mut kernel = Kernel::open()?;
    check_scheduler(&mut kernel.ipvs, scheduler)?;
    for family in families {
        check_sets(&mut kernel.sets, *family)?;
    }
    Ok(())
}

/// A scheduler that no virtual server uses yet is tried on one, for which the kernel loads its module.
fn check_scheduler(ipvs: &mut Ipvs, scheduler: &str) -> Result<(), Error> {
    let failed = |source| Error::Kernel { action: "listing virtual servers", family: Family::V4, source };
    if ipvs.servers().map_err(failed)?.iter().any(|server| server.scheduler == scheduler) {
        return Ok(());
    }
    let address = ([198, 51, 100, 0], 20_000).into();
    let key = ServerKey { address, protocol: 6 };
    let probe = VirtualServer {
        key,
        scheduler: scheduler.to_owned(),
        flags: scheduler_flags(scheduler),
        timeout: 0,
        mask_length: key.full_mask(),
    };
    // One of an earlier start that was killed.
    ipvs.delete(&key).map_err(failed)?;
    ipvs.add(&probe).map_err(|source| {
        if source.is_not_found() {
            Error::NoScheduler { name: scheduler.to_owned(), source }
        } else {
            Error::Kernel { action: "creating a virtual server", family: Family::V4, source }
        }
    })?;
    ipvs.delete(&key).map_err(failed)?;
    Ok(())
}

fn check_sets(sets: &mut Sets, family: Family) -> Result<(), Error> {
    for set in SetId::ALL {
        let spec = set.spec(family);
        sets.revision(spec.kind, spec.family).map_err(|source| Error::NoSets { source })?;
    }
    Ok(())
}

/// Major and minor number of a kernel release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuse_of_ports_is_set_on_kernels_that_need_it() {
        for (release, expected) in [
            ("4.0.9", false),
            ("4.1.0", true),
            ("4.19.0-27-amd64\n", true),
            ("5.8.18", true),
            ("5.9.0", false),
            ("6.1.176", false),
            ("", false),
        ] {
            let found =
                wanted_sysctls(release, false).iter().any(|sysctl| sysctl.name.ends_with("conn_reuse_mode"));
            assert_eq!(found, expected, "{release}");
        }
    }

    #[test]
    fn only_kernels_that_are_known_to_be_old_are_reported() {
        for (release, expected) in
            [("3.10.0-1160.el7", true), ("4.0.9", true), ("4.1.0", false), ("6.1.176", false), ("", false)]
        {
            assert_eq!(lacks_conn_reuse_mode(release), expected, "{release}");
        }
    }

    #[test]
    fn only_settings_that_differ_are_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let sys = folder.path().join("sys");
        fs::create_dir_all(sys.join("kernel")).expect("a folder");
        fs::write(sys.join("kernel/osrelease"), "6.1.0\n").expect("writes");
        let error = apply_sysctls(folder.path(), true).expect_err("there is no such setting");
        assert!(error.to_string().contains("net/ipv4/vs/conntrack"), "{error}");
        for Sysctl { name, .. } in wanted_sysctls("6.1.0", true) {
            let path = sys.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, "7\n").expect("writes");
        }
        apply_sysctls(folder.path(), true).expect("writable");
        for Sysctl { name, value } in wanted_sysctls("6.1.0", true) {
            assert_eq!(fs::read_to_string(sys.join(name)).expect("reads").trim(), value, "{name}");
        }
    }
}
