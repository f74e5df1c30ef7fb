//! `process_*` metrics, read from `/proc` at each scrape.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, Metric, MetricFamily, MetricType};

/// Ticks per second in `/proc`: 100 on every architecture that we build for.
const TICKS: f64 = 100.0;

/// Reads `/proc/self`; values that cannot be read are omitted.
pub(super) struct ProcessCollector {
    started: Option<f64>,
    page: f64,
}

impl ProcessCollector {
    pub(super) fn new() -> Self {
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
        ProcessCollector { started: start_time(), page: page.map_or(4096.0, |bytes| bytes as f64) }
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let stat = Stat::parse(&stat);
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let traffic = fs::read_to_string("/proc/self/net/netstat").unwrap_or_default();
        let open = fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as f64);
        let page = self.page;
        [
            counter(
                "process_cpu_seconds_total",
                "Processor time used, in seconds",
                stat.as_ref().map(|s| s.ticks / TICKS),
            ),
            gauge(
                "process_max_fds",
                "Most file descriptors that may be open",
                limit(&limits, "Max open files"),
            ),
            counter(
                "process_network_receive_bytes_total",
                "Bytes that the network namespace received",
                octets(&traffic, "InOctets"),
            ),
            counter(
                "process_network_transmit_bytes_total",
                "Bytes that the network namespace sent",
                octets(&traffic, "OutOctets"),
            ),
            gauge("process_open_fds", "Open file descriptors", open),
            gauge(
                "process_resident_memory_bytes",
                "Memory in use, in bytes",
                stat.as_ref().map(|s| s.resident * page),
            ),
            gauge(
                "process_start_time_seconds",
                "When the process started, in seconds since the epoch",
                self.started,
            ),
            gauge(
                "process_virtual_memory_bytes",
                "Address space in use, in bytes",
                stat.as_ref().map(|s| s.virtual_bytes),
            ),
            gauge(
                "process_virtual_memory_max_bytes",
                "Most address space that may be used, in bytes",
                limit(&limits, "Max address space"),
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// When this process started, in seconds since the epoch; zero if unknown.
pub fn process_start_time() -> f64 {
    start_time().unwrap_or(0.0)
}

fn start_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + Stat::parse(&stat)?.start / TICKS)
}

/// The fields of `/proc/self/stat` that are used.
#[derive(Debug, PartialEq)]
struct Stat {
    ticks: f64,
    start: f64,
    virtual_bytes: f64,
    resident: f64,
}

impl Stat {
    fn parse(text: &str) -> Option<Stat> {
        // The name of the command may contain blanks and parentheses; everything after the last one is numbers.
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        // The first field after the name is number 3 in proc(5).
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Stat {
            ticks: field(14)? + field(15)?,
            start: field(22)?,
            virtual_bytes: field(23)?,
            resident: field(24)?,
        })
    }
}

/// The soft limit of this name; unlimited is the largest number, as in other exporters.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX as f64) } else { soft.parse().ok() }
}

/// A column of the `IpExt` table, whose first line has names and whose second has numbers.
fn octets(netstat: &str, column: &str) -> Option<f64> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let position = lines.next()?.split_whitespace().position(|name| name == column)?;
    lines.next()?.split_whitespace().nth(position)?.parse().ok()
}

fn counter(name: &str, help: &str, value: Option<f64>) -> Option<MetricFamily> {
    let mut counter = Counter::default();
    counter.set_value(value?);
    let mut metric = Metric::default();
    metric.set_counter(counter);
    Some(family(name, help, MetricType::COUNTER, metric))
}

fn gauge(name: &str, help: &str, value: Option<f64>) -> Option<MetricFamily> {
    let mut gauge = Gauge::default();
    gauge.set_value(value?);
    let mut metric = Metric::default();
    metric.set_gauge(gauge);
    Some(family(name, help, MetricType::GAUGE, metric))
}

fn family(name: &str, help: &str, kind: MetricType, metric: Metric) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(vec![metric]);
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_is_passed_over() {
        let text = "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 17 18 4200 8192 3 0";
        let stat = Stat::parse(text).expect("reads");
        assert_eq!(stat, Stat { ticks: 200.0, start: 4200.0, virtual_bytes: 8192.0, resident: 3.0 });
        assert_eq!(Stat::parse(""), None);
        assert_eq!(Stat::parse("7 (a) R 1"), None);
    }

    #[test]
    fn limits_and_traffic_are_found_by_name() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\nMax address space  unlimited  unlimited  bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(limit(limits, "Max address space"), Some(u64::MAX as f64));
        assert_eq!(limit(limits, "Max stack size"), None);
        let netstat = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 12 34\n";
        assert_eq!((octets(netstat, "InOctets"), octets(netstat, "OutOctets")), (Some(12.0), Some(34.0)));
    }

    #[test]
    fn the_running_process_is_described() {
        let names: Vec<String> =
            ProcessCollector::new().collect().iter().map(|f| f.name().to_owned()).collect();
        assert_eq!(names.len(), 9, "{names:?}");
    }
}
