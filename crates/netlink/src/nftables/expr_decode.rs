//! Attributes to expressions. What does not fit the model is kept as it came, see [`Expr::Unknown`].

use super::codes::{data, object};
use super::element::Value;
use super::expr::{
    CmpOperator, CtKey, Direction, DynsetOperation, Expr, FibResult, MetaKey, NatKind, NumgenKind,
    PayloadBase, Reject,
};
use super::register::Register;
use super::table::{Family, Name};
use crate::wire::{Attribute, Attributes, Malformed};
use std::time::Duration;

const NAME: u16 = 1;
const DATA: u16 = 2;

impl Expr {
    /// Reads one expression from its nest in a rule's list.
    pub(crate) fn decode(nest: &Attribute<'_>) -> Result<Self, Malformed> {
        let mut name = String::new();
        let mut attributes: &[u8] = &[];
        for attribute in nest.nested() {
            let attribute = attribute?;
            match attribute.kind {
                NAME => name = attribute.text().into_owned(),
                DATA => attributes = attribute.payload,
                _ => {}
            }
        }
        let known = Fields::collect(attributes)?.expression(&name);
        Ok(known.unwrap_or_else(|| Self::Unknown { name, attributes: attributes.to_vec() }))
    }
}

impl Expr {
    /// The name of the iptables extension in an expression that the nft variant of iptables has written.
    pub fn extension(&self) -> Option<String> {
        let Self::Unknown { name, attributes } = self else { return None };
        let known = matches!(name.as_str(), "match" | "target");
        let fields = Fields::collect(attributes).ok().filter(|_| known)?;
        Some(fields.get(NAME.into())?.text().into_owned())
    }
}

/// The attributes of one expression by their numbers. A missing or short one is `None`.
struct Fields<'a>([Option<Attribute<'a>>; 16]);

impl<'a> Fields<'a> {
    fn collect(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = [None; 16];
        for attribute in Attributes::new(bytes) {
            let attribute = attribute?;
            if let Some(place) = fields.get_mut(usize::from(attribute.kind)) {
                *place = Some(attribute);
            }
        }
        Ok(Self(fields))
    }

    /// The expression, unless a part is missing or of a form that is not modelled.
    fn expression(&self, name: &str) -> Option<Expr> {
        match name {
            "payload" => self.payload(),
            "meta" => self.meta(),
            "ct" => self.ct(),
            "fib" => self.fib(),
            "cmp" => self.cmp(),
            "range" => self.range(),
            "bitwise" => self.bitwise(),
            "lookup" => self.lookup(),
            "dynset" => self.dynset(),
            "numgen" => self.numgen(),
            "immediate" => self.immediate(),
            "nat" => self.nat(),
            "masq" => self.masquerade(),
            "notrack" => Some(Expr::Notrack),
            "reject" => self.reject(),
            "counter" => Some(Expr::Counter { bytes: self.u64(1)?, packets: self.u64(2)? }),
            "objref" => self.named_counter(),
            "limit" => self.limit(),
            "log" => self.log(),
            _ => None,
        }
    }

    fn payload(&self) -> Option<Expr> {
        // With a source register it writes to the packet.
        if self.has(5) {
            return None;
        }
        Some(Expr::Payload {
            target: self.register(1)?,
            base: PayloadBase::from_code(self.u32(2)?),
            offset: self.u32(3)?,
            length: self.u32(4)?,
        })
    }

    fn meta(&self) -> Option<Expr> {
        let key = MetaKey::from_code(self.u32(2)?);
        match self.register(3) {
            Some(source) => Some(Expr::SetMeta { key, source }),
            None => Some(Expr::Meta { key, target: self.register(1)? }),
        }
    }

    fn ct(&self) -> Option<Expr> {
        let key = CtKey::from_code(self.u32(2)?);
        let direction = match self.get(3) {
            Some(direction) => Some(Direction::from_code(direction.u8().ok()?.into())),
            None => None,
        };
        match self.register(4) {
            Some(source) => Some(Expr::SetCt { key, direction, source }),
            None => Some(Expr::Ct { key, direction, target: self.register(1)? }),
        }
    }

    fn fib(&self) -> Option<Expr> {
        Some(Expr::Fib {
            target: self.register(1)?,
            result: FibResult::from_code(self.u32(2)?),
            flags: self.u32(3)?,
        })
    }

    fn cmp(&self) -> Option<Expr> {
        Some(Expr::Cmp {
            source: self.register(1)?,
            operator: CmpOperator::from_code(self.u32(2)?),
            value: self.value(3)?,
        })
    }

    fn range(&self) -> Option<Expr> {
        let inverted = match self.u32(2)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Expr::Range { source: self.register(1)?, inverted, from: self.value(3)?, to: self.value(4)? })
    }

    fn bitwise(&self) -> Option<Expr> {
        // Shifts and operations on two registers are other operations.
        if self.u32(6).unwrap_or(0) != 0 {
            return None;
        }
        Some(Expr::Bitwise {
            source: self.register(1)?,
            target: self.register(2)?,
            mask: self.value(4)?,
            xor: self.value(5)?,
        })
    }

    fn lookup(&self) -> Option<Expr> {
        Some(Expr::Lookup {
            set: self.name(1)?,
            key: self.register(2)?,
            target: self.register(3),
            inverted: self.u32(5).unwrap_or(0) & 1 != 0,
        })
    }

    fn dynset(&self) -> Option<Expr> {
        // Expressions attached to the elements, such as counters.
        if self.has(7) || self.has(10) {
            return None;
        }
        let timeout = self.u64(6).filter(|&timeout| timeout != 0).map(Duration::from_millis);
        Some(Expr::Dynset {
            set: self.name(1)?,
            operation: DynsetOperation::from_code(self.u32(3)?),
            key: self.register(4)?,
            data: self.register(5),
            timeout,
        })
    }

    fn numgen(&self) -> Option<Expr> {
        Some(Expr::Numgen {
            target: self.register(1)?,
            modulus: self.u32(2)?,
            kind: NumgenKind::from_code(self.u32(3)?),
            offset: self.u32(4).unwrap_or(0),
        })
    }

    fn immediate(&self) -> Option<Expr> {
        match (self.register(1)?, Value::decode(&self.get(2)?).ok()??) {
            (Register::VERDICT, Value::Verdict(verdict)) => Some(Expr::Verdict(verdict)),
            (target, Value::Data(value)) if target != Register::VERDICT => {
                Some(Expr::Immediate { value, target })
            }
            _ => None,
        }
    }

    fn nat(&self) -> Option<Expr> {
        let (address, port) = (self.register(3), self.register(5));
        // The kernel lists the end of a range also if it is its start.
        if self.register(4) != address || self.register(6) != port {
            return None;
        }
        // It also lists the bits it derives itself: an address is given, a port is given.
        const DERIVED: u32 = 0x1 | 0x2;
        Some(Expr::Nat {
            kind: NatKind::from_code(self.u32(1)?),
            family: Family::from_code(self.u32(2)?),
            address,
            port,
            flags: self.u32(7).unwrap_or(0) & !DERIVED,
        })
    }

    fn masquerade(&self) -> Option<Expr> {
        // A port range.
        if self.has(2) || self.has(3) {
            return None;
        }
        Some(Expr::Masquerade { flags: self.u32(1).unwrap_or(0) })
    }

    fn reject(&self) -> Option<Expr> {
        let code = self.get(2).and_then(|code| code.u8().ok()).unwrap_or(0);
        Some(Expr::Reject(Reject::from_parts(self.u32(1)?, code)))
    }

    fn named_counter(&self) -> Option<Expr> {
        if self.u32(1)? != object::KIND_COUNTER {
            return None;
        }
        self.name(2).map(Expr::NamedCounter)
    }

    fn limit(&self) -> Option<Expr> {
        const PACKETS: u32 = 0;
        if self.u32(4)? != PACKETS {
            return None;
        }
        Some(Expr::Limit {
            rate: self.u64(1)?,
            per: Duration::from_secs(self.u64(2)?),
            burst: self.u32(3)?,
            inverted: self.u32(5).unwrap_or(0) & 1 != 0,
        })
    }

    fn log(&self) -> Option<Expr> {
        const WARNING: u32 = 4;
        let plain = !self.has(1) && self.u32(5).is_none_or(|level| level == WARNING);
        let prefix = self.get(2).map(|prefix| prefix.text().into_owned()).unwrap_or_default();
        (plain && self.u32(6).unwrap_or(0) == 0).then_some(Expr::Log { prefix })
    }

    fn get(&self, kind: usize) -> Option<Attribute<'a>> {
        self.0.get(kind).copied().flatten()
    }

    fn has(&self, kind: usize) -> bool {
        self.get(kind).is_some()
    }

    fn u32(&self, kind: usize) -> Option<u32> {
        self.get(kind)?.u32().ok()
    }

    fn u64(&self, kind: usize) -> Option<u64> {
        self.get(kind)?.u64().ok()
    }

    fn register(&self, kind: usize) -> Option<Register> {
        Register::from_code(self.u32(kind)?)
    }

    fn name(&self, kind: usize) -> Option<Name> {
        Some(Name::from(self.get(kind)?.text()))
    }

    fn value(&self, kind: usize) -> Option<Vec<u8>> {
        self.get(kind)?
            .nested()
            .flatten()
            .find(|value| value.kind == data::VALUE)
            .map(|value| value.payload.to_vec())
    }
}
