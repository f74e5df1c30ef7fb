//! Every scenario of `tests/scenarios` on every dataplane.

mod candidates;

use std::collections::BTreeMap;
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
    let kernel = candidates::Kernel::present();
    let mut elsewhere: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for scenario in Scenario::read_all(&folder)?.into_iter().map(Arc::new) {
        scenario.check_dataplanes(&candidates::ALL)?;
        for candidate in candidates::ALL {
            if let Some(reason) = kernel.reason_against(&candidate, &scenario) {
                *elsewhere.entry((candidate.name, reason)).or_default() += 1;
                continue;
            }
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
    let elsewhere = elsewhere.into_iter();
    remarks.extend(elsewhere.map(|((name, reason), count)| format!("{count} scenarios of {name}: {reason}")));
    Ok((trials, remarks))
}
