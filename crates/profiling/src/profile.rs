//! From stacks to pprof's format.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use crate::modules::{Module, modules};
use crate::proto::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use crate::symbols::{Symbol, forget_symbols, linker_names, symbols};

/// Functions that only took the stack are among so many innermost ones.
const HIDDEN_WITHIN: usize = 16;

/// What a profile is made of.
pub(crate) struct Report {
    pub(crate) sample_types: Vec<(&'static str, &'static str)>,
    pub(crate) default_sample_type: &'static str,
    pub(crate) period_type: (&'static str, &'static str),
    pub(crate) period: u64,
    pub(crate) start: SystemTime,
    pub(crate) duration: Duration,
    /// Samples that could not be kept.
    pub(crate) lost: u64,
    /// Beginnings of the names of functions that only took the stacks.
    pub(crate) hidden: &'static [&'static str],
    pub(crate) stacks: Vec<Stack>,
}

/// A stack and one value for each sample type.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    pub(crate) thread: Option<String>,
    /// Addresses of instructions, innermost first.
    pub(crate) frames: Vec<u64>,
    pub(crate) values: Vec<i64>,
}

/// The profile, compressed.
pub(crate) fn encode(report: &Report) -> Vec<u8> {
    let encoded = build(report).encode_to_vec();
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail.
    let _ = out.write_all(&encoded);
    out.finish().unwrap_or_default()
}

fn build(report: &Report) -> Profile {
    let modules = modules();
    let addresses: BTreeSet<u64> = report.stacks.iter().flat_map(|stack| &stack.frames).copied().collect();
    let names = linker_names(&modules, &addresses).into_iter().collect();
    let mut builder = Builder::new(modules, names, report.hidden);
    let kind = |builder: &mut Builder, (kind, unit): (&str, &str)| ValueType {
        kind: builder.text(kind),
        unit: builder.text(unit),
    };
    let sample_type = report.sample_types.iter().map(|types| kind(&mut builder, *types)).collect();
    let sample = report.stacks.iter().map(|stack| builder.sample(stack)).collect();
    let period_type = Some(kind(&mut builder, report.period_type));
    let default_sample_type = builder.text(report.default_sample_type);
    let comment = match report.lost {
        0 => Vec::new(),
        lost => vec![builder.text(&format!("{lost} samples were lost"))],
    };
    let mapping = builder.mappings();
    forget_symbols();
    Profile {
        sample_type,
        sample,
        mapping,
        location: builder.locations,
        function: builder.functions,
        string_table: builder.texts,
        time_nanos: nanos(report.start.duration_since(UNIX_EPOCH).unwrap_or_default()),
        duration_nanos: nanos(report.duration),
        period_type,
        period: i64::try_from(report.period).unwrap_or(i64::MAX),
        comment,
        default_sample_type,
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Numbers everything that a profile names.
struct Builder {
    modules: Vec<Module>,
    /// Of called functions, by addresses in them.
    names: HashMap<u64, String>,
    hidden: &'static [&'static str],
    named: bool,
    texts: Vec<String>,
    text_numbers: HashMap<String, i64>,
    functions: Vec<Function>,
    function_numbers: HashMap<String, u64>,
    locations: Vec<Location>,
    /// By address.
    resolved: HashMap<u64, ResolvedAddress>,
}

#[derive(Clone, Copy)]
struct ResolvedAddress {
    location: u64,
    hidden: bool,
}

impl Builder {
    fn new(modules: Vec<Module>, names: HashMap<u64, String>, hidden: &'static [&'static str]) -> Self {
        Builder {
            modules,
            names,
            hidden,
            named: false,
            texts: vec![String::new()],
            text_numbers: HashMap::from([(String::new(), 0)]),
            functions: Vec::new(),
            function_numbers: HashMap::new(),
            locations: Vec::new(),
            resolved: HashMap::new(),
        }
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(number) = self.text_numbers.get(text) {
            return *number;
        }
        let number = i64::try_from(self.texts.len()).unwrap_or(0);
        self.texts.push(text.to_owned());
        self.text_numbers.insert(text.to_owned(), number);
        number
    }

    fn sample(&mut self, stack: &Stack) -> Sample {
        let resolved: Vec<ResolvedAddress> =
            stack.frames.iter().map(|address| self.resolve(*address)).collect();
        let hidden =
            resolved.iter().take(HIDDEN_WITHIN).rposition(|frame| frame.hidden).map_or(0, |last| last + 1);
        let location_id = resolved.iter().skip(hidden).map(|frame| frame.location).collect();
        let label = match &stack.thread {
            Some(thread) => vec![Label { key: self.text("thread"), str: self.text(thread) }],
            None => Vec::new(),
        };
        Sample { location_id, value: stack.values.clone(), label }
    }

    fn resolve(&mut self, address: u64) -> ResolvedAddress {
        if let Some(known) = self.resolved.get(&address) {
            return *known;
        }
        let mut symbols = symbols(address);
        if let Some(name) = self.names.remove(&address) {
            match symbols.last_mut() {
                Some(called) => called.name = name,
                None => symbols.push(Symbol { name, file: String::new(), line: 0 }),
            }
        }
        self.named |= !symbols.is_empty();
        let hidden = symbols
            .last()
            .is_some_and(|symbol| self.hidden.iter().any(|hidden| symbol.name.starts_with(hidden)));
        let line = symbols.iter().map(|symbol| self.line(symbol)).collect();
        let location = self.locations.len() as u64 + 1;
        let mapping_id = self.modules.iter().position(|module| module.range.contains(&address));
        let mapping_id = mapping_id.map_or(0, |index| index as u64 + 1);
        self.locations.push(Location { id: location, mapping_id, address, line });
        let frame = ResolvedAddress { location, hidden };
        self.resolved.insert(address, frame);
        frame
    }

    fn line(&mut self, symbol: &Symbol) -> Line {
        let function_id = match self.function_numbers.get(&symbol.name) {
            Some(number) => *number,
            None => {
                let id = self.functions.len() as u64 + 1;
                let name = self.text(&symbol.name);
                let filename = self.text(&symbol.file);
                self.functions.push(Function { id, name, system_name: name, filename });
                self.function_numbers.insert(symbol.name.clone(), id);
                id
            }
        };
        Line { function_id, line: symbol.line.into() }
    }

    fn mappings(&mut self) -> Vec<Mapping> {
        // Without any name the program was stripped: `pprof` may find them in the file that is given to it.
        let named = self.named;
        let modules = std::mem::take(&mut self.modules);
        let mapping = |(index, module): (usize, &Module)| Mapping {
            id: index as u64 + 1,
            memory_start: module.range.start,
            memory_limit: module.range.end,
            file_offset: module.offset,
            filename: self.text(&module.path),
            build_id: self.text(&module.build_id()),
            has_functions: named,
            has_filenames: named,
            has_line_numbers: named,
            has_inline_frames: named,
        };
        modules.iter().enumerate().map(mapping).collect()
    }
}
