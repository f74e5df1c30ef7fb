//! The flags of the running process, for commands that are called without any.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config::{self, LoadedConfig, Source};
use crate::flags::{self, Flags, Program};
use crate::host::Instance;

/// The process that serves this node, and what it was started with.
pub(super) struct RunningFlags {
    process: u32,
    program: Program,
    flags: Flags,
}

impl RunningFlags {
    /// Of the process on this node; `None` if there is none, or if its command line cannot be read.
    pub(super) fn read() -> Option<Self> {
        let process = Instance::other()?.process?;
        let line = fs::read(format!("/proc/{process}/cmdline")).ok()?;
        Self::parse(process, &line)
    }

    fn parse(process: u32, line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line);
        let mut words = line.trim_end_matches('\0').split('\0').map(str::to_owned);
        let program = Program::from_path(&words.next()?);
        let arguments: Vec<String> = words.collect();
        let (flags, positional) = flags::parse_command(&arguments).ok()?;
        positional.is_empty().then_some(RunningFlags { process, program, flags })
    }

    /// The process that has these flags.
    pub(super) fn process(&self) -> u32 {
        self.process
    }

    /// The configuration that they name, with `changes`. Paths are those that the process sees, which may be in a container.
    pub(super) fn config(&self, changes: &Flags) -> anyhow::Result<LoadedConfig> {
        let read = |path: &str| config::read_file(&self.locate(path));
        let mut loaded = config::load_changed(self.program, &self.flags, changes, read)?;
        match &mut loaded.config.source {
            Source::Manifests(path) => *path = self.locate(path),
            Source::Api(client) => {
                client.kubeconfig = client.kubeconfig.as_ref().map(|path| self.locate(path));
            }
        }
        Ok(loaded)
    }

    fn locate(&self, path: &str) -> String {
        let of_process = |name: &str| PathBuf::from(format!("/proc/{}/{name}", self.process));
        let folder = fs::read_link(of_process("cwd")).unwrap_or_default();
        let direct = folder.join(path);
        if direct.exists() {
            return direct.display().to_string();
        }
        let inside = of_process("root").join(direct.strip_prefix(Path::new("/")).unwrap_or(&direct));
        if inside.exists() { inside.display().to_string() } else { path.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::{MANIFESTS, MODE};

    #[test]
    fn a_command_line_is_read_as_the_process_reads_it() {
        let line = b"/usr/local/bin/portwarden\0--manifests\0a b\0--proxy-mode=nftables\0";
        let running = RunningFlags::parse(1, line).expect("flags");
        assert_eq!(running.program, Program::Portwarden);
        assert_eq!(running.flags.values.text(MANIFESTS), "a b");
        assert_eq!(running.flags.values.text(MODE), "nftables");
        let kube_proxy = RunningFlags::parse(1, b"/usr/local/bin/kube-proxy\0--config=c\0").expect("flags");
        assert_eq!(kube_proxy.program, Program::KubeProxy);
        assert!(RunningFlags::parse(1, b"portwarden\0status\0").is_none(), "a command serves no node");
        assert!(RunningFlags::parse(1, b"portwarden\0--no-such-flag\0").is_none());
    }
}
