//! Finds the root of cgroup v2.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};

use crate::error::Error;

/// A cgroup, held open.
#[derive(Debug)]
pub(crate) struct Cgroup {
    pub(crate) path: PathBuf,
    pub(crate) directory: File,
    /// The kernel's number of it, which links report.
    pub(crate) number: u64,
}

impl Cgroup {
    /// Opens a given cgroup, or the root as mounted on this host.
    pub(crate) fn open(given: Option<&Path>) -> Result<Cgroup, Error> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => find_cgroup_root()?.ok_or(Error::NoCgroup)?,
        };
        let failed = |source| Error::Cgroup { path: path.clone(), source };
        let directory = File::open(&path).map_err(failed)?;
        let kind = fstatfs(&directory).map_err(|errno| failed(errno.into()))?.filesystem_type();
        if kind != CGROUP2_SUPER_MAGIC {
            return Err(failed(io::Error::other("it is not on a file system of cgroup v2")));
        }
        let number = directory.metadata().map_err(failed)?.ino();
        Ok(Cgroup { path, directory, number })
    }
}

/// Where cgroup v2 is mounted, if it is. In a container, the host's hierarchy takes precedence over the container's own part.
pub fn find_cgroup_root() -> Result<Option<PathBuf>, Error> {
    const PATH: &str = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(PATH).map_err(|source| Error::Pin {
        action: "read",
        path: PATH.into(),
        source,
    })?;
    Ok(from_mountinfo(&text))
}

fn from_mountinfo(text: &str) -> Option<PathBuf> {
    let mounts = text.lines().filter_map(|line| {
        // id parent device ROOT MOUNT-POINT options ... - TYPE source options
        let (fields, rest) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (rest.split(' ').next()? == "cgroup2").then_some((root, point))
    });
    // Above the own part: "/..", "/../..". The more, the higher.
    let height = |root: &str| root.matches("/..").count();
    let highest = mounts.reduce(|best, next| if height(next.0) > height(best.0) { next } else { best });
    highest.map(|(_, point)| PathBuf::from(unescape(point)))
}

/// Spaces and such are written in octal: `\040`.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_hierarchy_is_found() {
        let v1 = "33 24 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n";
        let v2 = "42 24 0:39 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let host = "43 24 0:39 /../../.. /host/my\\040cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(from_mountinfo(v1), None);
        assert_eq!(from_mountinfo(&format!("{v1}{v2}")), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(from_mountinfo(&format!("{v2}{host}")), Some("/host/my cgroup".into()));
    }

    #[test]
    fn what_is_no_cgroup_is_named() {
        for path in ["/tmp", "/nowhere/at/all"] {
            let error = Cgroup::open(Some(Path::new(path))).expect_err("not a cgroup").to_string();
            assert!(error.contains(path) && error.contains("--ebpf-cgroup-root"), "{error}");
        }
    }
}
