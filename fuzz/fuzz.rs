//! All targets in one program: the environment variable `FUZZ_TARGET` names one of [`targets::ALL`].
#![no_main]

use std::sync::OnceLock;

mod targets;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = targets::ALL.iter().find(|(name, _)| *name == wanted);
        found.unwrap_or_else(|| panic!("FUZZ_TARGET={wanted:?} is no target")).1
    });
    target(input);
});
