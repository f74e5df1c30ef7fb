//! Mode ebpf: programs at a cgroup of this process, which serve only the namespaces of one test.

use std::path::PathBuf;

use anyhow::{Context, Result};
use portwarden_ebpf::{Ebpf, Options as EbpfOptions, Sizes, cleanup};
use portwarden_model::{Dataplane, Family, Layers};
use portwarden_nftables::{Nftables, Options as NftablesOptions};
use portwarden_testkit::bpf;
use portwarden_testkit::netns::Namespace;
use portwarden_testkit::rig::Options;

pub(crate) fn start(options: &Options) -> Result<Vec<Box<dyn Dataplane>>> {
    start_above(options, NftablesOptions::default())
}

pub(crate) fn start_untracked(options: &Options) -> Result<Vec<Box<dyn Dataplane>>> {
    start_above(options, NftablesOptions { untracked_pods: true, ..NftablesOptions::default() })
}

fn start_above(options: &Options, below: NftablesOptions) -> Result<Vec<Box<dyn Dataplane>>> {
    let nftables = Nftables::new(&Family::BOTH, below)?;
    let own = EbpfOptions {
        cgroup: Some(bpf::cgroup()?),
        pin_directory: pin_directory(options)?,
        sizes: Sizes { endpoints: 1024, frontends: 1024, counted_ports: 64 },
        namespaces: Some(options.namespaces.iter().map(Namespace::path).collect()),
        ..EbpfOptions::new(&Family::BOTH)
    };
    let ebpf = Ebpf::new(own, Default::default())?;
    Ok(vec![Box::new(Layers::new(Box::new(nftables), vec![Box::new(ebpf)]))])
}

pub(crate) fn stop(options: &Options) {
    if let Ok(directory) = pin_directory(options)
        && let Err(error) = cleanup(&directory)
    {
        eprintln!("cannot remove {}: {error}", directory.display());
    }
}

fn pin_directory(options: &Options) -> Result<PathBuf> {
    let folder = options.folder.file_name().context("the folder has no name")?;
    bpf::pin_directory(&folder.to_string_lossy())
}
