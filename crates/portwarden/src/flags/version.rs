//! `--version`: which version is reported, and in which form.

use std::fmt;

/// The minor version of Kubernetes whose kube-proxy this program stands in for.
pub const KUBERNETES_MINOR: u32 = 37;

/// The version reported unless `--version=vX.Y.Z` says otherwise; the part after `+` is ours.
const REPORTED: &str = concat!("v1.37.0+portwarden.", env!("CARGO_PKG_VERSION"));

/// What was asked of `--version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionRequest {
    /// Nothing (`--version=false`).
    Off,
    /// Print it and end.
    Print,
    /// Print all that is known about the build and end.
    Raw,
    /// Report this version instead and go on.
    Report(String),
}

impl VersionRequest {
    /// Reads the value of the flag.
    pub(crate) fn parse(value: &str) -> Result<Self, String> {
        if value == "raw" {
            return Ok(VersionRequest::Raw);
        }
        if value.starts_with('v') {
            return report(value);
        }
        Ok(if super::text::boolean(value)? { VersionRequest::Print } else { VersionRequest::Off })
    }

    /// The line to print before ending, if that was asked for.
    pub(super) fn output(&self) -> Option<String> {
        match self {
            VersionRequest::Off | VersionRequest::Report(_) => None,
            VersionRequest::Print => Some(format!("Kubernetes {REPORTED}")),
            VersionRequest::Raw => Some(raw()),
        }
    }
}

impl fmt::Display for VersionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VersionRequest::Off => "false",
            VersionRequest::Print => "true",
            VersionRequest::Raw => "raw",
            VersionRequest::Report(version) => version,
        })
    }
}

/// The version to report in metrics, user agents and `/statusz`.
pub fn reported_version(request: Option<&VersionRequest>) -> &str {
    match request {
        Some(VersionRequest::Report(version)) => version,
        _ => REPORTED,
    }
}

/// Only the part after the patch number may differ, so that nothing can mistake the program for another release.
fn report(value: &str) -> Result<VersionRequest, String> {
    let core = |version: &str| {
        version.strip_prefix('v').unwrap_or(version).split(['-', '+']).next().map(str::to_owned)
    };
    if value == REPORTED || (core(value) == core(REPORTED) && suffix_is_sound(value)) {
        return Ok(VersionRequest::Report(value.to_owned()));
    }
    Err(format!("version {value:?} must have the same major, minor and patch number as {REPORTED:?}"))
}

/// Semantic versions allow letters, digits, dots and dashes there, without empty parts.
fn suffix_is_sound(version: &str) -> bool {
    let (rest, build) = version.split_once('+').map_or((version, None), |(rest, build)| (rest, Some(build)));
    let pre_release = rest.split_once('-').map(|(_, pre_release)| pre_release);
    let sound = |part: &str| {
        part.split('.').all(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
    };
    build.is_none_or(sound) && pre_release.is_none_or(sound)
}

fn raw() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "version.Info{{Major:\"1\", Minor:\"{KUBERNETES_MINOR}\", EmulationMajor:\"\", EmulationMinor:\"\", \
         MinCompatibilityMajor:\"\", MinCompatibilityMinor:\"\", GitVersion:{REPORTED:?}, GitCommit:\"\", \
         GitTreeState:\"\", BuildDate:\"\", GoVersion:\"\", Compiler:\"rustc\", Platform:\"{}/{architecture}\"}}",
        std::env::consts::OS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_suffix_of_the_version_may_be_changed() {
        for value in ["v1.37.0", "v1.37.0-rc.1", "v1.37.0+k3s1", "v1.37.0-a.b+c", REPORTED] {
            assert_eq!(VersionRequest::parse(value), Ok(VersionRequest::Report(value.to_owned())), "{value}");
        }
        for value in [
            "v1.37",
            "v1.37.1",
            "v1.36.0",
            "v2.37.0",
            "v1.37.0-",
            "v1.37.0+a..b",
            "v1.37.0-ä",
            "v",
            "vv1.37.0",
        ] {
            assert!(VersionRequest::parse(value).is_err(), "{value}");
        }
        let other = VersionRequest::Report("v1.37.0-test".to_owned());
        assert_eq!((reported_version(Some(&other)), reported_version(None)), ("v1.37.0-test", REPORTED));
    }

    #[test]
    fn the_version_is_printed_as_tools_expect_it() {
        assert_eq!(VersionRequest::parse("true").unwrap().output(), Some(format!("Kubernetes {REPORTED}")));
        assert!(
            VersionRequest::parse("raw")
                .unwrap()
                .output()
                .unwrap()
                .starts_with("version.Info{Major:\"1\", Minor:\"37\"")
        );
        assert_eq!(VersionRequest::parse("false").unwrap().output(), None);
        assert!(VersionRequest::parse("maybe").is_err());
    }
}
