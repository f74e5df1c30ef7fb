//! The nftables dataplane.
