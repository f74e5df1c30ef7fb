//! Sets of the real kernel.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

mod common;

use common::{in_namespace, run};
use portwarden_netlink::ipset::Sets;
use portwarden_netlink::route::Route;

#[test]
fn sets_are_found_by_name_and_removed_unless_they_are_used() {
    in_namespace(|| {
        let mut sets = Sets::open().unwrap();
        assert_eq!(sets.names().unwrap(), Vec::<String>::new());
        run("ipset", &["create", "KUBE-CLUSTER-IP", "hash:ip,port"]);
        run("ipset", &["create", "KUBE-NODE-PORT-TCP", "bitmap:port", "range", "0-65535"]);
        run("ipset", &["create", "holder", "list:set"]);
        run("ipset", &["add", "holder", "KUBE-CLUSTER-IP"]);
        let mut names = sets.names().unwrap();
        names.sort();
        assert_eq!(names, ["KUBE-CLUSTER-IP", "KUBE-NODE-PORT-TCP", "holder"]);
        sets.destroy("KUBE-NODE-PORT-TCP").unwrap();
        let error = sets.destroy("KUBE-CLUSTER-IP").unwrap_err();
        assert!(error.to_string().contains("KUBE-CLUSTER-IP"), "{error}");
        sets.destroy("holder").unwrap();
        sets.destroy("KUBE-CLUSTER-IP").unwrap();
        assert_eq!(sets.names().unwrap(), Vec::<String>::new());
        sets.destroy("KUBE-CLUSTER-IP").unwrap();
    });
}

#[test]
fn a_link_is_removed_by_name_once() {
    in_namespace(|| {
        run("ip", &["link", "add", "kube-ipvs0", "type", "bridge"]);
        let mut route = Route::open().unwrap();
        assert!(route.delete_link("kube-ipvs0").unwrap());
        assert!(!route.delete_link("kube-ipvs0").unwrap());
        assert!(route.delete_link("lo").is_err(), "the kernel keeps its own");
    });
}
