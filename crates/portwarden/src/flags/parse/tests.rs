//! The rules of the command line.

use super::*;
use crate::config::options::{
    BIND_ADDRESS, CLEANUP, FEATURE_GATES, METRICS_BIND_ADDRESS, NODE_PORT_ADDRESSES, VERBOSITY, VMODULE,
    Value,
};
use crate::flags::{Action, VersionRequest};

fn parse_all(program: Program, arguments: &[&str]) -> Result<Parsed, String> {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    parse(program, &arguments).map_err(|error| error.to_string())
}

fn run(arguments: &[&str]) -> Flags {
    match parse_all(Program::KubeProxy, arguments) {
        Ok(Parsed { invocation: Invocation::Run(flags), .. }) => *flags,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn refused(arguments: &[&str]) -> String {
    parse_all(Program::KubeProxy, arguments).unwrap_err()
}

fn printed(program: Program, arguments: &[&str]) -> String {
    match parse_all(program, arguments) {
        Ok(Parsed { invocation: Invocation::Print(text), .. }) => text,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

#[test]
fn the_name_decides_the_command_line() {
    assert_eq!(Program::from_path("/usr/local/bin/kube-proxy"), Program::KubeProxy);
    assert_eq!(Program::from_path("kube-proxy"), Program::KubeProxy);
    assert_eq!(Program::from_path("/kube-proxy/portwarden"), Program::Portwarden);
    assert_eq!(Program::from_path(""), Program::Portwarden);
}

#[test]
fn the_letter_v_takes_its_value_in_every_way() {
    for arguments in [&["-v", "2"][..], &["-v2"], &["-v=2"], &["--v=2"], &["--v", "2"]] {
        assert_eq!(run(arguments).values.get(VERBOSITY), 2, "{arguments:?}");
    }
    assert_eq!(run(&["-v=1", "-v", "3"]).values.get(VERBOSITY), 3, "the last one counts");
    assert_eq!(refused(&["-v"]), "flag needs an argument: 'v' in -v");
    assert_eq!(refused(&["-x1"]), "unknown shorthand flag: 'x' in -x1");
    assert!(refused(&["-v="]).starts_with("invalid argument \"=\" for \"-v, --v\" flag"));
    assert!(refused(&["-v", "-1"]).contains("is not a level"));
    assert!(refused(&["-v", "2147483648"]).contains("is not a level"));
    assert_eq!(run(&["-v", "2147483647"]).values.get(VERBOSITY), 2_147_483_647);
}

#[test]
fn a_switch_takes_a_value_only_after_an_equals_sign() {
    assert_eq!(run(&["--cleanup"]).values.value(CLEANUP), Some(&Value::Switch(true)));
    assert_eq!(run(&["--cleanup=false"]).values.value(CLEANUP), Some(&Value::Switch(false)));
    assert_eq!(refused(&["--cleanup", "true"]), "\"kube-proxy\" does not take any arguments, got [\"true\"]");
    assert!(refused(&["--cleanup="]).starts_with("invalid argument \"\" for \"--cleanup\" flag"));
}

#[test]
fn arguments_that_are_no_flags_are_refused_unless_empty() {
    assert_eq!(
        refused(&["x", "--cleanup", "", "y z"]),
        "\"kube-proxy\" does not take any arguments, got [\"x\" \"\" \"y z\"]"
    );
    assert_eq!(
        refused(&["--", "--cleanup"]),
        "\"kube-proxy\" does not take any arguments, got [\"--cleanup\"]"
    );
    assert_eq!(refused(&["-"]), "\"kube-proxy\" does not take any arguments, got [\"-\"]");
    assert!(run(&["", "--cleanup", "--", ""]).values.get(CLEANUP));
    let error = parse(Program::Portwarden, &["x".to_owned()]).unwrap_err();
    assert!(!error.wants_usage() && error.to_string().starts_with("\"portwarden\""), "{error}");
}

#[test]
fn mistakes_are_named() {
    assert_eq!(refused(&["--proxy-mod=x"]), "unknown flag: --proxy-mod (did you mean --proxy-mode?)");
    assert_eq!(refused(&["--proxi_mode", "x"]), "unknown flag: --proxi_mode (did you mean --proxy-mode?)");
    assert_eq!(refused(&["--utterly-different"]), "unknown flag: --utterly-different");
    assert_eq!(refused(&["--source-vip=1.2.3.4"]), "unknown flag: --source-vip", "Windows only");
    assert_eq!(refused(&["--=x"]), "bad flag syntax: --=x");
    assert_eq!(refused(&["---v"]), "bad flag syntax: ---v");
    assert_eq!(refused(&["--config"]), "flag needs an argument: --config");
    assert!(refused(&["--feature-gates=A"]).ends_with("malformed pair, expect string=bool"));
    assert!(refused(&["--feature-gates=A=maybe"]).contains("invalid value of A"));
    assert!(refused(&["--conntrack-min=1.5"]).contains("is not a whole number"));
    assert!(refused(&["--conntrack-udp-timeout=5"]).contains("lacks a unit"));
    assert!(refused(&["--vmodule=a"]).contains("pattern=N"));
    assert!(refused(&["--vmodule==1"]).contains("pattern=N"));
    assert!(refused(&["--vmodule=a=b=1"]).contains("pattern=N"));
    assert!(refused(&["--vmodule=a=-1"]).contains("is not a level"));
    assert!(refused(&["--log-text-info-buffer-size=x"]).contains("is not a quantity"));
    assert!(refused(&["--nodeport-addresses=\"a"]).contains("not closed"));
    assert!(refused(&["--version=v1.36.0"]).contains("same major, minor and patch"));
    let error = parse(Program::KubeProxy, &["--nope".to_owned()]).unwrap_err();
    assert!(error.wants_usage());
}

#[test]
fn an_empty_address_changes_nothing() {
    let flags = run(&["--bind-address=", "--healthz-bind-address=", "--metrics-bind-address", ""]);
    assert_eq!(flags, Flags::default());
    let flags = run(&["--bind-address=::1", "--bind-address="]);
    assert_eq!(flags.values.text(BIND_ADDRESS), "::1");
}

#[test]
fn addresses_are_checked_when_read() {
    assert!(refused(&["--bind-address=[::1]"]).contains("not a valid IP"));
    assert!(refused(&["--bind-address=1.2.3.4:80"]).contains("not a valid IP"));
    assert!(refused(&["--healthz-bind-address=host:80"]).contains("\"host\" is not a valid IP"));
    assert!(refused(&["--healthz-bind-address=1.2.3.4:x"]).contains("\"x\" is not a valid port"));
    assert!(refused(&["--healthz-bind-address=1.2.3.4:+80"]).contains("not a valid port"));
    assert!(refused(&["--metrics-bind-address=1.2.3.4:65536"]).contains("not a valid port"));
    assert!(refused(&["--metrics-bind-address=:80"]).contains("not a valid IP"));
    assert_eq!(
        run(&["--metrics-bind-address=::ffff:1.2.3.4"]).values.text(METRICS_BIND_ADDRESS),
        "::ffff:1.2.3.4"
    );
}

#[test]
fn repeated_lists_append_and_repeated_maps_merge() {
    let flags = run(&[
        "--nodeport-addresses=primary",
        "--nodeport-addresses=",
        "--nodeport_addresses=10.0.0.0/8,all",
    ]);
    let addresses = ["primary", "10.0.0.0/8", "all"].map(str::to_owned).to_vec();
    assert_eq!(flags.values.value(NODE_PORT_ADDRESSES), Some(&Value::Texts(addresses)));
    let flags = run(&["--feature-gates=A=true,B=true", "--feature-gates=B=false"]);
    let gates: Vec<_> = flags.values.get(FEATURE_GATES).into_iter().collect();
    assert_eq!(gates, [("A".to_owned(), true), ("B".to_owned(), false)]);
    let flags = run(&["--vmodule=a=1", "--vmodule=b=2"]);
    assert_eq!(flags.values.get(VMODULE).len(), 2);
}

#[test]
fn deprecated_flags_work_and_say_so() {
    let parsed = parse_all(Program::KubeProxy, &["--healthz-port=0", "--metrics_port=1"]).unwrap();
    assert_eq!(parsed.deprecations.len(), 2);
    assert!(
        parsed.deprecations[0].starts_with("Flag --healthz-port has been deprecated, "),
        "{:?}",
        parsed.deprecations
    );
    assert!(
        parsed.deprecations[1].starts_with("Flag --metrics-port has been deprecated, "),
        "{:?}",
        parsed.deprecations
    );
}

#[test]
fn help_lists_every_current_flag_and_fits_the_terminal() {
    for program in [Program::KubeProxy, Program::Portwarden] {
        let help = printed(program, &["--help"]);
        assert_eq!(help, printed(program, &["-h", "ignored"]));
        for (_, row) in program.flags() {
            assert_eq!(help.contains(&format!("--{}", row.flag)), row.deprecated.is_none(), "--{}", row.flag);
        }
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
    assert!(!printed(Program::KubeProxy, &["-h"]).contains("--manifests"));
    assert!(run(&["--help=false"]).values.value(HELP) == Some(&Value::Switch(false)));
    assert!(refused(&["--help", "--nope"]).starts_with("unknown flag"), "mistakes come first");
}

#[test]
fn the_version_comes_after_everything_else_was_read() {
    assert!(printed(Program::KubeProxy, &["--version"]).starts_with("Kubernetes v1.37.0"));
    assert!(printed(Program::KubeProxy, &["--version=raw"]).starts_with("version.Info{"));
    assert!(refused(&["--version", "--nope"]).starts_with("unknown flag"));
    assert!(refused(&["--version", "true"]).contains("does not take any arguments"));
    let flags = run(&["--version=v1.37.0-mine"]);
    assert_eq!(flags.version(), Some(&VersionRequest::Report("v1.37.0-mine".to_owned())));
}

#[test]
fn writing_the_configuration_wins_over_cleaning_up_and_preparing() {
    assert_eq!(run(&[]).action(), Action::Run);
    assert_eq!(run(&["--init-only"]).action(), Action::InitOnly);
    assert_eq!(run(&["--init-only", "--cleanup"]).action(), Action::Cleanup);
    assert_eq!(run(&["--cleanup", "--write-config-to=f"]).action(), Action::WriteConfig("f".to_owned()));
    assert_eq!(run(&["--cleanup=false", "--write-config-to="]).action(), Action::Run);
}

proptest::proptest! {
    #[test]
    fn any_command_line_is_read_or_refused(arguments: Vec<String>, name in 0usize..61, value: String) {
        let (_, row) = Program::Portwarden.flags().nth(name).unwrap();
        let mut arguments = arguments;
        arguments.insert(0, format!("--{}={value}", row.flag));
        let _ = parse(Program::Portwarden, &arguments);
    }
}
