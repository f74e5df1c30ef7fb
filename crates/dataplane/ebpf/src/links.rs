//! Attaches programs: links that are pinned, and whose programs are replaced in place.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use tracing::{debug, info};

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::object::LoadedProgram;
use crate::sys::{create_link, link_info, open_pinned, pin, update_link};

/// The links of all programs.
#[derive(Debug)]
pub(crate) struct Links {
    directory: PathBuf,
    programs: Vec<LoadedProgram>,
    /// In the order of the programs; empty until they are attached.
    links: Vec<OwnedFd>,
}

impl Links {
    /// Programs that are not attached yet.
    pub(crate) fn new(directory: PathBuf, programs: Vec<LoadedProgram>) -> Links {
        Links { directory, programs, links: Vec::new() }
    }

    /// Attaches what is not attached, replaces programs of an earlier process, and pins what is not pinned. Returns how many links changed.
    pub(crate) fn ensure(&mut self, cgroup: &Cgroup) -> Result<usize, Error> {
        create_directory(&self.directory)?;
        let mut changed = 0;
        let mut links = Vec::new();
        for (index, program) in self.programs.iter().enumerate() {
            let path = self.directory.join(program.hook.name);
            let own = self.links.get(index).map(OwnedFd::try_clone).transpose().map_err(|source| {
                Error::Pin { action: "duplicate the descriptor of", path: path.clone(), source }
            })?;
            let own = own.filter(|link| is_attached(link, cgroup));
            let (link, new) = match own {
                Some(link) => (link, false),
                None => (attach(program, &path, cgroup)?, true),
            };
            changed += usize::from(new | ensure_pinned(&link, &path)?);
            links.push(link);
        }
        self.links = links;
        if changed > 0 {
            info!(cgroup = %cgroup.path.display(), links = changed, "Attached eBPF programs");
        }
        Ok(changed)
    }
}

impl Links {
    /// What is no longer as [`Links::ensure`] has left it: a link without its cgroup, or without its pin.
    pub(crate) fn damage(&self) -> Option<String> {
        let both = self.programs.iter().zip(&self.links);
        both.into_iter().find_map(|(program, link)| {
            let path = self.directory.join(program.hook.name);
            // The kernel detaches a link from a cgroup that is removed.
            match link_info(link.as_fd()) {
                Ok(info) if info.cgroup != 0 && path.exists() => None,
                Ok(info) if info.cgroup != 0 => Some(format!("the pin {} is gone", path.display())),
                _ => Some(format!("the cgroup of the program {} is gone", program.hook.name)),
            }
        })
    }
}

/// Takes over the link that an earlier process has left, or makes a new one.
fn attach(program: &LoadedProgram, path: &Path, cgroup: &Cgroup) -> Result<OwnedFd, Error> {
    if let Ok(link) = open_pinned(path)
        && is_attached(&link, cgroup)
    {
        match update_link(link.as_fd(), program.fd.as_fd()) {
            Ok(()) => return Ok(link),
            Err(error) => {
                debug!(program = program.hook.name, err = %error, "Cannot replace the program of a link");
            }
        }
    }
    let attach_type = program.hook.attach_type;
    create_link(program.fd.as_fd(), cgroup.directory.as_fd(), attach_type).map_err(|source| Error::Attach {
        program: program.hook.name,
        cgroup: cgroup.path.clone(),
        source,
    })
}

/// Whether a link leads to this cgroup. It does not if the cgroup was removed, or another one is configured now.
fn is_attached(link: &OwnedFd, cgroup: &Cgroup) -> bool {
    link_info(link.as_fd()).is_ok_and(|info| info.cgroup == cgroup.number)
}

/// Pins a link, in place of another one if there is. Returns whether it was not pinned.
fn ensure_pinned(link: &OwnedFd, path: &Path) -> Result<bool, Error> {
    let failed = |source| Error::Pin { action: "pin a link as", path: path.to_owned(), source };
    if let Ok(pinned) = open_pinned(path) {
        let same = |fd: &OwnedFd| link_info(fd.as_fd());
        if matches!((same(&pinned), same(link)), (Ok(a), Ok(b)) if a == b) {
            return Ok(false);
        }
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    pin(link.as_fd(), path).map_err(failed)?;
    Ok(true)
}

/// Makes a directory, unless it is there.
pub(crate) fn create_directory(path: &Path) -> Result<(), Error> {
    match fs::create_dir_all(path) {
        Ok(()) => Ok(()),
        Err(source) => Err(Error::Pin { action: "create the directory", path: path.to_owned(), source }),
    }
}
