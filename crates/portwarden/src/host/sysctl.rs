//! The sysctls of connection tracking.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{debug, info};

use crate::config::Conntrack;

/// The largest table to request, however many processors there are.
const MOST_FLOWS: u64 = 1 << 20;

/// The limit of tracked connections.
const MAX: &str = "nf_conntrack_max";

/// A sysctl that could not be set.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot set {name} to {value}; in a container or another network namespace than the host's this often cannot be written: set it on the \
     host, or set {option} to 0 to leave it alone"
)]
pub struct SysctlError {
    name: &'static str,
    value: u64,
    option: &'static str,
    #[source]
    source: io::Error,
}

/// The sysctls, as files.
#[derive(Debug, Clone)]
pub struct Kernel {
    proc: PathBuf,
    sys: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Kernel::at(Path::new("/proc"), Path::new("/sys"))
    }
}

/// One value to set.
struct Wanted {
    name: &'static str,
    option: &'static str,
    value: u64,
    /// Whether a higher value stays.
    only_raise: bool,
}

impl Kernel {
    /// With other paths for `/proc` and `/sys`.
    pub fn at(proc: &Path, sys: &Path) -> Self {
        Kernel { proc: proc.to_owned(), sys: sys.to_owned() }
    }

    /// Writes each value that differs. Continues after a failure and returns all of them.
    pub fn set_conntrack(&self, conntrack: &Conntrack) -> Vec<SysctlError> {
        let mut failures = Vec::new();
        for wanted in self.wanted(conntrack) {
            if let Err(source) = self.set(&wanted) {
                let Wanted { name, option, value, .. } = wanted;
                failures.push(SysctlError { name, value, option, source });
            }
        }
        failures
    }

    /// The values that [`Kernel::set_conntrack`] would write: name, present value, new value. Those that cannot be read are left out.
    pub fn pending(&self, conntrack: &Conntrack) -> Vec<(&'static str, u64, u64)> {
        let pending = |wanted: &Wanted| {
            let path = self.proc.join("sys/net/netfilter").join(wanted.name);
            let present: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
            let stays = present == wanted.value || (wanted.only_raise && present > wanted.value);
            (!stays).then_some((wanted.name, present, wanted.value))
        };
        self.wanted(conntrack).iter().filter_map(pending).collect()
    }

    fn wanted(&self, conntrack: &Conntrack) -> Vec<Wanted> {
        let max = self.most_flows(conntrack);
        [
            (MAX, "conntrack.maxPerCore", max),
            (
                "nf_conntrack_tcp_timeout_established",
                "conntrack.tcpEstablishedTimeout",
                seconds(conntrack.tcp_established_timeout),
            ),
            (
                "nf_conntrack_tcp_timeout_close_wait",
                "conntrack.tcpCloseWaitTimeout",
                seconds(conntrack.tcp_close_wait_timeout),
            ),
            ("nf_conntrack_tcp_be_liberal", "conntrack.tcpBeLiberal", conntrack.tcp_be_liberal.then_some(1)),
            ("nf_conntrack_udp_timeout", "conntrack.udpTimeout", seconds(conntrack.udp_timeout)),
            (
                "nf_conntrack_udp_timeout_stream",
                "conntrack.udpStreamTimeout",
                seconds(conntrack.udp_stream_timeout),
            ),
        ]
        .into_iter()
        .filter_map(|(name, option, value)| {
            let only_raise = name == MAX && !conntrack.may_lower_max;
            Some(Wanted { name, option, value: value?, only_raise })
        })
        .collect()
    }

    /// The table size; `None` keeps that of the kernel.
    fn most_flows(&self, conntrack: &Conntrack) -> Option<u64> {
        if conntrack.max_per_core == 0 {
            return None;
        }
        let scaled = u64::from(conntrack.max_per_core) * self.processors();
        // The limit applies before the minimum, as in kube-proxy.
        Some(if scaled > MOST_FLOWS { MOST_FLOWS } else { scaled.max(u64::from(conntrack.min)) })
    }

    /// The processors of the host, not those that this process may use: all of them handle flows.
    fn processors(&self) -> u64 {
        let online = fs::read_to_string(self.sys.join("devices/system/cpu/online")).ok();
        online
            .and_then(|text| count_ranges(text.trim()))
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u64))
    }

    fn set(&self, wanted: &Wanted) -> io::Result<()> {
        let path = self.proc.join("sys/net/netfilter").join(wanted.name);
        let text = wanted.value.to_string();
        let present = fs::read_to_string(&path)?;
        let enough = wanted.only_raise && present.trim().parse().is_ok_and(|now: u64| now > wanted.value);
        if enough {
            debug!(
                present = present.trim(),
                wanted = wanted.value,
                "nf_conntrack_max is already higher, and stays"
            );
            return Ok(());
        }
        if present.trim() != text {
            if wanted.name == MAX {
                info!(nfConntrackMax = wanted.value, "Setting nf_conntrack_max");
            } else {
                info!(entry = format!("net/netfilter/{}", wanted.name), value = wanted.value, "Set sysctl");
            }
            fs::write(&path, &text)?;
        }
        if wanted.name == MAX { self.grow_hash(wanted.value / 4) } else { Ok(()) }
    }

    /// A large table needs many buckets; their number is never reduced.
    fn grow_hash(&self, wanted: u64) -> io::Result<()> {
        let path = self.sys.join("module/nf_conntrack/parameters/hashsize");
        // The parameter, which is written, can be read by root only. The sysctl can be read by every user.
        let readable = self.proc.join("sys/net/netfilter/nf_conntrack_buckets");
        let text = fs::read_to_string(readable).or_else(|_| fs::read_to_string(&path))?;
        let present: u64 = text.trim().parse().map_err(io::Error::other)?;
        if present < wanted {
            info!(conntrackHashsize = wanted, "Setting conntrack hashsize");
            fs::write(&path, wanted.to_string())?;
        }
        Ok(())
    }
}

/// Whole seconds; zero keeps the value of the kernel.
fn seconds(duration: Duration) -> Option<u64> {
    (!duration.is_zero()).then_some(duration.as_secs())
}

/// Counts `0-3,5`.
fn count_ranges(text: &str) -> Option<u64> {
    let one = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    text.split(',').map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Conntrack = Conntrack {
        max_per_core: 0,
        min: 0,
        may_lower_max: true,
        tcp_established_timeout: Duration::ZERO,
        tcp_close_wait_timeout: Duration::ZERO,
        tcp_be_liberal: false,
        udp_timeout: Duration::ZERO,
        udp_stream_timeout: Duration::ZERO,
    };

    struct Host {
        folder: tempfile::TempDir,
    }

    impl Host {
        fn new(processors: &str, hashsize: &str) -> Self {
            let host = Host { folder: tempfile::tempdir().expect("a folder") };
            host.write("sys/devices/system/cpu/online", processors);
            host.write("sys/module/nf_conntrack/parameters/hashsize", hashsize);
            for name in
                ["max", "tcp_timeout_established", "tcp_timeout_close_wait", "tcp_be_liberal", "udp_timeout"]
            {
                host.write(&format!("proc/sys/net/netfilter/nf_conntrack_{name}"), "7\n");
            }
            host.write("proc/sys/net/netfilter/nf_conntrack_buckets", hashsize);
            host
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().expect("has a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.folder.path().join(path)).expect("a file")
        }

        fn kernel(&self) -> Kernel {
            Kernel::at(&self.folder.path().join("proc"), &self.folder.path().join("sys"))
        }
    }

    #[test]
    fn the_number_of_flows_follows_the_processors() {
        let conntrack = |max_per_core, min| Conntrack { max_per_core, min, ..NOTHING };
        for (processors, per_core, min, wanted) in [
            ("0-3", 32768, 131_072, Some(131_072)),
            ("0-7", 32768, 131_072, Some(262_144)),
            ("0,2-3", 32768, 0, Some(98304)),
            ("0-63", 32768, 4_000_000, Some(1 << 20)),
            ("0", 32768, 4_000_000, Some(4_000_000)),
            ("0-7", 0, 131_072, None),
        ] {
            let host = Host::new(processors, "1");
            assert_eq!(
                host.kernel().most_flows(&conntrack(per_core, min)),
                wanted,
                "{processors} {per_core} {min}"
            );
        }
    }

    #[test]
    fn settings_are_written_and_the_hash_grows() {
        let host = Host::new("0-3", "16384");
        let conntrack = Conntrack {
            max_per_core: 32768,
            tcp_established_timeout: Duration::from_millis(86_400_999),
            tcp_be_liberal: true,
            ..NOTHING
        };
        let lines = crate::logging::captured::logged(|| {
            assert!(host.kernel().set_conntrack(&conntrack).is_empty());
        });
        for words in [
            "Setting nf_conntrack_max nfConntrackMax=131072\n",
            "Setting conntrack hashsize conntrackHashsize=32768\n",
            "Set sysctl entry=\"net/netfilter/nf_conntrack_tcp_timeout_established\" value=86400\n",
        ] {
            assert!(lines.contains(words), "{lines}");
        }
        let value = |name: &str| host.read(&format!("proc/sys/net/netfilter/nf_conntrack_{name}"));
        assert_eq!(value("max"), "131072");
        assert_eq!(value("tcp_timeout_established"), "86400");
        assert_eq!(value("tcp_be_liberal"), "1");
        assert_eq!(value("tcp_timeout_close_wait"), "7\n", "zero leaves it alone");
        assert_eq!(host.read("sys/module/nf_conntrack/parameters/hashsize"), "32768");
        host.write("sys/module/nf_conntrack/parameters/hashsize", "99999999");
        host.write("proc/sys/net/netfilter/nf_conntrack_buckets", "99999999");
        host.kernel().set_conntrack(&conntrack);
        assert_eq!(host.read("sys/module/nf_conntrack/parameters/hashsize"), "99999999", "never smaller");
    }

    #[test]
    fn timeouts_of_udp_are_written() {
        let host = Host::new("0-3", "16384");
        host.write("proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream", "7\n");
        let conntrack = Conntrack {
            udp_timeout: Duration::from_secs(20),
            udp_stream_timeout: Duration::from_secs(90),
            ..NOTHING
        };
        assert!(host.kernel().set_conntrack(&conntrack).is_empty());
        let value = |name: &str| host.read(&format!("proc/sys/net/netfilter/nf_conntrack_{name}"));
        assert_eq!((value("udp_timeout"), value("udp_timeout_stream")), ("20".to_owned(), "90".to_owned()));
    }

    /// The kernel lets only root read the number of buckets as a parameter of the module.
    #[test]
    fn the_number_of_buckets_is_read_where_every_user_may_read_it() {
        let host = Host::new("0-3", "32768");
        fs::remove_file(host.folder.path().join("sys/module/nf_conntrack/parameters/hashsize"))
            .expect("removed");
        let conntrack = Conntrack { max_per_core: 32768, ..NOTHING };
        assert!(host.kernel().set_conntrack(&conntrack).is_empty(), "there are enough");
    }

    #[test]
    fn a_higher_limit_stays_unless_the_configuration_names_one() {
        for (may_lower_max, present, after) in
            [(false, "262144", "262144"), (true, "262144", "131072"), (false, "65536", "131072")]
        {
            let host = Host::new("0-3", "99999999");
            host.write("proc/sys/net/netfilter/nf_conntrack_max", present);
            let conntrack = Conntrack { max_per_core: 32768, min: 131_072, may_lower_max, ..NOTHING };
            assert!(host.kernel().set_conntrack(&conntrack).is_empty());
            assert_eq!(host.read("proc/sys/net/netfilter/nf_conntrack_max"), after, "{may_lower_max}");
        }
    }

    #[test]
    fn one_failure_does_not_keep_the_others_from_being_set() {
        let host = Host::new("0-3", "16384");
        let conntrack = Conntrack {
            udp_timeout: Duration::from_secs(20),
            udp_stream_timeout: Duration::from_secs(60),
            tcp_close_wait_timeout: Duration::from_secs(9),
            ..NOTHING
        };
        fs::remove_file(host.folder.path().join("proc/sys/net/netfilter/nf_conntrack_udp_timeout"))
            .expect("removed");
        let failures = host.kernel().set_conntrack(&conntrack);
        let text: Vec<String> = failures.iter().map(ToString::to_string).collect();
        assert_eq!(failures.len(), 2, "{text:?}");
        assert!(
            text[0].contains("nf_conntrack_udp_timeout to 20") && text[0].contains("conntrack.udpTimeout")
        );
        assert_eq!(host.read("proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"), "9");
    }

    #[test]
    fn ranges_are_counted() {
        assert_eq!(count_ranges("0-3"), Some(4));
        assert_eq!(count_ranges("0,2-3,7"), Some(4));
        assert_eq!(count_ranges(""), None);
        assert_eq!(count_ranges("3-1"), None);
    }
}
