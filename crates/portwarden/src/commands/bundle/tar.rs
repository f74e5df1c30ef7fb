//! Writes a tar archive: the few fields of the format that plain files need.

use std::io::{self, Write};

const BLOCK: usize = 512;

/// An archive that is being written.
pub(super) struct Archive<W: Write> {
    out: W,
    folder: String,
    seconds: u64,
}

impl<W: Write> Archive<W> {
    /// All files get this folder and this time (seconds since 1970).
    pub(super) fn new(out: W, folder: &str, seconds: u64) -> Self {
        Archive { out, folder: folder.to_owned(), seconds }
    }

    /// Adds a file. Longer names than the format allows are cut.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut path = format!("{}/{name}", self.folder);
        path.truncate(path.floor_char_boundary(100));
        let mut header = [0_u8; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, path.as_bytes());
        put(100, b"0000600\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, format!("{:011o}\0", self.seconds).as_bytes());
        // The checksum is computed with blanks in its place.
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(content)?;
        let rest = content.len() % BLOCK;
        if rest > 0 {
            self.out.write_all(&[0; BLOCK][..BLOCK - rest])?;
        }
        Ok(())
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }
}
