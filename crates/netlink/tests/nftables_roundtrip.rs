//! What is committed is listed again as the same values, and nft agrees with our text of it.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

mod common;

use common::{in_namespace, run, run_with_input};
use portwarden_netlink::nftables::expr::{
    CmpOperator, CtKey, Direction, DynsetOperation, FibResult, MetaKey, NatKind, NumgenKind, PayloadBase,
    Reject, address_type, ct_state, ct_status, fib, nat,
};
use portwarden_netlink::nftables::{
    Chain, ChainKind, Client, Counter, DataType, Element, ElementParts, Elements, Expr, Family, Hook, Image,
    Object, Policy, Register, Rule, Set, SetFlags, Table, TableId, Transaction, Value, ValueParts, Verdict,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const R0: Register = Register::word(0);

/// The parts of a table that depend on the family.
struct Flavour {
    table: TableId,
    address: DataType,
    /// Words that an address takes.
    words: u8,
    source: u32,
    destination: u32,
    virtual_address: IpAddr,
    pod: IpAddr,
}

impl Flavour {
    fn new(family: Family) -> Self {
        let table = TableId::new(family, "portwarden-test");
        if family == Family::Ip6 {
            let (virtual_address, pod) =
                ("fd00:10:96::1".parse().unwrap(), "fd00:10:244::2".parse().unwrap());
            let address = DataType::Ipv6Address;
            Self { table, address, words: 4, source: 8, destination: 24, virtual_address, pod }
        } else {
            let (virtual_address, pod) = ("10.96.0.1".parse().unwrap(), "10.244.0.2".parse().unwrap());
            let address = DataType::Ipv4Address;
            Self { table, address, words: 1, source: 12, destination: 16, virtual_address, pod }
        }
    }

    fn length(&self) -> u32 {
        u32::from(self.words) * 4
    }

    fn frontend(&self) -> [DataType; 3] {
        [self.address, DataType::Protocol, DataType::Service]
    }

    fn address(&self, offset: u32, target: Register) -> Expr {
        Expr::Payload { base: PayloadBase::Network, offset, length: self.length(), target }
    }

    /// Loads destination, protocol and port from word `first` on.
    fn load_frontend(&self, first: u8) -> Vec<Expr> {
        vec![
            self.address(self.destination, Register::word(first)),
            Expr::Meta { key: MetaKey::L4proto, target: Register::word(first + self.words) },
            Expr::Payload {
                base: PayloadBase::Transport,
                offset: 2,
                length: 2,
                target: Register::word(first + self.words + 1),
            },
        ]
    }
}

fn l4proto(protocol: u8) -> [Expr; 2] {
    [
        Expr::Meta { key: MetaKey::L4proto, target: R0 },
        Expr::Cmp { source: R0, operator: CmpOperator::Equal, value: vec![protocol] },
    ]
}

fn lookup(set: &str, target: Option<Register>, inverted: bool) -> Expr {
    Expr::Lookup { set: set.into(), key: R0, target, inverted }
}

fn number(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn any_bit(key: Expr, bits: u32) -> [Expr; 3] {
    [
        key,
        Expr::Bitwise { source: R0, target: R0, mask: number(bits), xor: number(0) },
        Expr::Cmp { source: R0, operator: CmpOperator::NotEqual, value: number(0) },
    ]
}

fn sets(flavour: &Flavour) -> Vec<Arc<Set>> {
    let table = &flavour.table;
    let with = |last: DataType| {
        let mut key = flavour.frontend().to_vec();
        key.push(last);
        key
    };
    let mut sticky_key = vec![flavour.address];
    sticky_key.extend(flavour.frontend());
    [
        Set::new(table, "addresses", [flavour.address]).comment("plain"),
        Set::new(table, "ports", [DataType::Service]),
        Set::new(table, "ranges", with(flavour.address)).flags(SetFlags::INTERVAL),
        Set::map(table, "endpoints", with(DataType::Integer), [flavour.address, DataType::Service])
            .comment("slots"),
        Set::map(table, "sized", with(DataType::ClassId), [flavour.address, DataType::Service]).size(1_000),
        Set::verdict_map(table, "services", flavour.frontend()).comment("dispatch"),
        Set::map(table, "sticky", sticky_key, [DataType::ClassId])
            .flags(SetFlags::DYNAMIC)
            .size(65_536)
            .timeout(Duration::from_secs(10_800)),
        Set::new(table, "interfaces", [DataType::InterfaceName, DataType::Mark]),
    ]
    .into_iter()
    .map(Arc::new)
    .collect()
}

fn elements(flavour: &Flavour) -> Vec<(&'static str, Elements)> {
    let frontend = Image::new().address(flavour.virtual_address).protocol(6).port(80);
    let backend = Image::new().address(flavour.pod).port(8080);
    let one = |fill: &dyn Fn(&mut Elements)| {
        let mut elements = Elements::new();
        fill(&mut elements);
        elements
    };
    let (low, high): (IpAddr, IpAddr) = match flavour.pod {
        IpAddr::V4(_) => ("192.168.0.0".parse().unwrap(), "192.168.255.255".parse().unwrap()),
        IpAddr::V6(_) => ("fd00:1::".parse().unwrap(), "fd00:1::ffff:ffff".parse().unwrap()),
    };
    vec![
        ("addresses", one(&|e| e.push_key(Image::new().address(flavour.virtual_address)))),
        ("ports", one(&|e| e.push_key(Image::new().port(443)))),
        (
            "ranges",
            one(&|e| {
                e.push(&ElementParts {
                    key: frontend.address(low).as_bytes(),
                    key_end: Some(frontend.address(high).as_bytes()),
                    comment: Some("from the office"),
                    ..ElementParts::default()
                });
            }),
        ),
        ("endpoints", one(&|e| e.push_data(frontend.number(3), backend))),
        ("sized", one(&|e| e.push_data(frontend.number(0x0001_0002), backend))),
        (
            "services",
            one(&|e| {
                e.push(&ElementParts {
                    key: frontend.as_bytes(),
                    value: Some(ValueParts::Verdict(&Verdict::Goto("pick-4".into()))),
                    comment: Some("demo/web:http"),
                    ..ElementParts::default()
                });
            }),
        ),
        ("interfaces", one(&|e| e.push_key(Image::new().interface("eth0").number(7)))),
    ]
}

/// Rules that nft 1.0.6 can read back from our text.
fn plain_rules(flavour: &Flavour) -> Vec<Rule> {
    let table = &flavour.table;
    let rule = |chain: &str, expressions: Vec<Expr>| Rule::new(table, chain, expressions);
    let words = flavour.words;
    let mut rules = vec![];

    let mut pick = l4proto(6).to_vec();
    pick.extend(flavour.load_frontend(0));
    pick.push(Expr::Numgen {
        kind: NumgenKind::Random,
        modulus: 4,
        offset: 16,
        target: Register::word(words + 2),
    });
    pick.push(lookup("endpoints", Some(R0), false));
    pick.push(Expr::Nat {
        kind: NatKind::Destination,
        family: table.family,
        address: Some(R0),
        port: Some(Register::word(words)),
        flags: 0,
    });
    rules.push(rule("pick-4", pick).comment("draw one of four"));

    let mut one = l4proto(17).to_vec();
    one.push(Expr::Immediate { value: Image::new().address(flavour.pod).into(), target: R0 });
    one.push(Expr::Immediate { value: Image::new().port(53).into(), target: Register::word(words) });
    one.push(Expr::Nat {
        kind: NatKind::Destination,
        family: table.family,
        address: Some(R0),
        port: Some(Register::word(words)),
        flags: 0,
    });
    rules.push(rule("one", one));

    let mut dispatch = flavour.load_frontend(0);
    dispatch.push(lookup("services", Some(Register::VERDICT), false));
    rules.push(rule("nat-prerouting", dispatch));

    let mark = Expr::Meta { key: MetaKey::Mark, target: R0 };
    let mut masquerade = any_bit(mark.clone(), 0x4000).to_vec();
    masquerade.extend([
        mark.clone(),
        Expr::Bitwise { source: R0, target: R0, mask: number(u32::MAX), xor: number(0x4000) },
        Expr::SetMeta { key: MetaKey::Mark, source: R0 },
        Expr::Masquerade { flags: nat::FULLY_RANDOM },
    ]);
    rules.push(rule("nat-postrouting", masquerade));
    rules.push(rule(
        "mark-it",
        vec![
            mark,
            Expr::Bitwise { source: R0, target: R0, mask: number(!0x4000), xor: number(0x4000) },
            Expr::SetMeta { key: MetaKey::Mark, source: R0 },
        ],
    ));

    let status = Expr::Ct { key: CtKey::Status, direction: None, target: R0 };
    let mut hairpin = any_bit(status, ct_status::DNAT).to_vec();
    hairpin.extend([flavour.address(flavour.source, R0), lookup("addresses", None, false)]);
    hairpin.push(Expr::Verdict(Verdict::Return));
    rules.push(rule("mark-it", hairpin));

    let state = Expr::Ct { key: CtKey::State, direction: None, target: R0 };
    let mut new = any_bit(state, ct_state::NEW).to_vec();
    new.push(Expr::Verdict(Verdict::Jump("mark-it".into())));
    rules.push(rule("filter-input", new));

    rules.push(rule(
        "filter-input",
        vec![
            Expr::Fib { result: FibResult::Type, flags: fib::DADDR, target: R0 },
            Expr::Cmp { source: R0, operator: CmpOperator::Equal, value: number(address_type::LOCAL) },
            flavour.address(flavour.destination, R0),
            lookup("addresses", None, true),
            Expr::Counter { packets: 0, bytes: 0 },
            Expr::Reject(Reject::port_unreachable(table.family)),
        ],
    ));
    let mut reset = l4proto(6).to_vec();
    reset.push(Expr::Reject(Reject::TcpReset));
    rules.push(rule("filter-input", reset));

    let prefix_mask = if words == 1 { vec![255, 240, 0, 0] } else { [vec![255; 7], vec![0; 9]].concat() };
    let network: IpAddr =
        if words == 1 { "172.16.0.0".parse().unwrap() } else { "fd00:5::".parse().unwrap() };
    rules.push(rule(
        "filter-input",
        vec![
            flavour.address(flavour.source, R0),
            Expr::Bitwise { source: R0, target: R0, xor: vec![0; prefix_mask.len()], mask: prefix_mask },
            Expr::Cmp {
                source: R0,
                operator: CmpOperator::NotEqual,
                value: Image::new().address(network).into(),
            },
            Expr::Verdict(Verdict::Drop),
        ],
    ));
    let octets: Vec<u8> = Image::new().address(network).into();
    rules.push(rule(
        "filter-input",
        vec![
            Expr::Payload { base: PayloadBase::Network, offset: flavour.source, length: 2, target: R0 },
            Expr::Cmp { source: R0, operator: CmpOperator::Equal, value: octets[..2].to_vec() },
            Expr::Verdict(Verdict::Accept),
        ],
    ));
    rules.push(rule(
        "filter-input",
        vec![
            Expr::Meta { key: MetaKey::Iifname, target: R0 },
            Expr::Cmp { source: R0, operator: CmpOperator::Equal, value: b"veth".to_vec() },
            Expr::NamedCounter("seen".into()),
        ],
    ));
    rules.push(rule(
        "filter-input",
        vec![
            Expr::Limit { rate: 10, per: Duration::from_secs(60), burst: 5, inverted: false },
            Expr::Log { prefix: "odd: ".to_owned() },
        ],
    ));
    let mut range = l4proto(6).to_vec();
    range.extend([
        Expr::Payload { base: PayloadBase::Transport, offset: 2, length: 2, target: R0 },
        Expr::Range {
            source: R0,
            inverted: true,
            from: Image::new().port(30_000).into(),
            to: Image::new().port(32_767).into(),
        },
        Expr::Verdict(Verdict::Goto("mark-it".into())),
    ]);
    rules.push(rule("filter-input", range));
    rules
}

/// Rules with dynamic sets; nft prints them but reads them differently.
fn sticky_rules(flavour: &Flavour) -> Vec<Rule> {
    let table = &flavour.table;
    let words = flavour.words;
    let sticky_key = || {
        let mut key = vec![flavour.address(flavour.source, R0)];
        key.extend(flavour.load_frontend(words));
        key
    };
    let mut update = sticky_key();
    let slot = Register::word(words * 2 + 2);
    update.push(Expr::Meta { key: MetaKey::Priority, target: slot });
    update.push(Expr::Dynset {
        set: "sticky".into(),
        operation: DynsetOperation::Update,
        key: R0,
        data: Some(slot),
        timeout: Some(Duration::from_secs(600)),
    });
    let mut read = sticky_key();
    read.push(lookup("sticky", Some(R0), false));
    read.push(Expr::SetMeta { key: MetaKey::Priority, source: R0 });
    let original = vec![
        Expr::Ct {
            key: if words == 1 { CtKey::DestinationIp } else { CtKey::DestinationIp6 },
            direction: Some(Direction::Original),
            target: R0,
        },
        lookup("addresses", None, false),
        Expr::Verdict(Verdict::Return),
    ];
    vec![
        Rule::new(table, "sticky", read),
        Rule::new(table, "sticky", update).comment("renew"),
        Rule::new(table, "sticky", original),
    ]
}

fn build(flavour: &Flavour, rules: &[Rule], with_elements: bool) -> Transaction {
    let table = &flavour.table;
    let mut transaction = Transaction::new();
    transaction.ensure_absent(table);
    transaction.add(Table::new(table).comment("a table for tests"));
    transaction.add(Chain::base(table, "nat-prerouting", ChainKind::Nat, Hook::Prerouting, -100));
    transaction.add(Chain::base(table, "nat-postrouting", ChainKind::Nat, Hook::Postrouting, 100));
    let mut input = Chain::base(table, "filter-input", ChainKind::Filter, Hook::Input, -110).comment("pre");
    input.base.as_mut().unwrap().policy = Policy::Drop;
    transaction.add(input);
    for chain in ["pick-4", "one", "mark-it", "sticky"] {
        transaction.add(Chain::new(table, chain));
    }
    transaction.add(Counter { comment: Some("from veth".to_owned()), ..Counter::new(table, "seen") });
    let sets = sets(flavour);
    for set in &sets {
        transaction.add(set);
    }
    for rule in rules {
        transaction.add(rule.clone());
    }
    if with_elements {
        for (name, elements) in elements(flavour) {
            let set = sets.iter().find(|set| *set.name == *name).unwrap();
            transaction.add_elements(set, elements);
        }
    }
    transaction
}

fn objects<T: Clone>(transaction: &Transaction, choose: impl Fn(&Object) -> Option<T>) -> Vec<T> {
    transaction.operations().iter().filter_map(|operation| choose(&operation.object)).collect()
}

fn what_is_committed_is_listed(family: Family) {
    in_namespace(move || {
        let flavour = Flavour::new(family);
        let table = &flavour.table;
        let rules = [plain_rules(&flavour), sticky_rules(&flavour)].concat();
        let transaction = build(&flavour, &rules, true);
        let mut client = Client::open().unwrap();
        let before = client.generation().unwrap();
        client.commit(&transaction).unwrap();
        let after = client.generation().unwrap();
        assert_eq!(after.id, before.id + 1);

        let tables = client.tables(Some(family)).unwrap();
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].object, Table::new(table).comment("a table for tests"));

        let listed: Vec<_> = client.chains(table).unwrap().into_iter().map(|chain| chain.object).collect();
        let made = objects(&transaction, |object| match object {
            Object::Chain(chain) => Some(chain.clone()),
            _ => None,
        });
        assert_eq!(listed, made);

        let listed: Vec<_> = client.sets(table).unwrap().into_iter().map(|set| set.object).collect();
        for made in sets(&flavour) {
            let listed = listed.iter().find(|set| set.name == made.name).unwrap();
            assert_eq!(*listed, *made);
        }

        for chain in made {
            let listed = client.rules(table, Some(&chain.name)).unwrap();
            let listed: Vec<_> = listed.into_iter().map(|rule| rule.object).collect();
            let made: Vec<_> = rules.iter().filter(|rule| rule.chain == chain.name).cloned().collect();
            assert_eq!(listed, made, "in chain {}", chain.name);
        }
        assert_eq!(client.rules(table, None).unwrap().len(), rules.len());

        for (set, made) in elements(&flavour) {
            let made: Vec<Element> = made.iter().collect();
            assert_eq!(client.elements(table, set).unwrap(), made, "in {set}");
            assert_eq!(
                client.element(table, set, &made[0].key).unwrap().as_ref(),
                Some(&made[0]),
                "in {set}"
            );
        }
        let missing = Image::new().address(flavour.pod);
        assert_eq!(client.element(table, "addresses", missing.as_bytes()).unwrap(), None);

        let counters = client.counters(table).unwrap();
        assert_eq!(counters.len(), 1);
        assert_eq!(counters[0].object.comment.as_deref(), Some("from veth"));

        let listing = run("nft", &["list", "ruleset"]);
        for rule in sticky_rules(&flavour) {
            assert!(listing.contains(&rule.to_string()), "nft does not list {rule}:\n{listing}");
        }
    });
}

#[test]
fn what_is_committed_is_listed_ip() {
    what_is_committed_is_listed(Family::Ip);
}

#[test]
fn what_is_committed_is_listed_ip6() {
    what_is_committed_is_listed(Family::Ip6);
}

/// Commits through netlink and through `nft -f` of our text; nft must list the same.
fn nft_reads_our_text(family: Family) {
    in_namespace(move || {
        let flavour = Flavour::new(family);
        let transaction = build(&flavour, &plain_rules(&flavour), true);
        Client::open().unwrap().commit(&transaction).unwrap();
        let ours = run("nft", &["list", "ruleset"]);
        run("nft", &["flush", "ruleset"]);
        let text = transaction.to_string();
        run_with_input("nft", &["-f", "-"], &text);
        let theirs = run("nft", &["list", "ruleset"]);
        assert_eq!(ours, theirs, "from\n{text}");
    });
}

#[test]
fn nft_reads_our_text_ip() {
    nft_reads_our_text(Family::Ip);
}

#[test]
fn nft_reads_our_text_ip6() {
    nft_reads_our_text(Family::Ip6);
}

#[test]
fn elements_with_timeouts_come_back_with_their_age() {
    in_namespace(|| {
        let flavour = Flavour::new(Family::Ip);
        let mut client = Client::open().unwrap();
        client.commit(&build(&flavour, &[], false)).unwrap();
        let sticky = sets(&flavour).into_iter().find(|set| &*set.name == "sticky").unwrap();
        let key =
            Image::new().ipv4([192, 0, 2, 1].into()).address(flavour.virtual_address).protocol(6).port(80);
        let slot = number(5);
        let mut elements = Elements::new();
        elements.push(&ElementParts {
            key: key.as_bytes(),
            value: Some(ValueParts::Data(&slot)),
            timeout: Some(Duration::from_secs(600)),
            expiration: Some(Duration::from_secs(300)),
            ..ElementParts::default()
        });
        let mut transaction = Transaction::new();
        transaction.add_elements(&sticky, elements);
        client.commit(&transaction).unwrap();
        let element = client.element(&flavour.table, "sticky", key.as_bytes()).unwrap().unwrap();
        assert_eq!(element.value, Some(Value::Data(slot)));
        assert_eq!(element.timeout, Some(Duration::from_secs(600)));
        let left = element.expiration.unwrap();
        assert!(left <= Duration::from_secs(300) && left > Duration::from_secs(100), "{left:?} left");
    });
}

#[test]
fn rules_are_inserted_replaced_and_deleted_by_handle() {
    in_namespace(|| {
        let table = TableId::new(Family::Inet, "portwarden-test");
        let mut client = Client::open().unwrap();
        let verdict = |verdict| Rule::new(&table, "chain", vec![Expr::Verdict(verdict)]);
        let mut transaction = Transaction::new();
        transaction.add(Table::new(&table));
        transaction.add(Chain::new(&table, "chain"));
        transaction.add(verdict(Verdict::Accept));
        transaction.insert(verdict(Verdict::Drop));
        client.commit(&transaction).unwrap();
        let listed = client.rules(&table, Some("chain")).unwrap();
        let texts: Vec<_> = listed.iter().map(|rule| rule.object.to_string()).collect();
        assert_eq!(texts, ["drop", "accept"]);

        let mut transaction = Transaction::new();
        transaction.replace(verdict(Verdict::Return), listed[0].handle);
        transaction.delete_rule(&table, "chain", listed[1].handle);
        client.commit(&transaction).unwrap();
        let listed = client.rules(&table, Some("chain")).unwrap();
        let texts: Vec<_> = listed.iter().map(|rule| rule.object.to_string()).collect();
        assert_eq!(texts, ["return"]);

        let mut transaction = Transaction::new();
        transaction.flush(Table::new(&table));
        transaction.destroy(Chain::new(&table, "chain"));
        transaction.destroy(Chain::new(&table, "never-made"));
        client.commit(&transaction).unwrap();
        assert_eq!(client.chains(&table).unwrap(), []);
    });
}

#[test]
fn rules_of_others_are_read_without_loss() {
    in_namespace(|| {
        run_with_input(
            "nft",
            &["-f", "-"],
            "table inet other {
                set ports { type inet_service; flags interval; elements = { 80, 8000-8100 } }
                chain c {
                    type filter hook input priority 0
                    tcp dport { 22, 23 } ip dscp set cs1 counter
                    ip saddr & 255.0.0.255 == 10.0.0.1 quota over 25 mbytes
                    meta mark set ct mark << 4
                    tcp flags & (fin | syn) == syn
                }
            }",
        );
        let table = TableId::new(Family::Inet, "other");
        let mut client = Client::open().unwrap();
        let rules = client.rules(&table, None).unwrap();
        assert_eq!(rules.len(), 4);
        let unknown: Vec<_> = rules
            .iter()
            .flat_map(|rule| &rule.object.expressions)
            .filter_map(|expression| match expression {
                Expr::Unknown { name, attributes } if !attributes.is_empty() => Some(name.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(unknown, ["payload", "quota", "bitwise"]);
        // What is not understood is still sent back as it came.
        let mut transaction = Transaction::new();
        let copy = TableId::new(Family::Inet, "copy");
        transaction.add(Table::new(&copy));
        transaction.add(Chain::new(&copy, "c"));
        for rule in &rules[1..] {
            transaction.add(Rule::new(&copy, "c", rule.object.expressions.clone()));
        }
        client.commit(&transaction).unwrap();
        let copied = client.rules(&copy, None).unwrap();
        for (copied, rule) in copied.iter().zip(&rules[1..]) {
            assert_eq!(copied.object.expressions, rule.object.expressions);
        }
        let elements = client.elements(&table, "ports").unwrap();
        assert!(elements.iter().any(|element| element.interval_end), "{elements:?}");
    });
}
