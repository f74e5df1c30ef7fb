//! Keeps the maps pinned, so that the next process finds them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use crate::error::Error;
use crate::links::create_directory;
use crate::object::MAPS;
use crate::sys::{open_pinned, pin};

/// The maps of a directory, held open.
#[derive(Debug)]
pub(crate) struct MapPins {
    directory: PathBuf,
    maps: Vec<(&'static str, OwnedFd)>,
}

impl MapPins {
    /// Opens what [`crate::object::load`] has pinned.
    pub(crate) fn open(directory: PathBuf) -> Result<MapPins, Error> {
        let open = |map| {
            let opened = open_pinned(&directory.join(map));
            Ok((map, opened.map_err(|source| Error::Map { action: "open", map, source })?))
        };
        let maps = MAPS.into_iter().map(open).collect::<Result<_, Error>>()?;
        Ok(MapPins { directory, maps })
    }

    /// The first map that is no longer pinned.
    pub(crate) fn missing(&self) -> Option<PathBuf> {
        let mut paths = self.maps.iter().map(|(map, _)| self.directory.join(map));
        paths.find(|path| !path.exists())
    }

    /// Pins what is not pinned. Returns how many maps that were.
    pub(crate) fn ensure(&self) -> Result<usize, Error> {
        create_directory(&self.directory)?;
        let mut pinned = 0;
        for (map, fd) in &self.maps {
            let path = self.directory.join(map);
            if !path.exists() {
                pin(fd.as_fd(), &path).map_err(|source| Error::Pin {
                    action: "pin a map as",
                    path: path.clone(),
                    source,
                })?;
                pinned += 1;
            }
        }
        Ok(pinned)
    }
}
