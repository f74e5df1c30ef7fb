//! What a file may look like, and what is said about one that may not.

use proptest::prelude::*;

use super::*;
use crate::config::duration::GoDuration;
use crate::config::options::{
    BIND_ADDRESS, BURST, CONNTRACK_MAX_PER_CORE, CONNTRACK_MIN, IPTABLES_MASQUERADE_BIT,
    IPTABLES_MIN_SYNC_PERIOD, IPTABLES_SYNC_PERIOD, Key, LOG_FLUSH_FREQUENCY, MODE, QPS, UDP_IDLE_TIMEOUT,
};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn fields(fields: &str) -> Result<Decoded, DecodeError> {
    decode(format!("{HEAD}{fields}").as_bytes())
}

fn refused(text: &str) -> String {
    decode(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn json_and_yaml_say_the_same() {
    let yaml = fields("mode: nftables\nconntrack:\n  min: 5\n").unwrap();
    let json = "{\"kind\": \"KubeProxyConfiguration\",\n\t\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\",\n\t\"mode\": \"nftables\", \"conntrack\": {\"min\": 5}}";
    assert_eq!(decode(json.as_bytes()).unwrap(), yaml);
    assert_eq!(yaml.document.value(CONNTRACK_MIN), Some(&Value::Int(5)));
    assert_eq!(yaml.remarks, []);
}

#[test]
fn only_the_first_document_is_read() {
    let decoded = fields("mode: nftables\n---\nmode: [ never closed").unwrap();
    assert_eq!(decoded.document.text(MODE), "nftables");
}

#[test]
fn a_file_must_say_what_it_is() {
    assert_eq!(
        refused(""),
        "failed to decode: expected a mapping with `apiVersion: kubeproxy.config.k8s.io/v1alpha1` and `kind: \
         KubeProxyConfiguration`, found an empty file"
    );
    assert!(refused("# only a comment\n").contains("found nothing"), "{}", refused("# only a comment\n"));
    assert!(refused("[]").contains("found a list"));
    assert!(refused("just text").contains("found the text \"just text\""));
    assert!(refused("mode: x").contains("has no `kind`"));
    assert!(refused("kind: KubeProxyConfiguration").contains("has no `apiVersion`"));
    for (kind, version) in [
        ("KubeProxyConfiguration", "kubeproxy.config.k8s.io/v1"),
        ("KubeProxyConfiguration", "v1alpha1"),
        ("kubeproxyconfiguration", API_VERSION),
        ("KubeletConfiguration", "kubelet.config.k8s.io/v1beta1"),
    ] {
        let error = refused(&format!("kind: {kind}\napiVersion: {version}"));
        assert!(
            error.contains(&format!("no kind {kind:?} is registered for version {version:?}")),
            "{error}"
        );
    }
}

#[test]
fn what_is_no_yaml_is_refused_with_its_place() {
    let error = refused("a: b: c\n");
    assert!(
        error.starts_with("failed to decode: the file is neither YAML nor JSON: ")
            && error.contains("line 1"),
        "{error}"
    );
    assert_eq!(
        decode(b"kind: \xff").unwrap_err().to_string(),
        "failed to decode: the file is not UTF-8 text (first bad byte at offset 6)"
    );
    assert!(fields("bindAddress: ::").is_err(), "two colons need quotes");
    assert_eq!(fields("bindAddress: ::0").unwrap().document.text(BIND_ADDRESS), "::0");
}

#[test]
fn unknown_fields_are_remarked_at_every_depth() {
    let decoded = fields(
        "Mode: nftables\niptables: {masqueradebit: 3}\nlogging: {vmodule: [{filePattern: a, x: 1}], options: {yaml: {}}}\n",
    )
    .unwrap();
    let remarks: Vec<String> = decoded.remarks.iter().map(ToString::to_string).collect();
    assert_eq!(
        remarks,
        [
            "unknown field \"Mode\" on line 3",
            "unknown field \"iptables.masqueradebit\" on line 4",
            "unknown field \"logging.vmodule[0].x\" on line 5",
            "unknown field \"logging.options.yaml\" on line 5",
        ]
    );
    assert_eq!(decoded.document.value(MODE), None, "names are case-sensitive");
}

#[test]
fn a_path_as_a_name_is_no_field() {
    let decoded = fields("iptables.masqueradeBit: 3\niptables: {a.b: 1}\n").unwrap();
    let remarks: Vec<String> = decoded.remarks.iter().map(ToString::to_string).collect();
    assert_eq!(
        remarks,
        ["unknown field \"iptables.masqueradeBit\" on line 3", "unknown field \"iptables.a.b\" on line 4"]
    );
    assert_eq!(decoded.document, Values::default());
}

/// kube-proxy dropped the field with the mode, so in other modes it is unknown here too, whatever its value.
#[test]
fn a_field_of_mode_userspace_is_unknown_in_others() {
    let decoded = fields("mode: nftables\nudpIdleTimeout: [1]\n").unwrap();
    assert_eq!(decoded.remarks.len(), 1, "{:?}", decoded.remarks);
    assert_eq!(decoded.document.value(UDP_IDLE_TIMEOUT), None);
    let decoded = fields("udpIdleTimeout: 2s\nmode: userspace\n").unwrap();
    assert_eq!(decoded.remarks, []);
    assert_eq!(decoded.document.get(UDP_IDLE_TIMEOUT).0.as_secs(), 2);
}

#[test]
fn of_repeated_fields_the_last_counts() {
    let decoded =
        fields("mode: iptables\niptables: {masqueradeBit: 1, masqueradeBit: 2}\nmode: nftables\n").unwrap();
    assert_eq!(decoded.document.text(MODE), "nftables");
    assert_eq!(decoded.document.value(IPTABLES_MASQUERADE_BIT), Some(&Value::Int(2)));
    let paths: Vec<_> = decoded.remarks.iter().map(|remark| remark.repeated).collect();
    assert_eq!(paths, [true, true]);
}

#[test]
fn wrong_types_are_refused_all_at_once() {
    let text = fields("mode: 7\niptables:\n  masqueradeBit: x\n  syncPeriod: 30\nnodePortAddresses: all\nenableProfiling: 1\n")
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        "failed to decode: line 3: mode: expected text, found the number 7 (put it in quotes); \
         line 5: iptables.masqueradeBit: expected a whole number, found the text \"x\"; \
         line 6: iptables.syncPeriod: expected a duration such as \"30s\", found the number 30; \
         line 7: nodePortAddresses: expected a list, found the text \"all\"; \
         line 8: enableProfiling: expected true or false, found the number 1"
    );
}

#[test]
fn each_type_has_its_words() {
    for (text, message) in [
        ("hostnameOverride: true", "expected text, found the boolean true (put it in quotes)"),
        ("hostnameOverride: [a]", "expected text, found a list"),
        ("iptables: 5", "expected a mapping, found the number 5"),
        ("conntrack: {min: 1.5}", "expected a whole number, found the number 1.5"),
        ("conntrack: {min: 2147483648}", "2147483648 is out of range"),
        ("logging: {verbosity: -1}", "-1 is out of range"),
        ("clientConnection: {qps: fast}", "expected a number, found the text \"fast\""),
        ("configSyncPeriod: 15", "expected a duration such as \"30s\", found the number 15"),
        ("configSyncPeriod: '15'", "duration \"15\" lacks a unit (ns, us, ms, s, m or h)"),
        (
            "logging: {flushFrequency: []}",
            "expected a duration such as \"5s\" or a number of nanoseconds, found a list",
        ),
        (
            "logging: {options: {text: {infoBufferSize: x}}}",
            "\"x\" is not a quantity (write it like 512, 64Ki or 1M)",
        ),
        (
            "logging: {options: {text: {infoBufferSize: true}}}",
            "expected a quantity such as \"64Ki\", found the boolean true",
        ),
        ("featureGates: {A: maybe}", "expected true or false, found the text \"maybe\""),
        ("featureGates: [A]", "expected a mapping, found a list"),
        ("nodePortAddresses: [1]", "expected text, found the number 1 (put it in quotes)"),
    ] {
        match fields(text) {
            Err(DecodeError::Types(problems)) => assert_eq!(problems[0].message, message, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn null_is_the_same_as_absent() {
    let decoded =
        fields("mode: null\niptables: ~\nnodePortAddresses:\nfeatureGates: null\nconntrack: {min: null}\n")
            .unwrap();
    assert_eq!(decoded, fields("").unwrap());
}

/// kube-proxy reads an empty duration where the field cannot be absent, and refuses it.
#[test]
fn null_is_not_a_duration() {
    for field in [
        "configSyncPeriod: null",
        "iptables: {syncPeriod: ~}",
        "iptables: {minSyncPeriod: null}",
        "ipvs: {tcpTimeout: null}",
        "nftables:\n  syncPeriod:\n",
        "conntrack: {udpTimeout: null}",
    ] {
        match fields(field) {
            Err(DecodeError::Types(problems)) => {
                assert_eq!(
                    problems[0].message, "expected a duration such as \"30s\", found nothing",
                    "{field}"
                );
            }
            other => panic!("{field}: {other:?}"),
        }
    }
    for field in [
        "conntrack: {tcpEstablishedTimeout: null}",
        "conntrack: {tcpCloseWaitTimeout: ~}",
        "logging: {flushFrequency: null}",
    ] {
        assert_eq!(fields(field).unwrap(), fields("").unwrap(), "{field}");
    }
}

/// As kube-proxy's parser does it: what is merged counts from where `<<` stands, and of several maps the first wins.
#[test]
fn a_merge_key_counts_from_where_it_stands() {
    fn text<T>(document: &Values, key: Key<T>) -> String {
        match document.value(key) {
            Some(Value::Duration(duration)) => duration.to_string(),
            other => format!("{other:?}"),
        }
    }
    let period = |iptables: &str| {
        let base = "x: &a {syncPeriod: 5s, minSyncPeriod: 2s}\ny: &b {syncPeriod: 9s}\n";
        let document = fields(&format!("{base}iptables: {iptables}\n")).unwrap().document;
        (text(&document, IPTABLES_SYNC_PERIOD), text(&document, IPTABLES_MIN_SYNC_PERIOD))
    };
    let pair = |sync: &str, least: &str| (sync.to_owned(), least.to_owned());
    assert_eq!(period("{syncPeriod: 7s, <<: *a}"), pair("5s", "2s"));
    assert_eq!(period("{<<: *a, syncPeriod: 7s}"), pair("7s", "2s"));
    assert_eq!(period("{<<: [*b, *a]}"), pair("9s", "2s"));
    assert_eq!(period("{<<: [*a, *b]}"), pair("5s", "2s"));
    for wrong in ["{<<: 7}", "{<<: [*a, 7]}"] {
        let text = format!("x: &a {{syncPeriod: 5s}}\niptables: {wrong}\n");
        assert!(matches!(fields(&text), Err(DecodeError::Syntax(_))), "{wrong}");
    }
}

#[test]
fn numbers_have_more_than_one_form() {
    let document =
        fields("clientConnection: {qps: 5, burst: 5.0}\nconntrack: {min: 0x10, maxPerCore: 010}\n")
            .unwrap()
            .document;
    assert_eq!((document.get(QPS), document.get(BURST)), (5.0, 5));
    assert_eq!((document.get(CONNTRACK_MIN), document.get(CONNTRACK_MAX_PER_CORE)), (16, 8));
    let document = fields("logging: {flushFrequency: 5}").unwrap().document;
    let flush = Value::Flush { duration: GoDuration::from_nanos(5), as_number: true };
    assert_eq!(document.value(LOG_FLUSH_FREQUENCY), Some(&flush));
}

#[test]
fn deep_and_repeating_input_is_refused_in_time() {
    assert!(decode("[".repeat(100_000).as_bytes()).is_err());
    assert!(decode("a: ".repeat(10_000).as_bytes()).is_err());
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                g: [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";
    assert!(matches!(fields(bomb), Err(DecodeError::Syntax(_))));
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
        let _ = decode(&bytes);
    }

    #[test]
    fn any_text_after_a_good_head_is_decoded_or_refused(text in "\\PC*|[-:a-z{}\\[\\],#&*!|>'\"%@` \n0-9.~]{0,80}") {
        let _ = fields(&text);
    }

    #[test]
    fn any_value_of_a_known_field_is_decoded_or_refused(
        name in "mode|iptables|logging|featureGates|nodePortAddresses|conntrack|configSyncPeriod|clientConnection",
        value in "\\PC*|[-:a-z{}\\[\\],#&*!|>'\" \n0-9.~]{0,40}",
    ) {
        let _ = fields(&format!("{name}: {value}\n"));
    }
}
