//! Reads the lists and entries of session affinity that an earlier process left, so that clients keep their endpoints over a restart.

use std::collections::HashMap;
use std::net::SocketAddr;

use portwarden_model::Backend;
use portwarden_netlink::Result;
use portwarden_netlink::nftables::{Element, Value};

use crate::endpoint_list::EndpointList;
use crate::kernel::Kernel;
use crate::route::{ListId, STICKY_LIST_MASK};
use crate::sets::SetId;

/// The sticky lists in the kernel's table, by the hash of their port's name.
pub(crate) fn recover(kernel: &mut Kernel) -> Result<HashMap<Vec<u8>, EndpointList>> {
    let table = kernel.table().clone();
    let names = kernel.client.elements(&table, SetId::StickyNames.name())?;
    let endpoints = kernel.client.elements(&table, SetId::StickyEndpoints.name())?;
    Ok(lists(&names, &endpoints))
}

/// Elements that make no sense are left out: another version may have written them.
fn lists(names: &[Element], endpoints: &[Element]) -> HashMap<Vec<u8>, EndpointList> {
    let mut by_list: HashMap<ListId, Vec<(u16, Backend)>> = HashMap::new();
    for (list, entry, backend) in endpoints.iter().filter_map(sticky_endpoint) {
        by_list.entry(list).or_default().push((entry, backend));
    }
    let list = |element: &Element| {
        let id = ListId::from_sticky_key(number(data(element)?)?)?;
        let endpoints = by_list.get(&id).cloned().unwrap_or_default();
        Some((element.key.clone(), EndpointList::recovered(id, endpoints)))
    };
    names.iter().filter_map(list).collect()
}

/// The list, entry and endpoint of an element of [`SetId::StickyEndpoints`].
fn sticky_endpoint(element: &Element) -> Option<(ListId, u16, Backend)> {
    let entry = number(&element.key)?;
    let list = ListId::from_sticky_key(entry & STICKY_LIST_MASK)?;
    let value = data(element)?;
    let (address, port) = value.split_at_checked(value.len().checked_sub(4)?)?;
    let ip = match address.len() {
        4 => <[u8; 4]>::try_from(address).ok()?.into(),
        16 => <[u8; 16]>::try_from(address).ok()?.into(),
        _ => return None,
    };
    let port = u16::from_be_bytes([*port.first()?, *port.get(1)?]);
    let entry = u16::try_from(entry & !STICKY_LIST_MASK).ok()?;
    Some((list, entry, Backend::new(SocketAddr::new(ip, port), false)))
}

fn data(element: &Element) -> Option<&[u8]> {
    match element.value.as_ref()? {
        Value::Data(data) => Some(data),
        Value::Verdict(_) => None,
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::nftables::{Elements, Image};

    fn map(elements: &[(Image, Image)]) -> Vec<Element> {
        let mut encoded = Elements::new();
        elements.iter().for_each(|(key, value)| encoded.push_data(*key, *value));
        encoded.iter().collect()
    }

    #[test]
    fn lists_are_recovered_with_their_entries() {
        let id = ListId::sticky(3);
        let name = Image::new().number(1).number(2);
        let endpoint = |last: u8| Image::new().address([10, 0, 0, last].into()).port(8080);
        let names = map(&[(name, Image::new().number(id.key()))]);
        let endpoints = map(&[
            (Image::new().number(id.entry(5)), endpoint(1)),
            (Image::new().number(ListId::sticky(4).entry(6)), endpoint(2)),
        ]);
        let found = lists(&names, &endpoints);
        let list = &found[name.as_bytes()];
        assert_eq!(list.id, id);
        assert_eq!(list.entries().collect::<Vec<_>>(), [(([10, 0, 0, 1], 8080).into(), 5)]);
    }

    #[test]
    fn elements_of_another_kind_are_left_out() {
        let ordinary = ListId::ordinary(3);
        let names = map(&[(Image::new().number(1).number(2), Image::new().number(ordinary.key()))]);
        assert!(lists(&names, &[]).is_empty());
        let endpoints = map(&[(Image::new().number(ordinary.key()), Image::new().number(1))]);
        assert_eq!(endpoints.iter().filter_map(sticky_endpoint).count(), 0);
    }
}
