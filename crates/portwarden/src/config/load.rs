//! From the command line to a validated configuration, reading the file in between.
//!
//! The file is read by a function of the caller, so that a reload goes the same way as the start and tests need no disk.

use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;

use super::decode::{DecodeError, decode};
use super::problems::Problems;
use super::validate::{LoadedConfig, validate};
use crate::flags::{Flags, Program};

/// Why there is no configuration. The process ends with status 1; a running one keeps the configuration it has.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("failed complete: cannot read configuration file {path:?}")]
    Read {
        /// The path given with `--config`.
        path: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file cannot be understood.
    #[error("failed complete: configuration file {path:?}")]
    Decode {
        /// The path given with `--config`.
        path: String,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The configuration is understood but cannot be used.
    #[error(transparent)]
    Validate(#[from] Problems),
}

/// Validates the flags, with the file that they name, if any.
pub fn load(
    program: Program,
    flags: &Flags,
    read: impl FnOnce(&str) -> io::Result<Vec<u8>>,
) -> Result<LoadedConfig, LoadError> {
    load_changed(program, flags, &Flags::default(), read)
}

/// The same, with other values for what `changes` sets, wherever flags or file say it: a question about a change, not a way to start.
pub fn load_changed(
    program: Program,
    flags: &Flags,
    changes: &Flags,
    read: impl FnOnce(&str) -> io::Result<Vec<u8>>,
) -> Result<LoadedConfig, LoadError> {
    let mut flags = flags.clone();
    let file = match flags.config_file() {
        None => {
            flags.values.overlay(&changes.values);
            None
        }
        Some(path) => {
            let path_again = || path.to_owned();
            let bytes = read(path).map_err(|source| LoadError::Read { path: path_again(), source })?;
            let mut file =
                decode(&bytes).map_err(|source| LoadError::Decode { path: path_again(), source })?;
            file.document.overlay(&changes.values);
            flags.values.overlay(&changes.beside_file(program).values);
            Some(file)
        }
    };
    Ok(validate(program, &flags, file.as_ref())?)
}

/// The largest configuration file that is read.
const LARGEST: u64 = 16 << 20;

/// Reads a configuration file. A pipe in its place would be waited for without end, and a file without end would fill the memory.
pub fn read_file(path: &str) -> io::Result<Vec<u8>> {
    // Without waiting for the other end of a pipe; a regular file is read in any case.
    let file = std::fs::File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > LARGEST {
        return Err(io::Error::other(format!("it is larger than {} MiB", LARGEST >> 20)));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Mode, options};

    fn given<T>(key: options::Key<T>, text: &str) -> Flags {
        let mut flags = Flags::default();
        flags.values.set(key, Some(options::Value::Text(text.to_owned())));
        flags
    }

    fn with_config() -> Flags {
        given(options::CONFIG, "/etc/config.yaml")
    }

    fn chain(error: LoadError) -> String {
        format!("{:#}", anyhow::Error::from(error))
    }

    #[test]
    fn a_change_counts_more_than_flags_and_file() {
        let file = |_: &str| {
            Ok(b"kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nmode: iptables\nclusterCIDR: 10.0.0.0/8\n".to_vec())
        };
        let changes = given(options::MODE, "nftables");
        let loaded = load_changed(Program::Portwarden, &with_config(), &changes, file).unwrap();
        assert_eq!(loaded.config.mode, Mode::Nftables);
        assert_eq!(loaded.config.cluster_cidrs.len(), 1, "what does not change stays");
        assert_eq!(loaded.notices, [], "it is not a flag that the file makes void");
        let override_name = given(options::HOSTNAME_OVERRIDE, "node-b");
        let loaded = load_changed(Program::Portwarden, &with_config(), &override_name, file).unwrap();
        assert_eq!(loaded.config.hostname_override.as_deref(), Some("node-b"));
        let flags = given(options::MODE, "iptables");
        let loaded =
            load_changed(Program::Portwarden, &flags, &changes, |path| panic!("read {path}")).unwrap();
        assert_eq!(loaded.config.mode, Mode::Nftables);
    }

    #[test]
    fn without_a_file_nothing_is_read() {
        let loaded = load(Program::KubeProxy, &Flags::default(), |path| panic!("read {path}")).unwrap();
        assert_eq!(loaded.config.mode, Mode::Iptables);
        let empty = given(options::CONFIG, "");
        assert!(load(Program::KubeProxy, &empty, |path| panic!("read {path}")).is_ok());
    }

    #[test]
    fn the_named_file_is_read() {
        let file =
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables";
        let loaded = load(Program::KubeProxy, &with_config(), |path| {
            assert_eq!(path, "/etc/config.yaml");
            Ok(file.as_bytes().to_vec())
        });
        assert_eq!(loaded.unwrap().config.mode, Mode::Nftables);
    }

    #[test]
    fn errors_name_the_file_and_the_reason() {
        let error =
            load(Program::KubeProxy, &with_config(), |_| Err(io::ErrorKind::NotFound.into())).unwrap_err();
        assert_eq!(
            chain(error),
            "failed complete: cannot read configuration file \"/etc/config.yaml\": entity not found"
        );
        let error = load(Program::KubeProxy, &with_config(), |_| Ok(b"[]".to_vec())).unwrap_err();
        let text = chain(error);
        assert!(
            text.starts_with("failed complete: configuration file \"/etc/config.yaml\": failed to decode: "),
            "{text}"
        );
        let flags = given(options::MODE, "x");
        let error = load(Program::KubeProxy, &flags, |_| unreachable!("no file")).unwrap_err();
        assert!(chain(error).starts_with("failed validate: KubeProxyConfiguration.Mode.ProxyMode: "));
    }

    #[test]
    fn only_regular_files_of_a_sane_size_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
        let (pipe, huge, plain) = (path("pipe"), path("huge"), path("plain"));
        nix::unistd::mkfifo(pipe.as_str(), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        std::fs::File::create(&huge).and_then(|file| file.set_len(3 << 30)).expect("a sparse file");
        std::fs::write(&plain, "mode: nftables\n").expect("writes");
        let error = |path: &str| read_file(path).expect_err("refused").to_string();
        assert_eq!(error(&pipe), "it is not a regular file");
        assert_eq!(error(folder.path().to_str().expect("a path")), "it is not a regular file");
        assert_eq!(error(&huge), "it is larger than 16 MiB");
        assert_eq!(read_file(&plain).expect("reads"), b"mode: nftables\n");
    }
}
