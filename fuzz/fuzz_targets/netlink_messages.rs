//! Anything the kernel, or someone in its place, could send.
#![no_main]

// The same calls as in the property tests of the netlink crate.
#[path = "../../crates/netlink/tests/common/decoders.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|datagram: &[u8]| decoders::decode_everything(datagram));
