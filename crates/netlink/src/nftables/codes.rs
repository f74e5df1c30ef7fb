//! Numbers of linux/netfilter/nf_tables.h and nfnetlink.h.

/// Declares an enum over kernel numbers that keeps numbers it does not know.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        $name:ident { $( $(#[$variant_meta:meta])* $variant:ident = $code:literal $text:literal, )+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )+
            /// A number this program has no name for.
            Other(u32),
        }

        impl $name {
            /// The kernel's number.
            pub const fn code(self) -> u32 {
                match self {
                    $( Self::$variant => $code, )+
                    Self::Other(code) => code,
                }
            }

            /// The value for a kernel number.
            pub const fn from_code(code: u32) -> Self {
                match code {
                    $( $code => Self::$variant, )+
                    other => Self::Other(other),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $( Self::$variant => formatter.write_str($text), )+
                    Self::Other(code) => write!(formatter, "unknown-{code}"),
                }
            }
        }
    };
}
pub(crate) use codes;

/// Subsystem number of nf_tables, the high byte of message types.
pub(crate) const SUBSYSTEM: u16 = 10;

/// Message types of nf_tables without the subsystem.
pub(crate) mod message {
    pub(crate) const NEW_TABLE: u16 = 0;
    pub(crate) const GET_TABLE: u16 = 1;
    pub(crate) const DELETE_TABLE: u16 = 2;
    pub(crate) const NEW_CHAIN: u16 = 3;
    pub(crate) const GET_CHAIN: u16 = 4;
    pub(crate) const DELETE_CHAIN: u16 = 5;
    pub(crate) const NEW_RULE: u16 = 6;
    pub(crate) const GET_RULE: u16 = 7;
    pub(crate) const DELETE_RULE: u16 = 8;
    pub(crate) const NEW_SET: u16 = 9;
    pub(crate) const GET_SET: u16 = 10;
    pub(crate) const DELETE_SET: u16 = 11;
    pub(crate) const NEW_ELEMENTS: u16 = 12;
    pub(crate) const GET_ELEMENTS: u16 = 13;
    pub(crate) const DELETE_ELEMENTS: u16 = 14;
    pub(crate) const NEW_GENERATION: u16 = 15;
    pub(crate) const GET_GENERATION: u16 = 16;
    pub(crate) const NEW_OBJECT: u16 = 18;
    pub(crate) const GET_OBJECT: u16 = 19;
    pub(crate) const DELETE_OBJECT: u16 = 20;
    pub(crate) const DESTROY_TABLE: u16 = 26;
    pub(crate) const DESTROY_CHAIN: u16 = 27;
    pub(crate) const DESTROY_RULE: u16 = 28;
    pub(crate) const DESTROY_SET: u16 = 29;
    pub(crate) const DESTROY_ELEMENTS: u16 = 30;
    pub(crate) const DESTROY_OBJECT: u16 = 31;
    pub(crate) const BATCH_BEGIN: u16 = 16;
    pub(crate) const BATCH_END: u16 = 17;
}

/// `NFTA_LIST_ELEM`.
pub(crate) const LIST_ELEMENT: u16 = 1;

/// `NFTA_TABLE_*`.
pub(crate) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
    pub(crate) const HANDLE: u16 = 4;
    pub(crate) const USERDATA: u16 = 6;
}

/// `NFTA_CHAIN_*` and `NFTA_HOOK_*`.
pub(crate) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const HANDLE: u16 = 2;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const KIND: u16 = 7;
    pub(crate) const USERDATA: u16 = 12;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
}

/// `NFTA_RULE_*`.
pub(crate) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const POSITION: u16 = 6;
    pub(crate) const USERDATA: u16 = 7;
}

/// `NFTA_SET_*`, `NFTA_SET_DESC_*` and `NFT_SET_*`.
pub(crate) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LENGTH: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LENGTH: u16 = 7;
    pub(crate) const DESCRIPTION: u16 = 9;
    pub(crate) const ID: u16 = 10;
    pub(crate) const TIMEOUT: u16 = 11;
    pub(crate) const USERDATA: u16 = 13;
    pub(crate) const HANDLE: u16 = 16;
    /// Since Linux 6.16.
    pub(crate) const COUNT: u16 = 20;
    pub(crate) const DESCRIPTION_SIZE: u16 = 1;
    pub(crate) const DESCRIPTION_CONCAT: u16 = 2;
    pub(crate) const FIELD_LENGTH: u16 = 1;
    pub(crate) const FLAG_INTERVAL: u32 = 0x4;
    pub(crate) const FLAG_MAP: u32 = 0x8;
    pub(crate) const FLAG_OBJECT: u32 = 0x40;
    pub(crate) const FLAG_CONCAT: u32 = 0x80;
    pub(crate) const TYPE_VERDICT: u32 = 0xffff_ff00;
}

/// `NFTA_SET_ELEM_*` and `NFTA_SET_ELEM_LIST_*`.
pub(crate) mod element {
    pub(crate) const LIST_TABLE: u16 = 1;
    pub(crate) const LIST_SET: u16 = 2;
    pub(crate) const LIST_ELEMENTS: u16 = 3;
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const TIMEOUT: u16 = 4;
    pub(crate) const EXPIRATION: u16 = 5;
    pub(crate) const USERDATA: u16 = 6;
    pub(crate) const KEY_END: u16 = 10;
    pub(crate) const FLAG_INTERVAL_END: u32 = 1;
}

/// `NFTA_DATA_*` and `NFTA_VERDICT_*`.
pub(crate) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const VERDICT_CODE: u16 = 1;
    pub(crate) const VERDICT_CHAIN: u16 = 2;
}

/// `NFTA_OBJ_*`.
pub(crate) mod object {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const KIND: u16 = 3;
    pub(crate) const DATA: u16 = 4;
    pub(crate) const HANDLE: u16 = 6;
    pub(crate) const USERDATA: u16 = 8;
    pub(crate) const KIND_COUNTER: u32 = 1;
}
