//! Netlink framing: messages and attributes, written into one buffer and read without copying.
//!
//! Headers are in host byte order; what attributes carry is up to each protocol (nf_tables: big endian).

/// Bytes of a netlink message header.
pub const HEADER: usize = 16;

/// `NLM_F_*` flags of a request.
pub mod flags {
    /// The message is a request.
    pub const REQUEST: u16 = 0x1;
    /// Answer with an acknowledgement also on success.
    pub const ACK: u16 = 0x4;
    /// The dump was inconsistent: the data changed while it was read.
    pub const DUMP_INTERRUPTED: u16 = 0x10;
    /// List everything that matches.
    pub const DUMP: u16 = 0x300;
    /// Replace an existing object.
    pub const REPLACE: u16 = 0x100;
    /// Fail if the object exists.
    pub const EXCLUSIVE: u16 = 0x200;
    /// Create the object if it does not exist.
    pub const CREATE: u16 = 0x400;
    /// Put the object at the end of its list.
    pub const APPEND: u16 = 0x800;
    /// In an error answer: attributes with the kernel's own words follow.
    pub const ACK_TLVS: u16 = 0x200;
    /// In an error answer: the request's payload was left out.
    pub const CAPPED: u16 = 0x100;
}

/// Message types below the protocols' own.
pub mod control {
    /// An error answer, or an acknowledgement if its code is 0.
    pub const ERROR: u16 = 2;
    /// The end of a dump.
    pub const DONE: u16 = 3;
    /// The kernel dropped messages meant for us.
    pub const OVERRUN: u16 = 4;
}

const NESTED: u16 = 0x8000;
/// Marks an attribute's number as being in network byte order. Only ipset insists on it.
pub(crate) const NETWORK_ORDER: u16 = 0x4000;
const KIND_MASK: u16 = 0x3fff;

/// Rounds up to the four-byte alignment of messages and attributes.
pub const fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// Bytes that do not follow the netlink framing, or an attribute too short for its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink data: {what}")]
pub struct Malformed {
    /// Which part could not be read.
    pub what: &'static str,
}

/// Where an unfinished message or nest starts; hand it back to the call that ends it.
#[derive(Debug)]
#[must_use]
pub struct Mark(usize);

/// Appends messages and attributes to one byte buffer.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    oversize: bool,
}

impl Writer {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Continues at the end of the given bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes, oversize: false }
    }

    /// What was written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The buffer, for reuse.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Makes room for `additional` bytes at once.
    pub fn reserve(&mut self, additional: usize) {
        self.bytes.reserve(additional);
    }

    /// Whether an attribute did not fit into its 16-bit length since the last call; such a message must not be sent.
    pub fn take_oversize(&mut self) -> bool {
        std::mem::take(&mut self.oversize)
    }

    /// Starts a message.
    pub fn begin_message(&mut self, kind: u16, flags: u16, sequence: u32) -> Mark {
        let mark = Mark(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        mark
    }

    /// Starts an nfnetlink message: a netlink header and the four bytes that every netfilter subsystem adds.
    pub fn begin_netfilter(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        family: u8,
        resource: u16,
    ) -> Mark {
        let mark = self.begin_message(kind, flags, sequence);
        self.bytes.extend_from_slice(&[family, 0]);
        self.bytes.extend_from_slice(&resource.to_be_bytes());
        mark
    }

    /// Ends a message by writing its length.
    #[expect(clippy::needless_pass_by_value, reason = "a mark ends once")]
    pub fn end_message(&mut self, mark: Mark) {
        match u32::try_from(self.bytes.len() - mark.0) {
            Ok(length) => self.overwrite(mark.0, &length.to_ne_bytes()),
            Err(_) => self.oversize = true,
        }
    }

    /// Adds flags to a message whose header starts at `offset`.
    pub fn add_flags(&mut self, offset: usize, flags: u16) {
        if let Some(&[low, high]) = self.bytes.get(offset + 6..offset + 8) {
            let flags = u16::from_ne_bytes([low, high]) | flags;
            self.overwrite(offset + 6, &flags.to_ne_bytes());
        }
    }

    /// Appends raw bytes, for example attributes that were encoded before.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an attribute.
    pub fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.attribute_header(kind, payload.len());
        self.bytes.extend_from_slice(payload);
        self.pad();
    }

    /// Appends a zero-terminated string attribute.
    pub fn string(&mut self, kind: u16, text: &str) {
        self.attribute_header(kind, text.len() + 1);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Appends a byte attribute.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.attribute(kind, &[value]);
    }

    /// Appends a 16-bit attribute in network byte order.
    pub fn u16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends a 32-bit attribute in network byte order.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends a signed 32-bit attribute in network byte order.
    pub fn i32(&mut self, kind: u16, value: i32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends a 64-bit attribute in network byte order.
    pub fn u64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends a 16-bit attribute in host byte order.
    pub fn u16_host(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends a 32-bit attribute in host byte order.
    pub fn u32_host(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute that holds the attributes which `body` writes.
    pub fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let mark = self.begin_nest(kind);
        body(self);
        self.end_nest(mark);
    }

    /// Starts a nest that cannot be written by one closure.
    pub fn begin_nest(&mut self, kind: u16) -> Mark {
        let mark = Mark(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        mark
    }

    /// Ends a nest by writing its length.
    #[expect(clippy::needless_pass_by_value, reason = "a mark ends once")]
    pub fn end_nest(&mut self, mark: Mark) {
        match u16::try_from(self.bytes.len() - mark.0) {
            Ok(length) => self.overwrite(mark.0, &length.to_ne_bytes()),
            Err(_) => self.oversize = true,
        }
    }

    fn attribute_header(&mut self, kind: u16, payload: usize) {
        let length = u16::try_from(payload + 4).unwrap_or_else(|_| {
            self.oversize = true;
            0
        });
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }

    fn overwrite(&mut self, offset: usize, value: &[u8]) {
        if let Some(place) = self.bytes.get_mut(offset..offset + value.len()) {
            place.copy_from_slice(value);
        }
    }
}

/// One netlink message, borrowed from a receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The type: subsystem and command, or one of [`control`].
    pub kind: u16,
    /// Flags of the netlink header (`NLM_F_*`).
    pub flags: u16,
    /// The request's sequence number; 0 in notifications.
    pub sequence: u32,
    /// The port of the socket that asked for it.
    pub port: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

/// The messages of one datagram.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Reads messages from a datagram.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = read_message(self.rest);
        match &message {
            Ok(message) => {
                self.rest = self.rest.get(align(HEADER + message.payload.len())..).unwrap_or_default();
            }
            Err(_) => self.rest = &[],
        }
        Some(message)
    }
}

fn read_message(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    const SHORT: Malformed = Malformed { what: "message header" };
    let (header, _) = bytes.split_first_chunk::<HEADER>().ok_or(SHORT)?;
    let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *header;
    let length = u32::from_ne_bytes([l0, l1, l2, l3]);
    let payload = usize::try_from(length).ok().and_then(|length| bytes.get(HEADER..length)).ok_or(SHORT)?;
    Ok(Message {
        kind: u16::from_ne_bytes([k0, k1]),
        flags: u16::from_ne_bytes([f0, f1]),
        sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        port: u32::from_ne_bytes([p0, p1, p2, p3]),
        payload,
    })
}

/// One attribute, borrowed from a message.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a> {
    /// The type without the flag bits.
    pub kind: u16,
    /// What follows the attribute's header.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The first byte.
    pub fn u8(&self) -> Result<u8, Malformed> {
        self.payload.first().copied().ok_or(Malformed { what: "8-bit attribute" })
    }

    /// A 16-bit number in network byte order.
    pub fn u16(&self) -> Result<u16, Malformed> {
        self.number("16-bit attribute").map(u16::from_be_bytes)
    }

    /// A 32-bit number in network byte order.
    pub fn u32(&self) -> Result<u32, Malformed> {
        self.number("32-bit attribute").map(u32::from_be_bytes)
    }

    /// A signed 32-bit number in network byte order.
    pub fn i32(&self) -> Result<i32, Malformed> {
        self.number("32-bit attribute").map(i32::from_be_bytes)
    }

    /// A 64-bit number in network byte order.
    pub fn u64(&self) -> Result<u64, Malformed> {
        self.number("64-bit attribute").map(u64::from_be_bytes)
    }

    /// A 32-bit number in host byte order, as the route protocol and error answers use it.
    pub fn u32_host(&self) -> Result<u32, Malformed> {
        self.number("32-bit attribute").map(u32::from_ne_bytes)
    }

    /// A 16-bit number in host byte order.
    pub fn u16_host(&self) -> Result<u16, Malformed> {
        self.number("16-bit attribute").map(u16::from_ne_bytes)
    }

    /// A string up to its terminating zero; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> std::borrow::Cow<'a, str> {
        let end = self.payload.iter().position(|&byte| byte == 0).unwrap_or(self.payload.len());
        String::from_utf8_lossy(self.payload.get(..end).unwrap_or_default())
    }

    /// The attributes inside a nest.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }

    fn number<const N: usize>(&self, what: &'static str) -> Result<[u8; N], Malformed> {
        self.payload.first_chunk::<N>().copied().ok_or(Malformed { what })
    }
}

/// The attributes of a message or nest.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Reads attributes from the bytes of a message or nest.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Number of bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let attribute = read_attribute(self.rest);
        match &attribute {
            Ok(attribute) => {
                self.rest = self.rest.get(align(4 + attribute.payload.len())..).unwrap_or_default();
            }
            Err(_) => self.rest = &[],
        }
        Some(attribute)
    }
}

fn read_attribute(bytes: &[u8]) -> Result<Attribute<'_>, Malformed> {
    const SHORT: Malformed = Malformed { what: "attribute header" };
    let (&[l0, l1, k0, k1], _) = bytes.split_first_chunk::<4>().ok_or(SHORT)?;
    let length = usize::from(u16::from_ne_bytes([l0, l1]));
    let payload = bytes.get(4..length).ok_or(SHORT)?;
    Ok(Attribute { kind: u16::from_ne_bytes([k0, k1]) & KIND_MASK, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::new();
        let mark = writer.begin_netfilter(0x0a03, flags::REQUEST, 7, 2, 0);
        writer.string(1, "table");
        writer.nest(4, |writer| {
            writer.u32(1, 3);
            writer.i32(2, -110);
        });
        writer.end_message(mark);

        let messages: Vec<_> = Messages::new(writer.bytes()).collect::<Result<_, _>>().unwrap();
        let [message] = messages.as_slice() else { panic!("one message, not {}", messages.len()) };
        assert_eq!((message.kind, message.flags, message.sequence), (0x0a03, 1, 7));
        let attributes: Vec<_> = Attributes::new(&message.payload[4..]).collect::<Result<_, _>>().unwrap();
        assert_eq!(attributes[0].text(), "table");
        let nested: Vec<_> = attributes[1].nested().collect::<Result<_, _>>().unwrap();
        assert_eq!(nested[0].u32(), Ok(3));
        assert_eq!(nested[1].i32(), Ok(-110));
    }

    #[test]
    fn an_attribute_past_64_kib_is_noticed() {
        let mut writer = Writer::new();
        writer.attribute(1, &vec![0; 65_532]);
        assert!(writer.take_oversize());
        assert!(!writer.take_oversize());
    }

    #[test]
    fn short_bytes_are_errors_not_panics() {
        assert!(Messages::new(&[1, 0, 0]).next().unwrap().is_err());
        assert!(Attributes::new(&[9, 0, 1, 0, 0]).next().unwrap().is_err());
        assert!(Attributes::new(&[3, 0, 1, 0]).next().unwrap().is_err());
    }
}
