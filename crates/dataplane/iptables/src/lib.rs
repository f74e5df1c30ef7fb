//! The iptables dataplane.
