//! Packs a container image without a container engine: `scripts/image` calls it, `make image` calls that.
//!
//! | file | what |
//! |---|---|
//! | `contents.rs` | which files are in the image |
//! | `tar.rs` | an archive that depends on its contents alone, not on when and by whom it was made |
//! | `layout.rs` | the image: layers, configuration, manifest, index |
//! | `sbom.rs` | the list of everything that is in it, in CycloneDX's form |

mod contents;
mod layout;
mod sbom;
mod tar;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use contents::{Contents, Variant};

const USAGE: &str = "usage: portwarden-image --binary FILE --variant nftables|iptables --output FILE.tar --sbom FILE.json [--tag TAG]";

fn main() -> ExitCode {
    match Order::parse(std::env::args().skip(1)).and_then(|order| order.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The command line.
struct Order {
    binary: PathBuf,
    variant: Variant,
    output: PathBuf,
    sbom: PathBuf,
    tag: String,
}

impl Order {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Order> {
        let (mut binary, mut variant, mut output, mut sbom, mut tag) = (None, None, None, None, None);
        while let Some(name) = arguments.next() {
            let value = arguments.next().with_context(|| format!("{name} needs a value\n{USAGE}"))?;
            match name.as_str() {
                "--binary" => binary = Some(value.into()),
                "--variant" => variant = Some(value.parse()?),
                "--output" => output = Some(value.into()),
                "--sbom" => sbom = Some(value.into()),
                "--tag" => tag = Some(value),
                _ => bail!("unknown option {name}\n{USAGE}"),
            }
        }
        let variant: Variant = variant.with_context(|| format!("--variant is missing\n{USAGE}"))?;
        Ok(Order {
            binary: binary.with_context(|| format!("--binary is missing\n{USAGE}"))?,
            output: output.with_context(|| format!("--output is missing\n{USAGE}"))?,
            sbom: sbom.with_context(|| format!("--sbom is missing\n{USAGE}"))?,
            tag: tag.unwrap_or_else(|| variant.tag()),
            variant,
        })
    }

    fn run(&self) -> Result<()> {
        let contents = Contents::collect(self.variant, &self.binary)?;
        let image = layout::archive(&contents, &self.tag, modification_time()?)?;
        fs::write(&self.output, image).with_context(|| format!("cannot write {}", self.output.display()))?;
        let list = serde_json::to_string_pretty(&sbom::list(&contents, &self.tag)?)?;
        fs::write(&self.sbom, list + "\n").with_context(|| format!("cannot write {}", self.sbom.display()))
    }
}

/// The time of every file in the image, in seconds since 1970: `SOURCE_DATE_EPOCH`, as other build tools read it, or 0.
fn modification_time() -> Result<u64> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text.parse().with_context(|| format!("SOURCE_DATE_EPOCH={text} is not a number")),
        Err(_) => Ok(0),
    }
}
