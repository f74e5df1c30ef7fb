//! The messages of pprof's `profile.proto`; only the fields that are used.

use prost::Message;

/// A whole profile. Every text is a number in `string_table`, whose first entry is empty.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// What the values of each sample are.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// One entry for each distinct stack.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// The files that code was loaded from.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// The places in code.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions that locations refer to by id.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// All texts.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When it began, in nanoseconds since the epoch.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// How long it took.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What lies between two samples.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// How much of it.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Remarks.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The kind of value to show first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// What a value is.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ValueType {
    /// Index of the name in the string table.
    #[prost(int64, tag = "1")]
    pub kind: i64,
    /// Index of the unit in the string table.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack and its values.
#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// The places, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One value for each type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// More about it.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A label of a sample.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Label {
    /// What it is about.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// What it says.
    #[prost(int64, tag = "2")]
    pub str: i64,
}

/// A part of a file in memory.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Mapping {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its first address.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// The address after its last.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Where in the file it begins.
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// Index of the path in the string table.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// The file's build id, as hexadecimal digits.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Whether its places carry functions already.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Whether they carry files.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// Whether they carry lines.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// Whether they carry inlined functions.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// A place in code.
#[derive(Clone, PartialEq, Message)]
pub struct Location {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The mapping it is in, or 0.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// The program counter.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// The functions there; the last one was called, those before it are inlined into it.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Line {
    /// The function's number.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// The line in its file.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function that appears in stacks.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Function {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name for people.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Its name for the linker.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// The file it is written in.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
