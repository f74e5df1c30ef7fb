//! nf_tables: the ruleset as values, transactions over it, and the codec between both and the kernel.

mod batch;
mod client;
mod codes;
mod decode;
mod element;
pub mod expr;
mod expr_decode;
mod expr_encode;
mod keys;
mod list;
mod monitor;
mod register;
mod set;
mod table;
mod text;
mod transaction;
mod userdata;
mod verdict;

pub use batch::{Batch, Origin};
pub use client::Client;
pub use decode::{Change, Event, Generation, SetElements, Subject};
pub use element::{Element, ElementParts, Elements, Value, ValueParts};
pub use expr::{Expr, Rule};
pub use monitor::{Monitor, Notice};
pub use register::{IMAGE_MAX, Image, Register};
pub use set::{DataType, Set, SetFlags, SetKind};
pub use table::{BaseChain, Chain, ChainKind, Family, Hook, Listed, Name, Policy, Table, TableId};
pub use transaction::{Counter, Object, Operation, Transaction, Verb};
pub use userdata::COMMENT_MAX;
pub use verdict::Verdict;
