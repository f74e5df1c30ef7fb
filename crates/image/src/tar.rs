//! Archives in the POSIX format whose bytes depend on nothing but their contents.

use anyhow::{Context, Result, ensure};

const BLOCK: usize = 512;

/// One member of an archive. Owner and group are root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Without a slash at its start or end.
    pub(crate) path: String,
    pub(crate) body: Body,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Folder,
    File {
        data: Vec<u8>,
        executable: bool,
        /// The value of the attribute `security.capability`.
        capability: Option<Vec<u8>>,
    },
    Link(String),
}

/// The archive of these entries, in their order, all of them last changed at `time` (seconds since 1970).
pub(crate) fn archive(entries: &[Entry], time: u64) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    for entry in entries {
        append(&mut archive, entry, time).with_context(|| format!("cannot archive {}", entry.path))?;
    }
    // Two empty blocks end an archive.
    archive.resize(archive.len() + 2 * BLOCK, 0);
    Ok(archive)
}

fn append(archive: &mut Vec<u8>, entry: &Entry, time: u64) -> Result<()> {
    let path = &entry.path;
    match &entry.body {
        Body::Folder => header(archive, &format!("{path}/"), b'5', 0o755, 0, "", time),
        Body::Link(target) => header(archive, path, b'2', 0o777, 0, target, time),
        Body::File { data, executable, capability } => {
            if let Some(value) = capability {
                let record = extended_record("SCHILY.xattr.security.capability", value);
                header(archive, "extended-header", b'x', 0o644, record.len(), "", time)?;
                append_padded(archive, &record);
            }
            header(archive, path, b'0', if *executable { 0o755 } else { 0o644 }, data.len(), "", time)?;
            append_padded(archive, data);
            Ok(())
        }
    }
}

fn header(
    archive: &mut Vec<u8>,
    path: &str,
    kind: u8,
    mode: u64,
    size: usize,
    target: &str,
    time: u64,
) -> Result<()> {
    ensure!(path.len() < 100 && target.len() < 100, "its name has 100 characters or more");
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, path.as_bytes());
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    put(136, format!("{time:011o}").as_bytes());
    // The checksum is calculated with blanks in its own place.
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&block);
    Ok(())
}

fn append_padded(archive: &mut Vec<u8>, data: &[u8]) {
    archive.extend_from_slice(data);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
}

/// A record of an extended header. It starts with its own length, digits included.
fn extended_record(name: &str, value: &[u8]) -> Vec<u8> {
    let rest = 1 + name.len() + 1 + value.len() + 1;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    let mut record = format!("{length} {name}=").into_bytes();
    record.extend_from_slice(value);
    record.push(b'\n');
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        assert_eq!(extended_record("a", b"b"), b"6 a=b\n");
        // With 98 bytes after the digits, the third digit makes room for itself.
        let record = extended_record("a", &[b'x'; 94]);
        assert_eq!(record.len(), 101);
        assert!(record.starts_with(b"101 a=x"));
    }

    #[test]
    fn blocks_are_whole_and_names_are_limited() {
        let file = |path: &str| Entry {
            path: path.to_owned(),
            body: Body::File { data: vec![1; 513], executable: false, capability: None },
        };
        let bytes = archive(&[file("a")], 0).expect("a short name");
        assert_eq!(bytes.len(), BLOCK + 2 * BLOCK + 2 * BLOCK);
        assert!(archive(&[file(&"a".repeat(100))], 0).is_err());
    }
}
