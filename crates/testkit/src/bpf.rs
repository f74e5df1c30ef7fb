//! A place for eBPF programs under test: a cgroup of this process, and directories on a BPF file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

const FILE_SYSTEM: &str = "/sys/fs/bpf";
const PREFIX: &str = "portwarden-test-";

/// Moves this process into a cgroup of its own, so that programs see nothing else, and returns it.
///
/// A process cannot remove the cgroup that it is in; the next test process does.
pub fn cgroup() -> Result<PathBuf> {
    static MOVED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let moved = MOVED.get_or_init(|| move_to_cgroup().map_err(|error| format!("{error:#}")));
    moved.clone().map_err(anyhow::Error::msg)
}

/// A path on a BPF file system that no other test uses. The name must be unique in this process.
pub fn pin_directory(name: &str) -> Result<PathBuf> {
    static MOUNTED: OnceLock<Result<(), String>> = OnceLock::new();
    let mounted = MOUNTED.get_or_init(|| mount_file_system().map_err(|error| format!("{error:#}")));
    mounted.clone().map_err(anyhow::Error::msg)?;
    Ok(Path::new(FILE_SYSTEM).join(format!("{PREFIX}{}-{}", process::id(), name.replace(['.', '/'], ""))))
}

/// Minimal systems do not mount it at boot.
fn mount_file_system() -> Result<()> {
    if mount_point("bpf", |point| point == FILE_SYSTEM)?.is_none() {
        mount(Some("bpf"), FILE_SYSTEM, Some("bpf"), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("cannot mount {FILE_SYSTEM}; run as root"))?;
    }
    remove_abandoned(Path::new(FILE_SYSTEM), |path| drop(fs::remove_dir_all(path)))
}

fn move_to_cgroup() -> Result<PathBuf> {
    let root = mount_point("cgroup2", |_| true)?;
    let root =
        root.context("no cgroup v2 is mounted; run as root: mount -t cgroup2 cgroup2 /sys/fs/cgroup")?;
    remove_abandoned(&root, |path| drop(fs::remove_dir(path)))?;
    let own = root.join(format!("{PREFIX}{}", process::id()));
    fs::create_dir_all(&own)
        .with_context(|| format!("cannot make the cgroup {}; run as root", own.display()))?;
    let members = own.join("cgroup.procs");
    fs::write(&members, "0").with_context(|| format!("cannot write to {}", members.display()))?;
    Ok(own)
}

fn mount_point(kind: &str, wanted: impl Fn(&str) -> bool) -> Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    let mut points = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        (fields.next()? == kind && wanted(point)).then(|| PathBuf::from(point))
    });
    Ok(points.next())
}

/// Removes what test processes that are gone have left.
fn remove_abandoned(folder: &Path, remove: impl Fn(&Path)) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            remove(&path);
        }
    }
    Ok(())
}
