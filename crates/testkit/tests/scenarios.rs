//! Every scenario of `tests/scenarios` on every dataplane.

mod candidates;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use portwarden_testkit::harness::{self, Trial};
use portwarden_testkit::scenario::Scenario;

fn main() -> ExitCode {
    match trials() {
        Ok((trials, remarks)) => harness::main(&trials, &remarks),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One trial for each scenario and dataplane, and a remark for each that is left out.
fn trials() -> Result<(Vec<Trial>, Vec<String>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    let (mut trials, mut remarks) = (Vec::new(), Vec::new());
    for scenario in Scenario::read_all(&folder)?.into_iter().map(Arc::new) {
        scenario.check_dataplanes(&candidates::ALL)?;
        for candidate in candidates::ALL {
            if let Some(reason) = scenario.reason_against(&candidate) {
                remarks.push(format!("not on {}: {}: {}", candidate.name, scenario.name, reason.trim()));
                continue;
            }
            let played = Arc::clone(&scenario);
            trials.push(Trial {
                group: candidate.name.to_owned(),
                name: scenario.name.clone(),
                work: Box::new(move || played.run(candidate)),
            });
        }
    }
    Ok((trials, remarks))
}
