//! Accounting objects of the real kernel.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

mod common;

use common::in_namespace;
use portwarden_netlink::Errno;
use portwarden_netlink::nfacct::{Accounting, Counted};

#[test]
fn accounting_objects_are_made_once_and_read() {
    in_namespace(|| {
        let mut accounting = Accounting::open().unwrap();
        assert_eq!(accounting.read("ct_state_invalid_dropped_pkts").unwrap(), None);
        accounting.ensure("ct_state_invalid_dropped_pkts").unwrap();
        accounting.ensure("ct_state_invalid_dropped_pkts").unwrap();
        let expected = Counted { name: "ct_state_invalid_dropped_pkts".to_owned(), packets: 0, bytes: 0 };
        assert_eq!(accounting.read("ct_state_invalid_dropped_pkts").unwrap(), Some(expected));
    });
}

#[test]
fn a_refusal_names_the_object() {
    in_namespace(|| {
        let name = "a-name-of-more-than-thirty-one-characters";
        let error = Accounting::open().unwrap().ensure(name).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert!(matches!(error.errno(), Some(Errno::ERANGE | Errno::EINVAL)), "{error:?}");
    });
}
