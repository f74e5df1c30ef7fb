//! The words of expressions: what to load, how to compare, which flags.

use super::codes::codes;

codes! {
    /// From where a payload offset counts.
    PayloadBase {
        /// The link layer header.
        Link = 0 "ll",
        /// The network header.
        Network = 1 "nh",
        /// The transport header.
        Transport = 2 "th",
        /// What follows the transport header.
        Inner = 3 "ih",
    }
}

codes! {
    /// What the kernel knows about a packet.
    MetaKey {
        /// Length.
        Length = 0 "length",
        /// Ethernet protocol.
        Protocol = 1 "protocol",
        /// Traffic class; also free storage between rules for packets that no queue looks at.
        Priority = 2 "priority",
        /// Packet mark.
        Mark = 3 "mark",
        /// Index of the incoming interface.
        Iif = 4 "iif",
        /// Index of the outgoing interface.
        Oif = 5 "oif",
        /// Name of the incoming interface.
        Iifname = 6 "iifname",
        /// Name of the outgoing interface.
        Oifname = 7 "oifname",
        /// User that owns the socket.
        Skuid = 10 "skuid",
        /// Group that owns the socket.
        Skgid = 11 "skgid",
        /// Tracing of the packet.
        Nftrace = 12 "nftrace",
        /// Network protocol family.
        Nfproto = 15 "nfproto",
        /// Transport protocol.
        L4proto = 16 "l4proto",
        /// To whom the packet was sent.
        Pkttype = 19 "pkttype",
        /// Processor that handles the packet.
        Cpu = 20 "cpu",
        /// Control group of the socket.
        Cgroup = 23 "cgroup",
    }
}

codes! {
    /// What the kernel knows about a connection.
    CtKey {
        /// State of the packet within the connection.
        State = 0 "state",
        /// Direction of the packet.
        Direction = 1 "direction",
        /// Status bits, such as "destination translated".
        Status = 2 "status",
        /// Connection mark.
        Mark = 3 "mark",
        /// Time left.
        Expiration = 5 "expiration",
        /// Network protocol.
        L3proto = 7 "l3proto",
        /// Source address.
        Source = 8 "saddr",
        /// Destination address.
        Destination = 9 "daddr",
        /// Transport protocol.
        Protocol = 10 "protocol",
        /// Source port.
        ProtoSource = 11 "proto-src",
        /// Destination port.
        ProtoDestination = 12 "proto-dst",
        /// Zone.
        Zone = 17 "zone",
        /// IPv4 source address.
        SourceIp = 19 "ip saddr",
        /// IPv4 destination address.
        DestinationIp = 20 "ip daddr",
        /// IPv6 source address.
        SourceIp6 = 21 "ip6 saddr",
        /// IPv6 destination address.
        DestinationIp6 = 22 "ip6 daddr",
        /// Number of the connection.
        Id = 23 "id",
    }
}

/// Bits of [`CtKey::State`], in host byte order.
pub mod ct_state {
    /// Belongs to no valid connection.
    pub const INVALID: u32 = 1;
    /// Seen in both directions.
    pub const ESTABLISHED: u32 = 2;
    /// Belongs to another connection, such as an ICMP error.
    pub const RELATED: u32 = 4;
    /// First packet.
    pub const NEW: u32 = 8;
    /// Exempt from tracking.
    pub const UNTRACKED: u32 = 64;
}

/// Bits of [`CtKey::Status`], in host byte order.
pub mod ct_status {
    /// Seen in both directions.
    pub const SEEN_REPLY: u32 = 2;
    /// Source translated.
    pub const SNAT: u32 = 0x10;
    /// Destination translated.
    pub const DNAT: u32 = 0x20;
}

codes! {
    /// Direction of a connection.
    Direction {
        /// As the connection was opened.
        Original = 0 "original",
        /// The way back.
        Reply = 1 "reply",
    }
}

codes! {
    /// What to ask the routing table for.
    FibResult {
        /// Index of the outgoing interface.
        Oif = 1 "oif",
        /// Name of the outgoing interface.
        Oifname = 2 "oifname",
        /// Kind of the address, see [`address_type`].
        Type = 3 "type",
    }
}

/// What a `fib` expression looks up.
pub mod fib {
    /// The source address.
    pub const SADDR: u32 = 1;
    /// The destination address.
    pub const DADDR: u32 = 2;
    /// Take the packet mark into account.
    pub const MARK: u32 = 4;
    /// Take the incoming interface into account.
    pub const IIF: u32 = 8;
    /// Take the outgoing interface into account.
    pub const OIF: u32 = 16;
    /// Only whether there is a route.
    pub const PRESENT: u32 = 32;
}

/// Kinds of addresses that [`FibResult::Type`] loads, in host byte order.
pub mod address_type {
    /// Reached through a gateway or directly.
    pub const UNICAST: u32 = 1;
    /// An address of this host.
    pub const LOCAL: u32 = 2;
    /// A broadcast address.
    pub const BROADCAST: u32 = 3;
    /// A multicast address.
    pub const MULTICAST: u32 = 5;
}

codes! {
    /// How to compare.
    CmpOperator {
        /// Equal.
        Equal = 0 "==",
        /// Not equal.
        NotEqual = 1 "!=",
        /// Less, as a big-endian number.
        Less = 2 "<",
        /// Less or equal, as a big-endian number.
        LessOrEqual = 3 "<=",
        /// Greater, as a big-endian number.
        Greater = 4 ">",
        /// Greater or equal, as a big-endian number.
        GreaterOrEqual = 5 ">=",
    }
}

codes! {
    /// What a rule does to a set.
    DynsetOperation {
        /// Add the element unless it exists.
        Add = 0 "add",
        /// Add the element or renew its timeout; an existing element keeps its value.
        Update = 1 "update",
        /// Delete the element.
        Delete = 2 "delete",
    }
}

codes! {
    /// How to draw a number.
    NumgenKind {
        /// One after the other.
        Incremental = 0 "inc",
        /// At random.
        Random = 1 "random",
    }
}

codes! {
    /// Which end of a connection to change.
    NatKind {
        /// Replaces the source address.
        Source = 0 "snat",
        /// Replaces the destination address.
        Destination = 1 "dnat",
    }
}

/// Flags of address translation.
pub mod nat {
    /// Mix the source ports.
    pub const RANDOM: u32 = 0x4;
    /// Same address for all connections of a client.
    pub const PERSISTENT: u32 = 0x8;
    /// Draw the source ports at random.
    pub const FULLY_RANDOM: u32 = 0x10;
}
