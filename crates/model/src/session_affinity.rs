//! `sessionAffinity: ClientIP`: for how long a client keeps its endpoint.

use std::num::NonZeroU32;

use crate::manifest;
use crate::problem::Problems;

/// The API's default timeout, three hours.
const DEFAULT_SECONDS: u32 = 10_800;

/// The timeout in seconds; `None` without affinity.
pub(crate) fn parse(spec: &manifest::ServiceSpec, problems: &mut Problems) -> Option<NonZeroU32> {
    if spec.session_affinity != "ClientIP" {
        return None;
    }
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = match config.and_then(|client| client.timeout_seconds) {
        Some(seconds) => u32::try_from(seconds).unwrap_or(0),
        None => DEFAULT_SECONDS,
    };
    NonZeroU32::new(seconds).or_else(|| {
        problems.add(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format!("must be above 0; {DEFAULT_SECONDS} is used"),
        );
        NonZeroU32::new(DEFAULT_SECONDS)
    })
}
