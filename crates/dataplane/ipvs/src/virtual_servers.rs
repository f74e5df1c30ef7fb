//! Brings virtual and real servers to what is wanted.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Instant;

use portwarden_model::{Count, Family, NamespacedName, Pool, RefusedService};
use portwarden_netlink::Errno;
use portwarden_netlink::error::Answer;
use portwarden_netlink::ipvs::{self, Change, RealServer, ServerKey, VirtualServer, flags};

use crate::drain::{Action, Drains, is_idle};
use crate::error::Error;
use crate::options::Options;
use crate::plan::ServerSettings;
use crate::wanted::{Claim, Installed, Servers};

/// How often servers that changed under our hands are tried again within one sync.
const ATTEMPTS: usize = 3;

/// The number of TCP; only its connections are drained, as in kube-proxy.
const TCP: u16 = 6;

/// The counter of real servers that were removed after they had been drained.
pub(crate) const DRAINED: &str = "ipvs_real_servers_drained_total";

/// Writes what differs for one family.
pub(crate) struct Writer<'a> {
    pub(crate) family: Family,
    pub(crate) options: &'a Options,
    pub(crate) ipvs: &'a mut ipvs::Ipvs,
    pub(crate) servers: &'a mut Servers,
    pub(crate) drains: &'a mut Drains,
    pub(crate) now: Instant,
    pub(crate) written: usize,
    pub(crate) refused: Vec<RefusedService>,
}

/// What has to change at one virtual server.
#[derive(Default)]
struct Work {
    changes: Vec<Change>,
    /// Real servers that leave, whose connections have to be counted.
    leaving: Vec<SocketAddr>,
}

impl Writer<'_> {
    /// Creates and changes what a Service wants.
    pub(crate) fn write(&mut self) -> Result<(), Error> {
        for attempt in 1..=ATTEMPTS {
            let keys = self.servers.to_write();
            if keys.is_empty() {
                return Ok(());
            }
            let inconsistent = self.write_once(&keys, attempt == ATTEMPTS)?;
            if !inconsistent {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Removes what nothing wants. A virtual server takes its real servers along.
    pub(crate) fn delete(&mut self) -> Result<(), Error> {
        let (excluded, keys): (Vec<_>, Vec<_>) =
            self.servers.to_delete().into_iter().partition(|key| self.options.excludes(key.address.ip()));
        let changes: Vec<Change> = keys.iter().map(|key| Change::DeleteServer(*key)).collect();
        let refused = self.apply("deleting virtual servers", &changes)?;
        let failed: HashSet<usize> =
            refused.into_iter().filter(|(_, answer)| !is_absent(answer)).map(|(index, _)| index).collect();
        for (index, key) in keys.into_iter().enumerate() {
            if !failed.contains(&index) {
                self.written += 1;
                self.servers.acknowledge(key, None);
                self.drains.remove_server(key);
            }
        }
        // Never deleted, and of no more interest.
        for key in excluded {
            self.servers.acknowledge(key, None);
            self.drains.remove_server(key);
        }
        Ok(())
    }

    /// Looks at the real servers that leave.
    pub(crate) fn look_at_drains(&mut self) -> Result<Option<Count>, Error> {
        let mut removed = 0;
        for server in self.drains.servers() {
            let found = self.list(&server)?;
            let leaving: Vec<SocketAddr> = self.drains.of(server).collect();
            let mut changes = Vec::new();
            for real in leaving {
                let present = found.get(&real);
                match self.drains.decide(server, real, present, self.now, self.options.drain_limit) {
                    Action::Wait => {}
                    Action::Forget => drop(self.drains.remove(server, real)),
                    Action::Remove => {
                        self.drains.remove(server, real);
                        changes.push(Change::DeleteReal(server, real));
                    }
                }
            }
            self.apply("removing drained real servers", &changes)?;
            removed += changes.len();
        }
        let by = u64::try_from(removed).unwrap_or(u64::MAX);
        Ok((by > 0).then(|| Count { metric: DRAINED, labels: Vec::new(), by }))
    }

    /// Returns whether the kernel differed from what was known, so that another attempt makes sense.
    fn write_once(&mut self, keys: &[ServerKey], last: bool) -> Result<bool, Error> {
        let mut changes = Vec::new();
        let mut ends = Vec::with_capacity(keys.len());
        let mut leaving = Vec::new();
        for key in keys {
            let work = self.work(key)?;
            leaving.extend(work.leaving.into_iter().map(|real| (*key, real)));
            changes.extend(work.changes);
            ends.push(changes.len());
        }
        let refused = self.apply("writing virtual servers", &changes)?;
        self.written += changes.len() - refused.len();
        let mut failures: HashMap<ServerKey, Vec<(usize, Answer)>> = HashMap::new();
        for (index, answer) in refused {
            let position = ends.partition_point(|end| *end <= index);
            if let Some(key) = keys.get(position) {
                failures.entry(*key).or_default().push((index, answer));
            }
        }
        let mut inconsistent = false;
        for key in keys {
            match failures.remove(key) {
                None => self.acknowledge(key),
                Some(failed) => inconsistent |= self.handle_refusals(key, &changes, &failed, last),
            }
        }
        self.remove_or_drain(&leaving)?;
        Ok(inconsistent)
    }

    /// The kernel has what the Service wants.
    fn acknowledge(&mut self, key: &ServerKey) {
        let Some(claim) = self.servers.get(key).and_then(|server| server.claim()) else { return };
        let installed = Installed { settings: Some(claim.settings), reals: Some(claim.reals.clone()) };
        self.servers.acknowledge(*key, Some(installed));
    }

    /// What the kernel refused is read again, and reported if that does not help.
    fn handle_refusals(
        &mut self,
        key: &ServerKey,
        changes: &[Change],
        failed: &[(usize, Answer)],
        last: bool,
    ) -> bool {
        let mut inconsistent = false;
        let mut installed = Some(Installed { settings: None, reals: None });
        for (index, answer) in failed {
            let Some(change) = changes.get(*index) else { continue };
            inconsistent |= matches!(answer.errno, Errno::EEXIST | Errno::ESRCH | Errno::ENOENT);
            match change {
                Change::AddServer(_) if answer.errno != Errno::EEXIST => installed = None,
                Change::EditServer(_) if answer.errno == Errno::ESRCH => installed = None,
                _ => {}
            }
            if (last || !inconsistent)
                && let Some(owner) = self.owner(key)
            {
                let reason = format!("the kernel refused {}: {answer}", ipvs::describe(change));
                self.refused.push(RefusedService { service: owner, reason });
            }
        }
        self.servers.acknowledge(*key, installed);
        inconsistent
    }

    fn owner(&self, key: &ServerKey) -> Option<NamespacedName> {
        Some(self.servers.get(key)?.claim()?.owner().clone())
    }

    fn work(&mut self, key: &ServerKey) -> Result<Work, Error> {
        let Some((claim, installed)) = self
            .servers
            .get(key)
            .and_then(|server| Some((server.claim()?.clone(), server.installed.clone())))
        else {
            return Ok(Work::default());
        };
        let mut work = Work::default();
        let server = self.virtual_server(*key, claim.settings);
        let Some(installed) = installed else {
            work.changes.push(Change::AddServer(server));
            work.changes.extend(claim.reals.iter().map(|real| {
                Change::AddReal(*key, RealServer::masqueraded(real.address(), u32::from(real.weight)))
            }));
            return Ok(work);
        };
        if installed.settings != Some(claim.settings) {
            work.changes.push(Change::EditServer(server));
        }
        match &installed.reals {
            Some(known) => self.compare_with_known(key, &claim, known, &mut work),
            None => self.compare_with_kernel(key, &claim, &mut work)?,
        }
        Ok(work)
    }

    /// The kernel has exactly `known`, and what is being drained.
    fn compare_with_known(&mut self, key: &ServerKey, claim: &Claim, known: &Pool, work: &mut Work) {
        let weights = |pool: &Pool| -> HashMap<SocketAddr, u16> {
            pool.iter().map(|real| (real.address(), real.weight)).collect()
        };
        let (wanted, present) = (weights(&claim.reals), weights(known));
        for real in claim.reals.iter() {
            let server = RealServer::masqueraded(real.address(), u32::from(real.weight));
            match present.get(&server.address) {
                Some(weight) if *weight == real.weight => {}
                Some(_) => work.changes.push(Change::EditReal(*key, server)),
                // It returns while its old connections go on: it only gets its weight again.
                None if self.drains.remove(*key, server.address) => {
                    work.changes.push(Change::EditReal(*key, server));
                }
                None => work.changes.push(Change::AddReal(*key, server)),
            }
        }
        for real in known.iter().filter(|real| !wanted.contains_key(&real.address())) {
            self.leave(key, real.address(), true, work);
        }
    }

    /// What the kernel has is not known.
    fn compare_with_kernel(&mut self, key: &ServerKey, claim: &Claim, work: &mut Work) -> Result<(), Error> {
        let mut found = self.list(key)?;
        for real in claim.reals.iter() {
            let server = RealServer::masqueraded(real.address(), u32::from(real.weight));
            self.drains.remove(*key, server.address);
            match found.remove(&server.address) {
                None => work.changes.push(Change::AddReal(*key, server)),
                Some(present) if RealServer { connections: server.connections, ..present } == server => {}
                Some(_) => work.changes.push(Change::EditReal(*key, server)),
            }
        }
        let mut surplus: Vec<RealServer> = found.into_values().collect();
        surplus.sort_unstable_by_key(|real| real.address);
        for real in surplus {
            if !self.drains.contains(*key, real.address) || real.weight > 0 {
                self.leave(key, real.address, real.weight > 0, work);
            }
        }
        Ok(())
    }

    /// A real server is wanted no more. TCP connections may end by themselves; it first stops getting new ones, so that none begins between
    /// the look at its connections and its removal.
    fn leave(&mut self, key: &ServerKey, real: SocketAddr, has_weight: bool, work: &mut Work) {
        if key.protocol != TCP {
            work.changes.push(Change::DeleteReal(*key, real));
            return;
        }
        if has_weight {
            work.changes.push(Change::EditReal(*key, RealServer::masqueraded(real, 0)));
        }
        work.leaving.push(real);
    }

    fn remove_or_drain(&mut self, leaving: &[(ServerKey, SocketAddr)]) -> Result<(), Error> {
        let mut changes = Vec::new();
        for group in leaving.chunk_by(|(first, _), (second, _)| first == second) {
            let Some((key, _)) = group.first() else { continue };
            let found = self.list(key)?;
            for (_, real) in group {
                match found.get(real) {
                    Some(present) if is_idle(present) => changes.push(Change::DeleteReal(*key, *real)),
                    Some(_) => self.drains.insert(*key, *real, self.now),
                    None => {}
                }
            }
        }
        let refused = self.apply("removing real servers", &changes)?;
        self.written += changes.len() - refused.len();
        Ok(())
    }

    fn virtual_server(&self, key: ServerKey, settings: ServerSettings) -> VirtualServer {
        VirtualServer {
            key,
            scheduler: self.options.scheduler.clone(),
            flags: settings.flags,
            timeout: settings.timeout,
            mask_length: key.full_mask(),
        }
    }

    fn list(&mut self, key: &ServerKey) -> Result<HashMap<SocketAddr, RealServer>, Error> {
        let reals = self.ipvs.real_servers(key);
        let reals = reals.map_err(|source| Error::Kernel {
            action: "listing real servers",
            family: self.family,
            source,
        })?;
        Ok(reals.into_iter().map(|real| (real.address, real)).collect())
    }

    fn apply(&mut self, action: &'static str, changes: &[Change]) -> Result<Vec<(usize, Answer)>, Error> {
        self.ipvs.apply(changes).map_err(|source| Error::Kernel { action, family: self.family, source })
    }
}

fn is_absent(answer: &Answer) -> bool {
    matches!(answer.errno, Errno::ENOENT | Errno::ESRCH)
}

/// What a virtual server of the kernel is, in our terms.
pub(crate) fn installed(server: &VirtualServer, scheduler: &str) -> Installed {
    let usable = server.scheduler == scheduler
        && server.mask_length == server.key.full_mask()
        && server.flags & flags::HASHED != 0;
    let settings =
        usable.then_some(ServerSettings { flags: server.flags & !flags::HASHED, timeout: server.timeout });
    Installed { settings, reals: None }
}
