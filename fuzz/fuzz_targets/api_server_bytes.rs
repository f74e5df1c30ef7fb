//! Anything an API server, or someone in its place, could send.
#![no_main]

// The same calls as in the property tests of the source crate.
#[path = "../../crates/source/tests/support/decoders.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    // The first byte says in how large pieces the rest arrives: small ones reach every place where input may be incomplete.
    let Some((piece, bytes)) = input.split_first() else { return };
    decoders::decode_everything(bytes, usize::from(*piece) + 1);
});
