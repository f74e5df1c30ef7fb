//! From the command line to a validated configuration, reading the file in between.
//!
//! The file is read by a function of the caller, so that a reload goes the same way as the start and tests need no disk.

use std::io;

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
    let file = match flags.config_file() {
        None => None,
        Some(path) => {
            let path_again = || path.to_owned();
            let bytes = read(path).map_err(|source| LoadError::Read { path: path_again(), source })?;
            Some(decode(&bytes).map_err(|source| LoadError::Decode { path: path_again(), source })?)
        }
    };
    Ok(validate(program, flags, file.as_ref())?)
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
}
