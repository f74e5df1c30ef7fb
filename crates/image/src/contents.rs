//! Which files are in an image, and from which packages they come.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use crate::tar::{Body, Entry};

const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The value of the file attribute `security.capability` for CAP_NET_ADMIN, permitted but not effective: a container that allows the capability
/// passes it to a user other than root, and in one that does not, the program starts nevertheless.
///
/// A revision (2), then permitted and inheritable bits 0 to 31, then 32 to 63, in little-endian words.
const NET_ADMIN_PERMITTED: [u32; 5] = [0x0200_0000, 1 << 12, 0, 0, 0];

/// The two images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// The program and certificates.
    Nftables,
    /// These, and the iptables programs: for modes iptables and ipvs.
    Iptables,
}

impl Variant {
    /// The tag of the image unless the caller has another one.
    pub(crate) fn tag(self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        match self {
            Variant::Nftables => version.to_owned(),
            Variant::Iptables => format!("{version}-iptables"),
        }
    }
}

impl FromStr for Variant {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Variant> {
        match text {
            "nftables" => Ok(Variant::Nftables),
            "iptables" => Ok(Variant::Iptables),
            _ => bail!("unknown variant {text}: nftables or iptables"),
        }
    }
}

/// The files of an image.
#[derive(Debug)]
pub(crate) struct Contents {
    /// In the order in which they are stacked; what changes least comes first.
    pub(crate) layers: Vec<Vec<Entry>>,
    /// Files that were taken from this machine, as they are found here.
    pub(crate) from_packages: BTreeSet<PathBuf>,
}

impl Contents {
    /// Reads the program and, where the variant needs them, files that are installed on this machine.
    pub(crate) fn collect(variant: Variant, binary: &Path) -> Result<Contents> {
        let mut contents = Contents { layers: Vec::new(), from_packages: BTreeSet::new() };
        if variant == Variant::Iptables {
            let mut layer = Layer::default();
            contents.from_packages.extend(layer.add_iptables()?);
            contents.layers.push(layer.finish());
        }
        let mut layer = Layer::default();
        let certificates = Path::new(CERTIFICATES);
        let data = fs::read(certificates).with_context(|| {
            format!("cannot read {CERTIFICATES}; install the certificates, for example: apt-get install ca-certificates")
        })?;
        layer.file(CERTIFICATES, data, false, None);
        contents.from_packages.insert(certificates.to_owned());
        let data = fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
        ensure!(
            is_static(binary)?,
            "{} needs libraries that the image does not have; scripts/image builds a static one",
            binary.display()
        );
        let capability = NET_ADMIN_PERMITTED.iter().flat_map(|word| word.to_le_bytes()).collect();
        layer.file("/usr/local/bin/portwarden", data, true, Some(capability));
        // Called by this name it takes exactly kube-proxy's command line.
        layer.link("/usr/local/bin/kube-proxy", "portwarden");
        contents.layers.push(layer.finish());
        Ok(contents)
    }
}

/// One layer, sorted by path, with the folders that lead to its files.
#[derive(Default)]
struct Layer {
    entries: BTreeMap<String, Body>,
}

impl Layer {
    fn add(&mut self, path: &str, body: Body) {
        let path = path.trim_matches('/');
        for (at, _) in path.match_indices('/') {
            self.entries.entry(path[..at].to_owned()).or_insert(Body::Folder);
        }
        self.entries.insert(path.to_owned(), body);
    }

    fn file(&mut self, path: &str, data: Vec<u8>, executable: bool, capability: Option<Vec<u8>>) {
        self.add(path, Body::File { data, executable, capability });
    }

    fn link(&mut self, path: &str, target: &str) {
        self.add(path, Body::Link(target.to_owned()));
    }

    fn finish(self) -> Vec<Entry> {
        self.entries.into_iter().map(|(path, body)| Entry { path, body }).collect()
    }

    /// The iptables programs in both implementations, what they load, and the program with which they load kernel modules. Returns the files
    /// of this machine that were copied.
    fn add_iptables(&mut self) -> Result<BTreeSet<PathBuf>> {
        for folder in ["bin", "lib", "lib64", "sbin"] {
            self.link(folder, &format!("usr/{folder}"));
            self.add(&format!("usr/{folder}"), Body::Folder);
        }
        // As libraries are found through the links above, folders have one name each.
        let mut wanted: Vec<PathBuf> = Vec::new();
        for program in ["xtables-nft-multi", "xtables-legacy-multi", "kmod"] {
            wanted.push(find_program(program)?);
        }
        let extensions = find_extensions()?;
        wanted.extend(extensions);
        let mut libraries = BTreeSet::new();
        for file in &wanted {
            libraries.extend(needed_libraries(file)?);
        }
        wanted.extend(libraries);
        let mut copied = BTreeSet::new();
        for file in wanted {
            let folder = fs::canonicalize(file.parent().context("a file has a folder")?)?;
            let place = folder.join(file.file_name().context("a file has a name")?);
            let data = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            self.file(&place.to_string_lossy(), data, true, None);
            copied.insert(fs::canonicalize(&file)?);
        }
        for family in ["iptables", "ip6tables"] {
            for action in ["", "-save", "-restore"] {
                // nft without a suffix, as in Debian.
                for (infix, program) in [
                    ("", "xtables-nft-multi"),
                    ("-nft", "xtables-nft-multi"),
                    ("-legacy", "xtables-legacy-multi"),
                ] {
                    self.link(&format!("usr/sbin/{family}{infix}{action}"), program);
                }
            }
        }
        let kmod = find_program("kmod")?;
        let kmod = fs::canonicalize(kmod.parent().context("a folder")?)?.join("kmod");
        self.link("usr/sbin/modprobe", &kmod.to_string_lossy());
        Ok(copied)
    }
}

fn find_program(name: &str) -> Result<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.with_context(|| format!("{name} is not installed; for example: apt-get install iptables kmod"))
}

/// The extensions of iptables: matches and targets, one library each.
fn find_extensions() -> Result<Vec<PathBuf>> {
    let architecture = std::env::consts::ARCH;
    let folders = [format!("/usr/lib/{architecture}-linux-gnu/xtables"), "/usr/lib64/xtables".to_owned()];
    let folder = folders.iter().find(|folder| Path::new(folder).is_dir());
    let folder = folder.with_context(|| format!("no extensions of iptables in {}", folders.join(" or ")))?;
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "so") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn ldd(file: &Path) -> Result<String> {
    let output = Command::new("ldd").arg(file).output().context("cannot run ldd")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

fn is_static(binary: &Path) -> Result<bool> {
    let text = ldd(binary)?;
    Ok(text.contains("statically linked") || text.contains("not a dynamic executable"))
}

/// The libraries that a program or library loads, and the loader itself.
fn needed_libraries(file: &Path) -> Result<Vec<PathBuf>> {
    let text = ldd(file)?;
    ensure!(!text.contains("not found"), "libraries of {} are not installed: {text}", file.display());
    let paths = text.lines().filter_map(|line| {
        // `name => /path (0x...)` or, for the loader, `/path (0x...)`.
        let path = line.split("=>").last()?.split_whitespace().next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    Ok(paths.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_their_files() {
        let mut layer = Layer::default();
        layer.file("/usr/local/bin/portwarden", vec![1], true, None);
        layer.link("/usr/local/bin/kube-proxy", "portwarden");
        let paths: Vec<String> = layer.finish().into_iter().map(|entry| entry.path).collect();
        assert_eq!(
            paths,
            ["usr", "usr/local", "usr/local/bin", "usr/local/bin/kube-proxy", "usr/local/bin/portwarden"]
        );
    }
}
