//! Expressions to attributes.

use super::codes::{LIST_ELEMENT, data, object};
use super::expr::{Expr, Reject};
use super::register::Register;
use super::table::Name;
use super::verdict::Verdict;
use crate::wire::Writer;
use std::time::Duration;

const NAME: u16 = 1;
const DATA: u16 = 2;

impl Expr {
    /// The kernel's name for the expression.
    pub fn name(&self) -> &str {
        match self {
            Self::Payload { .. } => "payload",
            Self::Meta { .. } | Self::SetMeta { .. } => "meta",
            Self::Ct { .. } | Self::SetCt { .. } => "ct",
            Self::Fib { .. } => "fib",
            Self::Cmp { .. } => "cmp",
            Self::Range { .. } => "range",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::Dynset { .. } => "dynset",
            Self::Numgen { .. } => "numgen",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Nat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Notrack => "notrack",
            Self::Reject(_) => "reject",
            Self::Counter { .. } => "counter",
            Self::NamedCounter(_) => "objref",
            Self::Limit { .. } => "limit",
            Self::Log { .. } => "log",
            Self::Unknown { name, .. } => name,
        }
    }

    /// Writes the expression as one element of a rule's list.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.nest(LIST_ELEMENT, |writer| {
            writer.string(NAME, self.name());
            writer.nest(DATA, |writer| self.encode_attributes(writer));
        });
    }

    fn encode_attributes(&self, writer: &mut Writer) {
        match self {
            Self::Payload { base, offset, length, target } => {
                writer.u32(1, target.code());
                writer.u32(2, base.code());
                writer.u32(3, *offset);
                writer.u32(4, *length);
            }
            Self::Meta { key, target } => {
                writer.u32(2, key.code());
                writer.u32(1, target.code());
            }
            Self::SetMeta { key, source } => {
                writer.u32(2, key.code());
                writer.u32(3, source.code());
            }
            Self::Ct { key, direction, target } => {
                writer.u32(2, key.code());
                writer.u32(1, target.code());
                encode_direction(writer, direction.map(super::expr::Direction::code));
            }
            Self::SetCt { key, direction, source } => {
                writer.u32(2, key.code());
                writer.u32(4, source.code());
                encode_direction(writer, direction.map(super::expr::Direction::code));
            }
            Self::Fib { result, flags, target } => {
                writer.u32(1, target.code());
                writer.u32(2, result.code());
                writer.u32(3, *flags);
            }
            Self::Cmp { source, operator, value } => {
                writer.u32(1, source.code());
                writer.u32(2, operator.code());
                encode_value(writer, 3, value);
            }
            Self::Range { source, inverted, from, to } => {
                writer.u32(1, source.code());
                writer.u32(2, u32::from(*inverted));
                encode_value(writer, 3, from);
                encode_value(writer, 4, to);
            }
            Self::Bitwise { source, target, mask, xor } => {
                encode_bitwise(writer, *source, *target, mask, xor);
            }
            Self::Lookup { set, key, target, inverted } => {
                encode_lookup(writer, set, *key, *target, *inverted);
            }
            Self::Dynset { set, operation, key, data, timeout } => {
                writer.string(1, set);
                writer.u32(3, operation.code());
                writer.u32(4, key.code());
                if let Some(data) = data {
                    writer.u32(5, data.code());
                }
                if let Some(timeout) = timeout {
                    writer.u64(6, milliseconds(*timeout));
                }
            }
            Self::Numgen { kind, modulus, offset, target } => {
                writer.u32(1, target.code());
                writer.u32(2, *modulus);
                writer.u32(3, kind.code());
                writer.u32(4, *offset);
            }
            _ => self.encode_statement(writer),
        }
    }

    fn encode_statement(&self, writer: &mut Writer) {
        match self {
            Self::Immediate { value, target } => {
                writer.u32(1, target.code());
                encode_value(writer, 2, value);
            }
            Self::Verdict(verdict) => encode_verdict(writer, verdict),
            Self::Nat { kind, family, address, port, flags } => {
                writer.u32(1, kind.code());
                writer.u32(2, family.code());
                if let Some(address) = address {
                    writer.u32(3, address.code());
                }
                if let Some(port) = port {
                    writer.u32(5, port.code());
                }
                if *flags != 0 {
                    writer.u32(7, *flags);
                }
            }
            Self::Masquerade { flags: 0 } => {}
            Self::Masquerade { flags } => writer.u32(1, *flags),
            Self::Reject(reject) => encode_reject(writer, *reject),
            Self::Counter { packets, bytes } => {
                writer.u64(1, *bytes);
                writer.u64(2, *packets);
            }
            Self::NamedCounter(name) => {
                writer.u32(1, object::KIND_COUNTER);
                writer.string(2, name);
            }
            Self::Limit { rate, per, burst, inverted } => {
                writer.u64(1, *rate);
                writer.u64(2, per.as_secs());
                writer.u32(3, *burst);
                writer.u32(4, 0);
                writer.u32(5, u32::from(*inverted));
            }
            Self::Log { prefix } => writer.string(2, prefix),
            Self::Unknown { attributes, .. } => writer.raw(attributes),
            _ => {}
        }
    }
}

/// A duration in the kernel's unit of timeouts.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn encode_value(writer: &mut Writer, kind: u16, value: &[u8]) {
    writer.nest(kind, |writer| writer.attribute(data::VALUE, value));
}

fn encode_direction(writer: &mut Writer, direction: Option<u32>) {
    if let Some(direction) = direction.and_then(|code| u8::try_from(code).ok()) {
        writer.u8(3, direction);
    }
}

fn encode_bitwise(writer: &mut Writer, source: Register, target: Register, mask: &[u8], xor: &[u8]) {
    writer.u32(1, source.code());
    writer.u32(2, target.code());
    writer.u32(3, u32::try_from(mask.len()).unwrap_or(u32::MAX));
    writer.u32(6, 0);
    encode_value(writer, 4, mask);
    encode_value(writer, 5, xor);
}

fn encode_lookup(writer: &mut Writer, set: &Name, key: Register, target: Option<Register>, inverted: bool) {
    writer.string(1, set);
    writer.u32(2, key.code());
    if let Some(target) = target {
        writer.u32(3, target.code());
    }
    if inverted {
        writer.u32(5, 1);
    }
}

fn encode_verdict(writer: &mut Writer, verdict: &Verdict) {
    writer.u32(1, Register::VERDICT.code());
    writer.nest(2, |writer| verdict.encode(writer));
}

fn encode_reject(writer: &mut Writer, reject: Reject) {
    let (kind, code) = reject.parts();
    writer.u32(1, kind);
    writer.u8(2, code);
}
