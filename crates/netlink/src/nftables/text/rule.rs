//! Rules: expressions on registers back to nft's language, which knows none.

use super::symbol::{Kind, Symbol};
use super::value;
use crate::nftables::expr::{CmpOperator, Expr, MetaKey, Reject, Rule, nat};
use crate::nftables::register::Register;
use crate::nftables::set::DataType;
use crate::nftables::table::Family;
use std::time::Duration;

/// What a rule says, without its place and comment.
pub(super) fn body(rule: &Rule) -> String {
    let mut printer = Printer { family: rule.table.family, registers: Vec::new(), parts: Vec::new() };
    for expression in &rule.expressions {
        printer.expression(expression);
    }
    printer.parts.join(" ")
}

struct Printer {
    family: Family,
    /// What was loaded and not used yet, by the first word.
    registers: Vec<(u8, Symbol)>,
    parts: Vec<String>,
}

impl Printer {
    fn expression(&mut self, expression: &Expr) {
        match expression {
            Expr::Payload { base, offset, length, target } => {
                self.load(*target, Symbol::payload(self.family, *base, *offset, *length));
            }
            Expr::Meta { key, target } => self.load(*target, Symbol::meta(*key)),
            Expr::Ct { key, direction, target } => {
                self.load(*target, Symbol::ct(self.family, *key, *direction));
            }
            Expr::Fib { result, flags, target } => self.load(*target, Symbol::fib(*result, *flags)),
            Expr::Numgen { kind, modulus, offset, target } => {
                let offset = if *offset == 0 { String::new() } else { format!(" offset {offset}") };
                self.load(*target, Symbol::number(format!("numgen {kind} mod {modulus}{offset}")));
            }
            Expr::Immediate { value, target } => self.load(*target, Symbol::literal(value)),
            Expr::Bitwise { source, target, mask, xor } => {
                let symbol = self.take(*source).bitwise(mask, xor);
                self.load(*target, symbol);
            }
            Expr::Lookup { set, key, target, inverted } => {
                let key = self.concatenation(*key, None);
                match target {
                    None if *inverted => self.parts.push(format!("{key} != @{set}")),
                    None => self.parts.push(format!("{key} @{set}")),
                    Some(Register::VERDICT) => self.parts.push(format!("{key} vmap @{set}")),
                    Some(target) => self.load(*target, Symbol::mapped(format!("{key} map @{set}"))),
                }
            }
            statement => {
                let text = self.statement(statement);
                self.parts.push(text);
            }
        }
    }

    fn statement(&mut self, expression: &Expr) -> String {
        match expression {
            Expr::Cmp { source, operator, value } => {
                let symbol = self.take(*source);
                match operator {
                    CmpOperator::Equal => symbol.compared("", value),
                    operator => symbol.compared(&format!("{operator} "), value),
                }
            }
            Expr::Range { source, inverted, from, to } => {
                let symbol = self.take(*source);
                let operator = if *inverted { "!= " } else { "" };
                format!("{} {operator}{}-{}", symbol.text_with_mask(), symbol.spell(from), symbol.spell(to))
            }
            Expr::SetMeta { key, source } => {
                let symbol = self.take(*source);
                let value = match (&symbol.kind, key) {
                    (Kind::Literal(_), MetaKey::Priority) => symbol.as_type(DataType::ClassId),
                    (Kind::Literal(_), _) => symbol.as_type(DataType::Mark),
                    _ => symbol.text_with_mask(),
                };
                format!("meta {key} set {value}")
            }
            Expr::SetCt { key, source, .. } => {
                let symbol = self.take(*source);
                let value = match &symbol.kind {
                    Kind::Literal(_) => symbol.as_type(DataType::Mark),
                    _ => symbol.text_with_mask(),
                };
                format!("ct {key} set {value}")
            }
            Expr::Dynset { set, operation, key, data, timeout } => {
                let key = self.concatenation(*key, *data);
                let timeout = timeout.map(|t| format!(" timeout {}", value::duration(t))).unwrap_or_default();
                let data =
                    data.map(|data| format!(" : {}", self.concatenation(data, None))).unwrap_or_default();
                format!("{operation} @{set} {{ {key}{timeout}{data} }}")
            }
            Expr::Nat { kind, family, address, port, flags } => {
                let target = self.nat_target(*family, *address, *port);
                format!("{kind}{target}{}", nat_flags(*flags))
            }
            Expr::Masquerade { flags } => format!("masquerade{}", nat_flags(*flags)),
            Expr::Notrack => "notrack".to_owned(),
            Expr::Reject(reject) => reject_text(self.family, *reject),
            Expr::Verdict(verdict) => verdict.to_string(),
            Expr::Counter { packets, bytes } => format!("counter packets {packets} bytes {bytes}"),
            Expr::NamedCounter(name) => format!("counter name {}", value::quoted(name)),
            Expr::Limit { rate, per, burst, inverted } => {
                let over = if *inverted { "over " } else { "" };
                format!("limit rate {over}{rate}/{} burst {burst} packets", unit(*per))
            }
            Expr::Log { prefix } if prefix.is_empty() => "log".to_owned(),
            Expr::Log { prefix } => format!("log prefix {}", value::quoted(prefix)),
            other => format!("[{}]", other.name()),
        }
    }

    fn load(&mut self, target: Register, symbol: Symbol) {
        let Some(first) = target.index() else { return };
        let end = first.saturating_add(symbol.words.max(1));
        self.registers.retain(|(start, _)| !(first..end).contains(start));
        self.registers.push((first, symbol));
    }

    /// What a register holds; used once, as nft uses a register again only after loading it again.
    fn take(&mut self, register: Register) -> Symbol {
        let place = self.registers.iter().position(|(start, _)| Some(*start) == register.index());
        match place {
            Some(place) => self.registers.remove(place).1,
            None => Symbol::unloaded(register),
        }
    }

    /// The fields of a key: everything that was loaded without a gap from its first register on, up to the
    /// register where something else is known to start.
    fn concatenation(&mut self, register: Register, end: Option<Register>) -> String {
        let mut symbol = self.take(register);
        let mut text = symbol.text_with_mask();
        let mut next = register.index().map(|first| first.saturating_add(symbol.words));
        let end = end.and_then(Register::index);
        while let Some(first) =
            next.filter(|first| Some(*first) != end && self.registers.iter().any(|(start, _)| start == first))
        {
            symbol = self.take(Register::word(first));
            text = format!("{text} . {}", symbol.text_with_mask());
            next = Some(first.saturating_add(symbol.words));
        }
        text
    }

    fn nat_target(&mut self, family: Family, address: Option<Register>, port: Option<Register>) -> String {
        let address_type = if family == Family::Ip6 { DataType::Ipv6Address } else { DataType::Ipv4Address };
        let address = address.map(|address| self.take(address));
        // A map that gives the address gives the port beside it.
        let mapped = address.as_ref().is_some_and(|address| address.kind == Kind::Mapped);
        let port = if mapped { None } else { port.map(|port| self.take(port).as_type(DataType::Service)) };
        match (address, port) {
            (None, None) => String::new(),
            (None, Some(port)) => format!(" to :{port}"),
            (Some(address), None) if mapped => format!(" {family} to {}", address.text),
            (Some(address), None) => format!(" to {}", address.as_type(address_type)),
            (Some(address), Some(port)) => match (family, address.as_type(address_type)) {
                (Family::Ip6, address) => format!(" to [{address}]:{port}"),
                (_, address) => format!(" to {address}:{port}"),
            },
        }
    }
}

fn nat_flags(flags: u32) -> String {
    let names =
        [(nat::RANDOM, "random"), (nat::FULLY_RANDOM, "fully-random"), (nat::PERSISTENT, "persistent")];
    let found: Vec<_> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    if found.is_empty() { String::new() } else { format!(" {}", found.join(",")) }
}

fn reject_text(family: Family, reject: Reject) -> String {
    if reject == Reject::port_unreachable(family) {
        return "reject".to_owned();
    }
    match reject {
        Reject::TcpReset => "reject with tcp reset".to_owned(),
        Reject::Icmp(code) if family == Family::Ip6 => {
            let names = ["no-route", "admin-prohibited", "2", "addr-unreachable", "port-unreachable"];
            format!("reject with icmpv6 {}", named(&names, code))
        }
        Reject::Icmp(code) => {
            let names = ["net-unreachable", "host-unreachable", "prot-unreachable", "port-unreachable"];
            format!("reject with icmp {}", named(&names, code))
        }
        Reject::Icmpx(code) => {
            let names = ["no-route", "port-unreachable", "host-unreachable", "admin-prohibited"];
            format!("reject with icmpx {}", named(&names, code))
        }
        Reject::Other { kind, code } => format!("[reject {kind} {code}]"),
    }
}

fn named(names: &[&str], code: u8) -> String {
    names.get(usize::from(code)).map_or_else(|| code.to_string(), |name| (*name).to_owned())
}

fn unit(per: Duration) -> String {
    match per.as_secs() {
        1 => "second".to_owned(),
        60 => "minute".to_owned(),
        3_600 => "hour".to_owned(),
        86_400 => "day".to_owned(),
        other => format!("{other}s"),
    }
}
