//! Every scenario of `tests/scenarios` on every dataplane.

mod candidates;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use portwarden_testkit::harness::{self, Trial};
use portwarden_testkit::scenario::Scenario;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let scenarios = match Scenario::read_all(&folder) {
        Ok(scenarios) => scenarios,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    let (mut trials, mut remarks) = (Vec::new(), Vec::new());
    for scenario in scenarios.into_iter().map(Arc::new) {
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
    harness::main(&trials, &remarks)
}
