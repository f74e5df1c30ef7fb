//! Random rulesets.

use portwarden_netlink::nftables::expr::{
    CmpOperator, CtKey, Direction, DynsetOperation, FibResult, MetaKey, NatKind, NumgenKind, PayloadBase,
    Reject,
};
use portwarden_netlink::nftables::{
    BaseChain, Chain, ChainKind, Counter, DataType, ElementParts, Elements, Expr, Family, Hook, Object,
    Operation, Policy, Register, Rule, Set, SetFlags, SetKind, Table, TableId, Transaction, ValueParts, Verb,
    Verdict,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// A transaction that adds objects; every operation is one message.
pub(crate) fn transaction() -> impl Strategy<Value = Transaction> {
    prop::collection::vec(object(), 1..8).prop_map(|objects| {
        let mut transaction = Transaction::new();
        transaction.extend(objects.into_iter().map(|object| Operation { verb: Verb::Add, object }));
        transaction
    })
}

fn object() -> impl Strategy<Value = Object> {
    let counter = (table_id(), name(), any::<u64>(), any::<u64>(), comment()).prop_map(
        |(table, name, packets, bytes, comment)| Counter {
            packets,
            bytes,
            comment,
            ..Counter::new(&table, name)
        },
    );
    prop_oneof![
        table().prop_map(Object::from),
        chain().prop_map(Object::from),
        rule().prop_map(Object::from),
        set().prop_map(Object::from),
        (set(), elements()).prop_map(|(set, elements)| Object::Elements { set: Arc::new(set), elements }),
        counter.prop_map(Object::from),
    ]
}

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9./-]{0,40}"
}

fn comment() -> impl Strategy<Value = Option<String>> {
    prop::option::of("[^\0]{0,32}")
}

fn table_id() -> impl Strategy<Value = TableId> {
    (prop::sample::select(vec![Family::Ip, Family::Ip6, Family::Inet, Family::Bridge]), name())
        .prop_map(|(family, name)| TableId::new(family, name))
}

fn table() -> impl Strategy<Value = Table> {
    (table_id(), comment()).prop_map(|(id, comment)| Table { id, comment })
}

fn chain() -> impl Strategy<Value = Chain> {
    let kind = prop_oneof![
        Just(ChainKind::Filter),
        Just(ChainKind::Nat),
        Just(ChainKind::Route),
        "x[a-z]{1,9}".prop_map(ChainKind::Other)
    ];
    let base = (kind, 0_u32..8, any::<i32>(), 0_u32..3).prop_map(|(kind, hook, priority, policy)| {
        BaseChain { kind, hook: Hook::from_code(hook), priority, policy: Policy::from_code(policy) }
    });
    (table_id(), name(), prop::option::of(base), comment()).prop_map(|(table, name, base, comment)| Chain {
        table,
        name: name.into(),
        base,
        comment,
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    (table_id(), name(), prop::collection::vec(expression(), 0..10), comment()).prop_map(
        |(table, chain, expressions, comment)| Rule { table, chain: chain.into(), expressions, comment },
    )
}

fn datatypes() -> impl Strategy<Value = Vec<DataType>> {
    use DataType::*;
    let one = prop::sample::select(vec![
        Integer,
        Ipv4Address,
        Ipv6Address,
        Protocol,
        Service,
        Mark,
        InterfaceIndex,
        ClassId,
        InterfaceName,
    ]);
    prop::collection::vec(one, 1..5)
}

fn set() -> impl Strategy<Value = Set> {
    let kind = prop_oneof![Just(SetKind::Set), datatypes().prop_map(SetKind::Map), Just(SetKind::VerdictMap)];
    let flags = prop::sample::select(vec![
        SetFlags::NONE,
        SetFlags::INTERVAL,
        SetFlags::DYNAMIC,
        SetFlags::TIMEOUT.with(SetFlags::DYNAMIC),
    ]);
    let size = prop::option::of(1..u32::MAX);
    let timeout = prop::option::of((1_u64..1_000_000).prop_map(Duration::from_millis));
    (table_id(), name(), datatypes(), kind, flags, size, timeout, comment()).prop_map(
        |(table, name, key, kind, flags, size, timeout, comment)| Set {
            table,
            name: name.into(),
            key,
            kind,
            flags,
            size,
            timeout,
            comment,
        },
    )
}

fn elements() -> impl Strategy<Value = Elements> {
    let value = prop::option::of(prop_oneof![bytes().prop_map(Ok), verdict().prop_map(Err)]);
    let duration = || prop::option::of(any::<u32>().prop_map(|ms| Duration::from_millis(ms.into())));
    let element =
        (bytes(), prop::option::of(bytes()), value, any::<bool>(), duration(), duration(), comment());
    prop::collection::vec(element, 1..20).prop_map(|list| {
        let mut elements = Elements::new();
        for (key, key_end, value, interval_end, timeout, expiration, comment) in &list {
            elements.push(&ElementParts {
                key,
                key_end: key_end.as_deref(),
                value: value.as_ref().map(|value| match value {
                    Ok(bytes) => ValueParts::Data(bytes),
                    Err(verdict) => ValueParts::Verdict(verdict),
                }),
                interval_end: *interval_end,
                timeout: *timeout,
                expiration: *expiration,
                comment: comment.as_deref(),
            });
        }
        elements
    })
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..64)
}

fn register() -> impl Strategy<Value = Register> {
    (0_u8..16).prop_map(Register::word)
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Accept),
        Just(Verdict::Drop),
        Just(Verdict::Continue),
        Just(Verdict::Break),
        Just(Verdict::Return),
        name().prop_map(|chain| Verdict::Jump(chain.into())),
        name().prop_map(|chain| Verdict::Goto(chain.into())),
        Just(Verdict::Other(3)),
    ]
}

fn expression() -> impl Strategy<Value = Expr> {
    prop_oneof![load(), test(), statement()]
}

fn load() -> impl Strategy<Value = Expr> {
    prop_oneof![
        (0_u32..5, any::<u32>(), any::<u32>(), register()).prop_map(|(base, offset, length, target)| {
            Expr::Payload { base: PayloadBase::from_code(base), offset, length, target }
        }),
        (0_u32..30, register()).prop_map(|(key, target)| Expr::Meta { key: MetaKey::from_code(key), target }),
        (0_u32..30, prop::option::of(0_u32..3), register()).prop_map(|(key, direction, target)| Expr::Ct {
            key: CtKey::from_code(key),
            direction: direction.map(Direction::from_code),
            target,
        }),
        (0_u32..5, any::<u32>(), register()).prop_map(|(result, flags, target)| Expr::Fib {
            result: FibResult::from_code(result),
            flags,
            target,
        }),
        (0_u32..3, any::<u32>(), any::<u32>(), register()).prop_map(|(kind, modulus, offset, target)| {
            Expr::Numgen { kind: NumgenKind::from_code(kind), modulus, offset, target }
        }),
        (bytes(), register()).prop_map(|(value, target)| Expr::Immediate { value, target }),
        (register(), register(), bytes(), bytes()).prop_map(|(source, target, mask, xor)| Expr::Bitwise {
            source,
            target,
            mask,
            xor
        }),
    ]
}

fn test() -> impl Strategy<Value = Expr> {
    let target = prop::option::of(prop_oneof![register(), Just(Register::VERDICT)]);
    prop_oneof![
        (register(), 0_u32..8, bytes()).prop_map(|(source, operator, value)| Expr::Cmp {
            source,
            operator: CmpOperator::from_code(operator),
            value,
        }),
        (register(), any::<bool>(), bytes(), bytes()).prop_map(|(source, inverted, from, to)| Expr::Range {
            source,
            inverted,
            from,
            to
        }),
        (name(), register(), target, any::<bool>()).prop_map(|(set, key, target, inverted)| Expr::Lookup {
            set: set.into(),
            key,
            target,
            inverted,
        }),
        (any::<u64>(), any::<u32>(), any::<u32>(), any::<bool>()).prop_map(|(rate, per, burst, inverted)| {
            Expr::Limit { rate, per: Duration::from_secs(per.into()), burst, inverted }
        }),
    ]
}

fn statement() -> impl Strategy<Value = Expr> {
    let timeout = prop::option::of((1_u64..u64::from(u32::MAX)).prop_map(Duration::from_millis));
    let reject = (0_u32..4, any::<u8>()).prop_map(|(kind, code)| match kind {
        0 => Reject::Icmp(code),
        1 => Reject::TcpReset,
        2 => Reject::Icmpx(code),
        kind => Reject::Other { kind, code },
    });
    prop_oneof![
        verdict().prop_map(Expr::Verdict),
        (0_u32..30, register())
            .prop_map(|(key, source)| Expr::SetMeta { key: MetaKey::from_code(key), source }),
        (0_u32..30, register()).prop_map(|(key, source)| Expr::SetCt {
            key: CtKey::from_code(key),
            direction: None,
            source,
        }),
        (name(), 0_u32..4, register(), prop::option::of(register()), timeout).prop_map(
            |(set, operation, key, data, timeout)| Expr::Dynset {
                set: set.into(),
                operation: DynsetOperation::from_code(operation),
                key,
                data,
                timeout,
            }
        ),
        (any::<bool>(), any::<u32>(), any::<u32>()).prop_map(|(source, family, flags)| Expr::Nat {
            kind: if source { NatKind::Source } else { NatKind::Destination },
            family: Family::from_code(family % 12),
            address: None,
            port: None,
            flags: flags & !3,
        }),
        any::<u32>().prop_map(|flags| Expr::Masquerade { flags }),
        Just(Expr::Notrack),
        reject.prop_map(Expr::Reject),
        (any::<u64>(), any::<u64>()).prop_map(|(packets, bytes)| Expr::Counter { packets, bytes }),
        name().prop_map(|name| Expr::NamedCounter(name.into())),
        name().prop_map(|prefix| Expr::Log { prefix }),
        name().prop_map(|name| Expr::Unknown {
            name: format!("x-{name}"),
            attributes: vec![8, 0, 1, 0, 1, 2, 3, 4]
        }),
    ]
}
