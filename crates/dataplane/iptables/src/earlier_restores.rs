//! Restores that were running before us: of a proxy that was killed, or that we take over from. What such a restore still writes undoes
//! newer rules, and the legacy variant has no notifications that would show it.

use std::fs;
use std::path::{Path, PathBuf};

/// The restores that were found at the start and still run.
#[derive(Debug, Default)]
pub(crate) struct EarlierRestores(Vec<Restore>);

#[derive(Debug)]
struct Restore {
    id: u32,
    /// Distinguishes it from a later process with the same number.
    start_time: String,
}

impl EarlierRestores {
    /// Looks for restores in the network namespace of the calling thread. Processes that cannot be seen, in other process
    /// namespaces, end with their containers.
    pub(crate) fn find() -> Self {
        let Ok(processes) = fs::read_dir("/proc") else { return EarlierRestores::default() };
        let namespace = fs::read_link("/proc/thread-self/ns/net").ok();
        let restore = |entry: fs::DirEntry| {
            let folder = entry.path();
            let id: u32 = entry.file_name().to_str()?.parse().ok()?;
            let same_namespace = || fs::read_link(folder.join("ns/net")).ok() == namespace;
            (is_restore(&folder) && same_namespace()).then_some(())?;
            Some(Restore { id, start_time: start_time(id)? })
        };
        EarlierRestores(processes.flatten().filter_map(restore).collect())
    }

    /// Whether none is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops those that have ended, and returns their numbers.
    pub(crate) fn take_ended(&mut self) -> Vec<u32> {
        let has_ended = |restore: &mut Restore| start_time(restore.id).as_ref() != Some(&restore.start_time);
        self.0.extract_if(.., has_ended).map(|restore| restore.id).collect()
    }
}

/// By the name it was called with: the programs are links to one file.
fn is_restore(folder: &Path) -> bool {
    let Ok(command) = fs::read(folder.join("cmdline")) else { return false };
    // A script has its own name after that of its interpreter.
    let names = command.split(|byte| *byte == 0).take(2);
    names.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned())).any(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        (name.starts_with("iptables") || name.starts_with("ip6tables")) && name.ends_with("-restore")
    })
}

/// The 22nd field of `stat`; the second one, in parentheses, may contain spaces. A process that has ended but was not waited for
/// counts as gone.
fn start_time(id: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then(|| fields.nth(18).map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_start_time_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let id = child.id();
        assert!(start_time(id).unwrap().parse::<u64>().unwrap() > 0);
        assert_eq!(start_time(id), start_time(id));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(start_time(id), None);
    }
}
