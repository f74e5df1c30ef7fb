//! The dataplane: opens sockets, leads traffic to them, then closes what nothing leads to any more.

mod family;
mod sockets;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portwarden_model::{Changes, Dataplane, Desired, Family, Notification, PerFamily, Report, SyncError};
use portwarden_xtables::{Programs, Variant};
use tracing::{info, warn};

use crate::core::{Counters, Drain, Limits, Shared, Workers};
use crate::error::Error;
use crate::ports::Ports;
use crate::redirect::{Redirect, RedirectError, Settings, iptables, nftables};
use family::FamilyState;

/// How long sockets stay open after their dataplane was dropped or the node got another address. A reload drops a dataplane just before the next one opens
/// its sockets, which takes a while on a busy node; and connections that were redirected before may still be under way.
const GRACE: Duration = Duration::from_secs(5);

/// How often a dataplane that was dropped looks whether it is still needed.
const CHECK: Duration = Duration::from_millis(200);

/// An endpoint that answers within 50 ms can take ten thousand connections a second from this node; one that does not answer holds no more than
/// this many descriptors.
pub(crate) const DIALS_PER_ENDPOINT: u32 = 512;

/// What only this mode has to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// The families to serve.
    pub families: Vec<Family>,
    /// The address of all sockets; `None` or unspecified means the node's.
    pub bind_address: Option<IpAddr>,
    /// The ports of all sockets; `None` means that the kernel chooses.
    pub port_range: Option<RangeInclusive<u16>>,
    /// How long a UDP session may be idle.
    pub udp_timeout: Duration,
    /// How long connections may go on after the dataplane is dropped.
    pub drain: Duration,
    /// The bit of the packet mark that our own connections to endpoints carry, 0 to 31.
    pub mark_bit: u8,
    /// Whether node ports answer on loopback addresses, where `nodePortAddresses` includes them.
    pub loopback_node_ports: bool,
    /// What leads connections to our sockets.
    pub redirection: Redirection,
    /// How many dials one endpoint of a service port may have in flight; others wait or go to another endpoint.
    pub dials_per_endpoint: u32,
    /// How often the rules are compared with the kernel where it does not notify us of changes by other processes.
    pub sync_period: Duration,
}

/// What leads connections to our sockets.
#[derive(Debug, Clone, Default)]
pub enum Redirection {
    /// nf_tables where the kernel has it, else the iptables programs.
    #[default]
    Detect,
    /// These iptables programs.
    Iptables(Box<PerFamily<Programs>>),
}

impl Options {
    /// kube-proxy's defaults.
    pub fn new(families: &[Family]) -> Self {
        Options {
            families: families.to_vec(),
            bind_address: None,
            port_range: None,
            udp_timeout: Duration::from_millis(250),
            drain: Duration::from_secs(30),
            mark_bit: 14,
            loopback_node_ports: true,
            redirection: Redirection::Detect,
            dials_per_endpoint: DIALS_PER_ENDPOINT,
            sync_period: Duration::from_secs(30),
        }
    }
}

fn open_redirect(options: &Options, settings: Settings) -> Result<Redirect, Error> {
    let families = &options.families;
    let programs = match &options.redirection {
        Redirection::Iptables(programs) => PerFamily::clone(programs),
        Redirection::Detect => PerFamily::from_fn(|family| Programs::new(family, Variant::Installed)),
    };
    let iptables = || Redirect::iptables(settings, families, programs);
    let nftables = match &options.redirection {
        Redirection::Iptables(_) => return iptables().map_err(Error::Open),
        Redirection::Detect => Redirect::nftables(settings, families),
    };
    let error = match nftables {
        Ok(redirect) => return Ok(redirect),
        Err(error) => error,
    };
    match iptables() {
        Ok(redirect) => {
            info!(err = %error, "Redirecting connections by iptables, since nf_tables does not work here");
            Ok(redirect)
        }
        Err(iptables) => {
            Err(Error::NoRedirection { nftables: Box::new(error), iptables: Box::new(iptables) })
        }
    }
}

/// The userspace dataplane of both families.
#[derive(Debug)]
pub struct Userspace {
    context: Context,
    families: PerFamily<FamilyState>,
}

/// What both families share.
#[derive(Debug)]
struct Context {
    options: Options,
    shared: Arc<Shared>,
    workers: Workers,
    redirect: Redirect,
    ports: Ports,
}

impl Userspace {
    /// Connects to the kernel and starts the threads that move bytes, in the network namespace of the calling thread. Nothing is redirected yet.
    /// `counters` and `drain` outlive it.
    pub fn new(options: Options, counters: Arc<Counters>, drain: &Drain) -> Result<Self, Error> {
        if let Some(address) = options.bind_address.filter(IpAddr::is_loopback) {
            return Err(Error::LoopbackBindAddress(address));
        }
        let mark = 1 << (options.mark_bit % 32);
        let settings = Settings { mark, loopback_node_ports: options.loopback_node_ports };
        let redirect = open_redirect(&options, settings)?;
        let limits = Limits::of_process();
        let workers = Workers::start(&limits, options.drain, drain).map_err(Error::Start)?;
        let shared = Arc::new(Shared {
            limits,
            counters,
            mark: Some(mark),
            dials_per_endpoint: options.dials_per_endpoint.max(1),
        });
        let ports = Ports::new(options.port_range.clone());
        Ok(Userspace {
            context: Context { options, shared, workers, redirect, ports },
            families: PerFamily::from_fn(FamilyState::new),
        })
    }
}

/// The rules stay, so the sockets stay open until the next process or dataplane has them and serves, or there is nothing left to wait for.
impl Drop for Userspace {
    fn drop(&mut self) {
        let Userspace { context, families } = self;
        for state in [&mut families.v4, &mut families.v6] {
            let open = std::mem::replace(state, FamilyState::new(state.family()));
            let relieved = open.end();
            let limits = context.shared.limits.clone();
            context.workers.linger(open, async move {
                let Some(mut relieved) = relieved else { return };
                let grace = Instant::now() + GRACE;
                while !*relieved.borrow_and_update() && (Instant::now() < grace || !limits.is_idle()) {
                    // Whatever happened, it looks again.
                    let _ = tokio::time::timeout(CHECK, relieved.changed()).await;
                }
            });
        }
    }
}

impl Dataplane for Userspace {
    fn families(&self) -> &[Family] {
        &self.context.options.families
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, now: Instant) -> Result<Report, SyncError> {
        Ok(self.families[desired.family].sync(&mut self.context, desired, changes, now)?)
    }

    fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.context.redirect.watch_fd().into_iter().collect()
    }

    fn poll(&mut self, _now: Instant) -> Vec<Notification> {
        match self.context.redirect.tampering() {
            Ok(found) => {
                let tampered = |(family, what): (Family, &Option<String>)| {
                    Some(Notification::Tampered { family, what: what.clone()? })
                };
                found.iter().filter_map(tampered).collect()
            }
            Err(error) => {
                warn!(err = %error, "Cannot read notifications of nftables");
                let what = || "notifications could not be read".to_owned();
                Family::BOTH.map(|family| Notification::Tampered { family, what: what() }).into()
            }
        }
    }

    fn full_sync_interval(&self, _: &Desired) -> Option<Duration> {
        let hour = Duration::from_secs(3600);
        Some(if self.context.redirect.is_notified() { hour } else { self.context.options.sync_period })
    }
}

/// Removes the redirection rules of a family, also those of an earlier process. Returns whether there were any.
pub fn cleanup(family: Family) -> Result<bool, Error> {
    let failed = |source: RedirectError| Error::Cleanup { family, source };
    let by_nftables = nftables::cleanup(family).map_err(|error| failed(error.into()))?;
    let by_iptables = iptables::cleanup(family).map_err(|error| failed(error.into()))?;
    Ok(by_nftables || by_iptables)
}
