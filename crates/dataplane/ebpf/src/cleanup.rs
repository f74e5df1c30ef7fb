//! Removes what this mode has left in the kernel.

use std::fs;
use std::io;
use std::path::Path;

use tracing::debug;

use crate::error::Error;
use crate::options::{Options, link_directory};

/// Detaches the programs and removes the maps of a pin directory, also those of an earlier process. Returns whether there were any. Programs of others,
/// and sockets that are open, are left alone.
pub fn cleanup(pin_directory: &Path) -> Result<bool, Error> {
    let mut found = false;
    // Links first: without maps, the programs would go on with what they hold.
    found |= remove_tree(&link_directory(pin_directory))?;
    for directory in map_directories(pin_directory) {
        found |= remove_tree(&directory)?;
    }
    match fs::remove_dir(pin_directory) {
        Ok(()) => {}
        // Something else in it is not ours.
        Err(error) => debug!(path = %pin_directory.display(), err = %error, "The pin directory stays"),
    }
    Ok(found)
}

/// Whether programs are pinned in a directory, by this process or another.
pub fn is_attached(pin_directory: &Path) -> bool {
    fs::read_dir(link_directory(pin_directory)).is_ok_and(|mut entries| entries.next().is_some())
}

/// Removes the maps of other versions and sizes, which no program uses any more.
pub(crate) fn remove_other_maps(options: &Options) {
    let own = [options.table_directory(), options.socket_directory()];
    for directory in map_directories(&options.pin_directory).filter(|directory| !own.contains(directory)) {
        if let Err(error) = remove_tree(&directory) {
            debug!(err = %error, "Cannot remove maps of an earlier version");
        }
    }
}

fn map_directories(pin_directory: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    let entries = fs::read_dir(pin_directory).into_iter().flatten().flatten();
    let is_ours = |name: &str| name.starts_with("maps-v") || name.starts_with("sockets-v");
    entries.filter(move |entry| is_ours(&entry.file_name().to_string_lossy())).map(|entry| entry.path())
}

fn remove_tree(path: &Path) -> Result<bool, Error> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Pin { action: "remove", path: path.to_owned(), source }),
    }
}
