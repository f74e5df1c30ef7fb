//! Verbosity: one number for all files and exceptions for single ones. Both can change while the process runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter as LayerFilter};

/// The verbosity from which on libraries log, too.
const LIBRARIES_FROM: u32 = 6;

/// `--v` and `--vmodule`.
#[derive(Debug, Default)]
pub struct Verbosity {
    all: AtomicU32,
    patterns: RwLock<Vec<Pattern>>,
}

/// One item of `--vmodule`: a pattern of file names, and their verbosity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// The name of a file without extension, or its path if it has a `/`; `*` and `?` are wildcards.
    pub file: String,
    /// Their verbosity.
    pub verbosity: u32,
}

impl Verbosity {
    /// `all` is the verbosity of files without a pattern.
    pub fn new(all: u32, patterns: Vec<Pattern>) -> Arc<Self> {
        Arc::new(Verbosity { all: AtomicU32::new(all), patterns: RwLock::new(patterns) })
    }

    /// The number for all files.
    pub fn get(&self) -> u32 {
        self.all.load(Ordering::Relaxed)
    }

    /// Changes the number for all files, at once.
    pub fn set(&self, all: u32) {
        self.all.store(all, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    /// Changes the exceptions, at once.
    pub fn set_patterns(&self, patterns: Vec<Pattern>) {
        *self.patterns.write().unwrap_or_else(PoisonError::into_inner) = patterns;
        tracing::callsite::rebuild_interest_cache();
    }

    fn allows(&self, metadata: &Metadata<'_>) -> bool {
        let needed = needed(metadata);
        let all = self.get();
        if all >= needed {
            return true;
        }
        let Some(file) = metadata.file() else { return false };
        let patterns = self.patterns.read().unwrap_or_else(PoisonError::into_inner);
        let first = patterns.iter().find(|pattern| pattern.matches(file));
        first.is_some_and(|pattern| pattern.verbosity >= needed)
    }

    fn most(&self) -> u32 {
        let patterns = self.patterns.read().unwrap_or_else(PoisonError::into_inner);
        patterns.iter().map(|pattern| pattern.verbosity).max().unwrap_or(0).max(self.get())
    }
}

impl Pattern {
    fn matches(&self, path: &str) -> bool {
        let path = path.strip_suffix(".rs").unwrap_or(path);
        let subject = if self.file.contains('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
        glob(self.file.as_bytes(), subject.as_bytes())
    }
}

/// The verbosity that a line needs: INFO and above 0, DEBUG 2, TRACE 4.
fn needed(metadata: &Metadata<'_>) -> u32 {
    let ours = metadata.target().starts_with("portwarden");
    match *metadata.level() {
        Level::ERROR | Level::WARN => 0,
        _ if !ours => LIBRARIES_FROM,
        Level::INFO => 0,
        Level::DEBUG => 2,
        Level::TRACE => 4,
    }
}

/// Filters events by verbosity.
pub(super) struct Filter(pub(super) Arc<Verbosity>);

impl<S: Subscriber> LayerFilter<S> for Filter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.0.allows(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.0.allows(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.0.most() {
            0 | 1 => LevelFilter::INFO,
            2 | 3 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }
}

/// `*` for any characters, `?` for one.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => {
            (0..=text.len()).any(|skip| text.get(skip..).is_some_and(|text| glob(rest, text)))
        }
        Some((b'?', rest)) => text.split_first().is_some_and(|(_, text)| glob(rest, text)),
        Some((first, rest)) => {
            text.split_first().is_some_and(|(other, text)| other == first && glob(rest, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_or_paths() {
        let pattern = |file: &str| Pattern { file: file.to_owned(), verbosity: 4 };
        assert!(pattern("pace").matches("crates/portwarden/src/engine/pace.rs"));
        assert!(pattern("p?c*").matches("src/engine/pace.rs"));
        assert!(!pattern("pace").matches("src/engine/pacer.rs"));
        assert!(pattern("*/engine/*").matches("src/engine/pace.rs"));
        assert!(!pattern("*/engine/*").matches("src/health/pace.rs"));
    }
}
