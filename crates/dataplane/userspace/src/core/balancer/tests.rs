use portwarden_model::Backend;

use super::*;

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 80))
}

fn pool(last: &[u8]) -> Pool {
    Pool::new(&last.iter().map(|last| Backend::new(address(*last), false)).collect::<Vec<_>>())
}

fn client(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

/// All endpoints in the cluster-wide pool, some of them local.
fn balancer(cluster: &[u8], local: &[u8], affinity: u32) -> Balancer {
    let balancer = Balancer::default();
    balancer.set(&pool(cluster), &pool(local), NonZeroU32::new(affinity), Instant::now());
    balancer
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn endpoints_take_turns() {
    let balancer = balancer(&[1, 2, 3], &[], 0);
    let now = Instant::now();
    let mut chosen: Vec<_> =
        (0..6).filter_map(|_| balancer.choose(PoolKind::Cluster, client(1), now, &[])).collect();
    assert_eq!(chosen[..3], chosen[3..], "in the same order each time");
    chosen.truncate(3);
    chosen.sort_unstable();
    assert_eq!(chosen, [address(1), address(2), address(3)]);
    assert_eq!(balancer.choose(PoolKind::Local, client(1), now, &[]), None, "that pool is empty");
}

#[test]
fn an_endpoint_that_failed_is_avoided_where_there_is_another() {
    let balancer = balancer(&[1, 2], &[2], 0);
    let now = Instant::now();
    for _ in 0..4 {
        let chosen = balancer.choose(PoolKind::Cluster, client(1), now, &[address(1)]);
        assert_eq!(chosen, Some(address(2)));
    }
    let only = balancer.choose(PoolKind::Local, client(1), now, &[address(2)]);
    assert_eq!(only, Some(address(2)), "it may have recovered");
}

#[test]
fn affinity_holds_until_it_was_not_used_for_its_time() {
    let balancer = balancer(&[1, 2, 3], &[], 10);
    let choose = |at| balancer.choose(PoolKind::Cluster, client(1), at, &[]);
    let start = Instant::now();
    let first = choose(start);
    assert_eq!(choose(start + seconds(9)), first);
    assert_eq!(choose(start + seconds(18)), first, "each use renews it");
    assert_ne!(choose(start + seconds(28)), first);
}

#[test]
fn a_client_moves_when_its_endpoint_fails_and_stays_there() {
    let balancer = balancer(&[1, 2, 3], &[], 10);
    let now = Instant::now();
    let first = balancer.choose(PoolKind::Cluster, client(1), now, &[]).expect("an endpoint");
    let second = balancer.choose(PoolKind::Cluster, client(1), now, &[first]);
    assert_ne!(second, Some(first));
    assert_eq!(balancer.choose(PoolKind::Cluster, client(1), now, &[]), second);
}

#[test]
fn affinity_is_one_for_both_pools() {
    let balancer = balancer(&[1, 2, 3], &[2], 10);
    let now = Instant::now();
    assert_eq!(balancer.choose(PoolKind::Local, client(1), now, &[]), Some(address(2)));
    assert_eq!(balancer.choose(PoolKind::Cluster, client(1), now, &[]), Some(address(2)));
}

#[test]
fn affinity_ends_with_its_endpoint_and_with_the_setting() {
    let balancer = balancer(&[1, 2, 3], &[], 10);
    let now = Instant::now();
    let first = balancer.choose(PoolKind::Cluster, client(1), now, &[]).expect("an endpoint");
    balancer.set(&pool(&[1, 2, 3, 4]), &pool(&[]), NonZeroU32::new(20), now);
    let again = balancer.choose(PoolKind::Cluster, client(1), now + seconds(15), &[]);
    assert_eq!(again, Some(first), "other endpoints do not matter, and the new timeout holds at once");
    let rest: Vec<u8> = (1..=4).filter(|last| address(*last) != first).collect();
    balancer.set(&pool(&rest), &pool(&[]), NonZeroU32::new(20), now);
    assert_ne!(balancer.choose(PoolKind::Cluster, client(1), now, &[]), Some(first));
    balancer.set(&pool(&rest), &pool(&[]), None, now);
    assert!(balancer.state().clients.is_empty());
}

#[test]
fn expired_records_do_not_pile_up() {
    let balancer = balancer(&[1], &[], 10);
    let start = Instant::now();
    for number in 0..4 * FIRST_PURGE as u64 {
        let ip = IpAddr::from(std::net::Ipv4Addr::from_bits(u32::try_from(number).expect("small")));
        balancer.choose(PoolKind::Cluster, ip, start + seconds(number), &[]);
    }
    assert!(balancer.state().clients.len() <= FIRST_PURGE);
}

#[test]
fn dials_go_past_endpoints_that_have_too_many_in_flight() {
    let balancer = balancer(&[1, 2], &[], 0);
    let now = Instant::now();
    let dial = |tried: &[SocketAddr]| {
        balancer.choose_to_dial(PoolKind::Cluster, client(1), now, tried, 2).expect("an endpoint")
    };
    let mut dials: Vec<_> = (0..4).map(|_| dial(&[])).collect();
    assert!(dials.iter().all(|(_, turn)| turn.is_some()), "two for each");
    for _ in 0..4 {
        assert!(dial(&[]).1.is_none(), "it has to wait");
    }
    dials.retain(|(endpoint, _)| *endpoint == address(1));
    for _ in 0..2 {
        assert_eq!(dial(&[]).0, address(2), "the other one has its dials");
    }
    assert_eq!(
        dial(&[address(2)]).0,
        address(1),
        "one that failed is worse than one that must be waited for"
    );
    drop(dials);
    assert!(balancer.state().dials.is_empty(), "nothing is remembered about dials that have ended");
}

#[test]
fn a_dial_waits_until_another_one_ends() {
    let balancer = balancer(&[1], &[], 0);
    let now = Instant::now();
    let (_, first) = balancer.choose_to_dial(PoolKind::Cluster, client(1), now, &[], 1).expect("an endpoint");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut waiting = pin!(balancer.wait_for_turn(address(1), 1));
        let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx).is_ready()));
        assert!(!poll.await);
        drop(first);
        drop(waiting.await);
    });
    assert!(balancer.state().dials.is_empty());
}

#[test]
fn affinity_records_are_counted() {
    let counters = Arc::<Counters>::default();
    let records = || counters.affinity_records.get();
    let balancer =
        Balancer { state: Mutex::default(), freed: Notify::new(), counters: Arc::clone(&counters) };
    let (now, all) = (Instant::now(), pool(&[1, 2]));
    balancer.set(&all, &pool(&[]), NonZeroU32::new(10), now);
    for last in [1, 2, 2, 3] {
        balancer.choose(PoolKind::Cluster, client(last), now, &[]);
    }
    assert_eq!(records(), 3);
    balancer.choose(PoolKind::Cluster, client(4), now + seconds(5), &[]);
    balancer.set(&all, &pool(&[]), NonZeroU32::new(10), now + seconds(10));
    assert_eq!(records(), 1, "a sync forgets those whose time is up");
    drop(balancer);
    assert_eq!(records(), 0);
}
