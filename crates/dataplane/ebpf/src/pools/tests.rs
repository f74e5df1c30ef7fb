use std::collections::BTreeSet;

use portwarden_model::Backend;

use super::*;

fn maps(pools: usize, slots: usize, backends: usize) -> PoolMaps {
    PoolMaps {
        pools: Mapping::anonymous(pools).unwrap(),
        slots: Mapping::anonymous(slots).unwrap(),
        backends: Mapping::anonymous(backends).unwrap(),
    }
}

fn pool(hosts: impl IntoIterator<Item = u8>) -> Pool {
    let backend = |host| Backend::new(SocketAddr::from(([10, 0, 0, host], 80)), true);
    Pool::new(&hosts.into_iter().map(backend).collect::<Vec<_>>())
}

/// The endpoints that a program can draw.
fn content(pools: &Pools, pool: u32) -> BTreeSet<SocketAddr> {
    let numbers = pools.numbers(pools.word(pool));
    let all: Vec<SocketAddr> = numbers
        .map(|number| {
            assert_eq!(pools.maps.backends[number as usize].pool(), pool, "a backend knows its pool");
            pools.maps.backends[number as usize].address()
        })
        .collect();
    let near = all.len() <= PoolCell::NEAR_COUNT && all.iter().all(SocketAddr::is_ipv4);
    assert_eq!(pools.maps.pools[pool as usize].near_endpoints(), near.then(|| all.clone()));
    all.into_iter().collect()
}

fn addresses(pool: &Pool) -> BTreeSet<SocketAddr> {
    pool.iter().map(|backend| backend.address()).collect()
}

#[test]
fn one_endpoint_more_or_less_costs_a_bounded_number_of_writes() {
    let now = Instant::now();
    let mut pools = Pools::new(maps(8, 1024, 1024));
    let (id, _) = pools.create(&pool(0..100), None, now).unwrap();
    for (wanted, most) in
        [(pool(0..101), 3), (pool(1..101), 3), (pool(1..101), 0), (pool((1..100).chain([150])), 3)]
    {
        let updated = pools.update(id, &wanted, now).unwrap();
        assert!(updated.written <= most, "{updated:?}, expected at most {most}");
        assert_eq!(content(&pools, id), addresses(&wanted));
    }
}

#[test]
fn many_changes_go_to_new_slots_and_one_switch() {
    let now = Instant::now();
    let mut pools = Pools::new(maps(8, 64, 64));
    let (id, _) = pools.create(&pool(0..8), None, now).unwrap();
    let before = pools.word(id);
    let old: Vec<u32> = pools.numbers(before).collect();
    pools.update(id, &pool(4..12), now).unwrap();
    let after = pools.word(id);
    assert_ne!(before.first, after.first);
    let left: Vec<u32> = pools.numbers(before).collect();
    assert_eq!(left, old, "whoever read the old word still finds its slots");
    assert_eq!(content(&pools, id), addresses(&pool(4..12)));
}

#[test]
fn what_left_is_not_given_to_others_at_once() {
    let now = Instant::now();
    let mut pools = Pools::new(maps(8, 64, 6));
    let (id, _) = pools.create(&pool(0..5), None, now).unwrap();
    assert_eq!(pools.create(&pool(20..21), None, now), Err(Full::Backends));
    pools.release(id, now);
    assert_eq!(pools.create(&pool(20..21), None, now), Err(Full::Backends), "they rest");
    let (next, _) = pools.create(&pool(20..25), None, now + REST).unwrap();
    assert_eq!(content(&pools, next), addresses(&pool(20..25)));
}

#[test]
fn a_full_map_changes_nothing() {
    let now = Instant::now();
    let mut pools = Pools::new(maps(3, 16, 64));
    let (first, _) = pools.create(&pool(0..8), None, now).unwrap();
    assert_eq!(pools.update(first, &pool(0..20), now), Err(Full::Slots));
    assert_eq!(content(&pools, first), addresses(&pool(0..8)));
    pools.create(&pool(30..32), None, now).unwrap();
    assert_eq!(pools.create(&pool(40..41), None, now), Err(Full::Pools));
    let updated = pools.update(first, &pool(1..8), now).unwrap();
    // A slot, the word and a backend; and seven endpoints, as the pool is near now.
    assert_eq!((updated.written, content(&pools, first)), (10, addresses(&pool(1..8))));
}

#[test]
fn endpoints_with_connected_sockets_are_reported_when_they_leave() {
    let now = Instant::now();
    let mut pools = Pools::new(maps(4, 16, 16));
    let (id, _) = pools.create(&pool(0..3), None, now).unwrap();
    assert_eq!(pools.update(id, &pool(1..3), now).unwrap().left_with_sockets, []);
    let number = pools.numbers(pools.word(id)).next().unwrap();
    let cell = &pools.maps.backends[number as usize];
    cell.note_datagram_socket();
    let left = PoolEndpoint { backend: number, address: cell.address() };
    assert_eq!(pools.release(id, now).left_with_sockets, [left]);
}

#[test]
fn another_process_takes_over_sound_pools_only() {
    let now = Instant::now();
    let mut before = Pools::new(maps(8, 64, 64));
    let (one, _) = before.create(&pool(0..5), None, now).unwrap();
    let (two, _) = before.create(&pool(10..13), None, now).unwrap();
    let mut after = Pools::new(before.maps);
    assert!(after.adopt(one));
    assert!(!after.adopt(one), "only once");
    assert!(!after.adopt(0) && !after.adopt(7) && !after.adopt(100), "nothing is there");
    after.maps.slots[after.maps.pools[two as usize].word().first as usize].set(1);
    assert!(!after.adopt(two), "one of its backends belongs to another pool");
    assert_eq!(content(&after, one), addresses(&pool(0..5)));
    let (three, _) = after.create(&pool(20..40), None, now).unwrap();
    assert_eq!(content(&after, one), addresses(&pool(0..5)), "nothing of it was given away");
    assert_eq!(content(&after, three), addresses(&pool(20..40)));
}

#[test]
fn a_small_pool_has_its_endpoints_near() {
    let now = Instant::now();
    let mut pools = Pools::new(maps(8, 64, 64));
    let (id, _) = pools.create(&pool(0..5), None, now).unwrap();
    assert_eq!(content(&pools, id), addresses(&pool(0..5)));
    // One more, less and other endpoint; many others; beyond what a cell holds, and back, one by one and at once.
    for (wanted, most) in [
        (pool(0..6), 4),
        (pool(1..6), 4),
        (pool((1..5).chain([9])), 4),
        (pool(20..26), 64),
        (pool(20..27), 4),
        (pool(20..28), 4),
        (pool(21..28), 11),
        (pool(21..22), 64),
        (pool(20..40), 64),
        (pool(20..25), 64),
    ] {
        let updated = pools.update(id, &wanted, now).unwrap();
        assert!(updated.written <= most, "{updated:?}, expected at most {most}");
        assert_eq!(content(&pools, id), addresses(&wanted));
    }
    pools.release(id, now);
    assert_eq!(pools.maps.pools[id as usize].near_endpoints(), None);
    let v6 = Backend::new("[fd00::1]:80".parse().unwrap(), true);
    let (id, _) = pools.create(&Pool::new(&[v6]), None, now + REST).unwrap();
    assert_eq!(content(&pools, id).len(), 1);
}

#[test]
fn another_process_completes_a_change_that_was_cut_off() {
    let now = Instant::now();
    let mut before = Pools::new(maps(8, 64, 64));
    let (one, _) = before.create(&pool(0..3), None, now).unwrap();
    let (two, _) = before.create(&pool(10..13), None, now).unwrap();
    // The slot was replaced, and the endpoint in the cell not yet.
    let stale = "10.0.0.99:80".parse().unwrap();
    before.maps.pools[one as usize].set_endpoint(1, stale);
    // The new slots are in force, but the cell was not filled.
    let word = before.word(two);
    before.maps.pools[two as usize].set_word(PoolWord { near: false, ..word });
    let mut after = Pools::new(before.maps);
    assert!(after.adopt(one) && after.adopt(two));
    assert_eq!(content(&after, one), addresses(&pool(0..3)));
    assert_eq!(content(&after, two), addresses(&pool(10..13)));
}
