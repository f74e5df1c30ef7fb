//! Verdicts: what a rule or a verdict map decides.

use super::codes::data;
use super::table::Name;
use crate::wire::{Attribute, Malformed, Writer};
use std::fmt;

/// What happens to the packet next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Let it pass this hook.
    Accept,
    /// Lose it.
    Drop,
    /// Go on with the next rule.
    Continue,
    /// Leave the rule as if it had not matched.
    Break,
    /// Go back to the calling chain.
    Return,
    /// Call a chain.
    Jump(Name),
    /// Go to a chain without coming back to this one.
    Goto(Name),
    /// A code this program has no name for, such as queueing to user space.
    Other(i32),
}

impl Verdict {
    /// The kernel's number and the target chain.
    pub(crate) fn parts(&self) -> (i32, Option<&str>) {
        match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Continue => (-1, None),
            Self::Break => (-2, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
            Self::Return => (-5, None),
            Self::Other(code) => (*code, None),
        }
    }

    /// Writes the `NFTA_DATA_VERDICT` nest.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        let (code, chain) = self.parts();
        writer.nest(data::VERDICT, |writer| {
            writer.i32(data::VERDICT_CODE, code);
            if let Some(chain) = chain {
                writer.string(data::VERDICT_CHAIN, chain);
            }
        });
    }

    /// Reads the `NFTA_DATA_VERDICT` nest.
    pub(crate) fn decode(nest: &Attribute<'_>) -> Result<Self, Malformed> {
        let mut code = None;
        let mut chain = None;
        for attribute in nest.nested() {
            let attribute = attribute?;
            match attribute.kind {
                data::VERDICT_CODE => code = Some(attribute.i32()?),
                data::VERDICT_CHAIN => chain = Some(Name::from(attribute.text())),
                _ => {}
            }
        }
        match (code.ok_or(Malformed { what: "verdict without code" })?, chain) {
            (0, _) => Ok(Self::Drop),
            (1, _) => Ok(Self::Accept),
            (-1, _) => Ok(Self::Continue),
            (-2, _) => Ok(Self::Break),
            (-3, Some(chain)) => Ok(Self::Jump(chain)),
            (-4, Some(chain)) => Ok(Self::Goto(chain)),
            (-5, _) => Ok(Self::Return),
            (code, _) => Ok(Self::Other(code)),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => formatter.write_str("accept"),
            Self::Drop => formatter.write_str("drop"),
            Self::Continue => formatter.write_str("continue"),
            Self::Break => formatter.write_str("break"),
            Self::Return => formatter.write_str("return"),
            Self::Jump(chain) => write!(formatter, "jump {chain}"),
            Self::Goto(chain) => write!(formatter, "goto {chain}"),
            Self::Other(code) => write!(formatter, "verdict {code}"),
        }
    }
}
