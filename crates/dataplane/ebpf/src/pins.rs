//! Keeps the maps pinned, so that the next process finds them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use crate::error::Error;
use crate::links::create_directory;
use crate::object::{SOCKET_MAPS, TABLES};
use crate::options::Options;
use crate::sys::{open_pinned, pin};

/// All maps and where they are pinned, held open.
#[derive(Debug)]
pub(crate) struct MapPins {
    directories: [PathBuf; 2],
    maps: Vec<(PathBuf, OwnedFd)>,
}

impl MapPins {
    /// Opens what [`crate::object::load`] has pinned.
    pub(crate) fn open(options: &Options) -> Result<MapPins, Error> {
        let open = |map| {
            let path = options.map_path(map);
            let opened = open_pinned(&path).map_err(|source| Error::Map { action: "open", map, source })?;
            Ok((path, opened))
        };
        let maps = TABLES.into_iter().chain(SOCKET_MAPS).map(open).collect::<Result<_, Error>>()?;
        Ok(MapPins { directories: [options.table_directory(), options.socket_directory()], maps })
    }

    /// The first map that is no longer pinned.
    pub(crate) fn missing(&self) -> Option<PathBuf> {
        self.maps.iter().map(|(path, _)| path).find(|path| !path.exists()).cloned()
    }

    /// Pins what is not pinned. Returns how many maps that were.
    pub(crate) fn ensure(&self) -> Result<usize, Error> {
        self.directories.iter().try_for_each(|directory| create_directory(directory))?;
        let mut pinned = 0;
        for (path, fd) in self.maps.iter().filter(|(path, _)| !path.exists()) {
            pin(fd.as_fd(), path).map_err(|source| Error::Pin {
                action: "pin a map as",
                path: path.clone(),
                source,
            })?;
            pinned += 1;
        }
        Ok(pinned)
    }
}
