//! Choices of the layout, tried by themselves: what comments on elements and sizes of maps cost or save.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;
use portwarden_netlink::nftables::{
    Client, DataType, ElementParts, Elements, Family, Image, Set, Table, TableId, Transaction, ValueParts,
};
use portwarden_testkit::Namespace;

use crate::Effort;
use crate::measure::{self, Times};
use crate::report::{Figure, Report, Side};
use crate::workload::name;

const COMMENTS: &str = "layout: comments on the elements of frontends";
const SIZES: &str = "layout: a size for the map of endpoints";
/// As in the clusters that are measured.
const FRONTENDS: u32 = 30_000;
const ENDPOINTS: u32 = 250_000;

pub(crate) fn run(effort: Effort, report: &mut Report) -> Result<()> {
    report.begin("comments and sizes");
    let runs = effort.choose(3, 9);
    let [with, without] = try_both(runs, frontends)?;
    with.record(COMMENTS, "30000 elements", Side::Ours, report);
    without.record(COMMENTS, "30000 elements", Side::Baseline, report);
    let [with, without] = try_both(runs, endpoints)?;
    with.record(SIZES, "250000 elements", Side::Ours, report);
    without.record(SIZES, "250000 elements", Side::Baseline, report);
    Ok(())
}

/// A map with its elements.
type Filled = (Arc<Set>, Elements);

fn frontends(table: &TableId, commented: bool) -> Filled {
    let key = vec![DataType::Ipv4Address, DataType::Protocol, DataType::Service];
    let set =
        Set::map(table, "frontends", key, vec![DataType::ClassId]).size(FRONTENDS.next_power_of_two() * 2);
    let mut elements = Elements::new();
    for number in 0..FRONTENDS {
        let key = Image::new().ipv4(Ipv4Addr::from(0x0a60_0000 + number)).protocol(6).port(80);
        let value = Image::new().number(number);
        let comment = format!("demo/{}:http", name(number as usize));
        elements.push(&ElementParts {
            key: key.as_bytes(),
            value: Some(ValueParts::Data(value.as_bytes())),
            comment: commented.then_some(&comment),
            ..ElementParts::default()
        });
    }
    (Arc::new(set), elements)
}

fn endpoints(table: &TableId, sized: bool) -> Filled {
    let (key, data) =
        (vec![DataType::ClassId, DataType::Integer], vec![DataType::Ipv4Address, DataType::Service]);
    let mut set = Set::map(table, "endpoints", key, data);
    set.size = sized.then(|| (2 * ENDPOINTS).next_power_of_two());
    let mut elements = Elements::new();
    for number in 0..ENDPOINTS {
        let key = Image::new().number((number / 50) << 10).number(number % 50);
        elements.push_data(key, Image::new().ipv4(Ipv4Addr::from(0x0a80_0000 + number)).port(8080));
    }
    (Arc::new(set), elements)
}

#[derive(Debug, Default)]
struct Tried {
    cpu: Times,
    memory: Vec<usize>,
}

impl Tried {
    fn record(mut self, section: &'static str, subject: &str, side: Side, report: &mut Report) {
        self.memory.sort_unstable();
        let memory = self.memory.get(self.memory.len() / 2).copied().unwrap_or_default();
        report.record(section, subject, "cpu of commit", side, Figure::milliseconds(self.cpu.median()));
        report.record(section, subject, "best of it", side, Figure::milliseconds(self.cpu.min()));
        report.record(section, subject, "kernel", side, Figure::bytes(memory));
    }
}

/// Commits a map with and without something, in turns.
fn try_both(runs: usize, build: fn(&TableId, bool) -> Filled) -> Result<[Tried; 2]> {
    let mut tried = [Tried::default(), Tried::default()];
    for _ in 0..runs {
        for (tried, with) in tried.iter_mut().zip([true, false]) {
            commit(|table| build(table, with), tried)?;
        }
    }
    Ok(tried)
}

/// Commits a map with its elements to an empty kernel.
fn commit(build: impl Fn(&TableId) -> Filled, tried: &mut Tried) -> Result<()> {
    let namespace = Namespace::new("bench-choice")?;
    let _inside = namespace.enter()?;
    let mut client = Client::open()?;
    let table = TableId::new(Family::Ip, "choice");
    let (set, elements) = build(&table);
    let mut transaction = Transaction::new();
    transaction.add(Table::new(&table));
    transaction.add(&set);
    transaction.add_elements(&set, elements);
    let before = measure::stable_kernel_memory()?;
    let (spent, ()) = measure::spend(|| Ok(client.commit(&transaction)?))?;
    tried.memory.push(measure::kernel_memory()?.saturating_sub(before));
    tried.cpu.push(spent.cpu);
    Ok(())
}
