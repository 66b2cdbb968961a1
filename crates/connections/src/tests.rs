use super::*;

const STALL: Duration = Duration::from_secs(60);
const REQUESTS: RequestLimits = RequestLimits {
    each: 2,
    shared: 5,
    shared_per_address: 3,
};

fn address(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn up_to(max: usize, per_address_max: usize) -> Arc<Connections> {
    Connections::new(
        "test",
        Limits {
            max,
            per_address_max,
            stall_timeout: Some(STALL),
            expects_login: false,
            requests: Some(REQUESTS),
        },
    )
}

#[test]
fn the_longest_idle_connection_is_replaced_and_a_busy_one_is_not() {
    let all = up_to(3, 3);
    let closing = [(); 4].map(|()| CancellationToken::new());
    let now = all.started;
    let admit = |n: usize, at| all.admit(at, address(1), closing[n].clone());
    let slots: Vec<ConnectionSlot> = (0..3).map(|n| admit(n, now).unwrap()).collect();
    // The first waits for an answer, and the second was used later than the third.
    let later = now + Duration::from_secs(1);
    slots[0].report(now, 3, false, 0);
    slots[1].report(later, 0, false, 0);
    let fourth = admit(3, later).unwrap();
    let closed = closing.each_ref().map(CancellationToken::is_cancelled);
    assert_eq!(closed, [false, false, true, false]);
    assert_eq!(all.requests_of_busiest(), 3);

    // While all are busy, none is replaced until one has stalled.
    slots[1].report(later, 1, false, 0);
    fourth.report(later, 1, false, 0);
    let next = |at| all.admit(at, address(1), CancellationToken::new());
    assert_eq!(next(now + STALL).err(), Some(Full::Address));
    let _fifth = next(now + STALL + Duration::from_millis(1)).unwrap();
    assert!(closing[0].is_cancelled());
    let counts = Counts {
        open: 3,
        per_address: 3,
        replaced: 2,
        refused: 1,
        ..Counts::default()
    };
    assert_eq!(all.counts(), counts);
}

#[test]
fn a_connection_that_ends_makes_room() {
    let all = up_to(1, 2);
    let now = all.started;
    let admit = || all.admit(now, address(1), CancellationToken::new());
    let first = admit().unwrap();
    first.report(now, 1, false, 0);
    assert_eq!(admit().err(), Some(Full::All));
    drop(first);
    assert!(admit().is_ok());
}

#[test]
fn an_address_at_its_limit_replaces_its_own_connections_alone() {
    let all = up_to(10, 2);
    let now = all.started;
    let of_other = CancellationToken::new();
    let _other = all.admit(now, address(2), of_other.clone()).unwrap();
    let closing = [(); 3].map(|()| CancellationToken::new());
    let admit = |closing: &CancellationToken| all.slot(now, address(1), closing.clone());
    let admitted = closing.each_ref().map(|closing| admit(closing).unwrap());
    assert!(!of_other.is_cancelled());
    let closed = closing.each_ref().map(CancellationToken::is_cancelled);
    assert_eq!(closed, [true, false, false]);
    let replaced_at = admitted.each_ref().map(|&(_, replaced_at)| replaced_at);
    assert_eq!(replaced_at, [None, None, Some(Full::Address)]);
}

#[test]
fn a_new_connection_replaces_none_of_an_address_with_fewer_connections() {
    let all = up_to(4, 3);
    let now = all.started;
    let probe_closing = CancellationToken::new();
    let probe = all.admit(now, address(9), probe_closing.clone()).unwrap();
    let admit = |last, at| all.admit(at, address(last), CancellationToken::new());
    let others = [1, 1, 2].map(|last| admit(last, now).unwrap());
    for other in &others {
        other.report(now, 1, false, 0);
    }
    let later = now + Duration::from_secs(1);
    // The probe is idle, and its address has as few connections as address 2, but fewer than 1.
    assert_eq!(admit(1, later).err(), Some(Full::All));
    assert!(!probe_closing.is_cancelled());
    assert!(admit(2, later).is_ok());
    assert!(probe_closing.is_cancelled());
    drop(probe);
}

#[test]
fn each_connection_has_reserved_and_shared_requests() {
    let all = up_to(10, 10);
    let admit = |last| {
        let closing = CancellationToken::new();
        all.admit(all.started, address(last), closing).unwrap()
    };
    let greedy = admit(1);
    let begin = |slot: &ConnectionSlot| slot.begin_request();
    let held: Vec<_> = (0..5).map(|_| begin(&greedy).unwrap()).collect();
    assert_eq!(begin(&greedy).err(), Some(Full::Address));
    // Another connection from that address has only its own requests.
    let neighbour = admit(1);
    let _own = [(); 2].map(|()| begin(&neighbour).unwrap());
    assert_eq!(begin(&neighbour).err(), Some(Full::Address));
    // A connection from another address gets the rest.
    let other = admit(2);
    let _all_but_one = [(); 4].map(|()| begin(&other).unwrap());
    assert_eq!(begin(&other).err(), Some(Full::All));
    let counts = all.counts();
    assert_eq!((counts.requests_shared, counts.requests_refused), (5, 3));
    assert_eq!(counts.requests_shared_per_address, 3);
    drop(held);
    assert_eq!(all.counts().requests_shared, 2);
    assert!(begin(&other).is_ok());
    assert_eq!(
        all.shared().by_source.len(),
        1,
        "an address without connections is forgotten"
    );
}

#[test]
fn shared_requests_are_returned_in_any_order() {
    let all = up_to(10, 10);
    let closing = CancellationToken::new();
    let slot = all.admit(all.started, address(1), closing).unwrap();
    let mut held: Vec<_> = (0..4).map(|_| slot.begin_request().unwrap()).collect();
    let shared = || all.counts().requests_shared;
    assert_eq!(shared(), 2);
    held.remove(0);
    held.remove(0);
    assert_eq!(shared(), 0, "the two remaining requests are its own");
    held.push(slot.begin_request().unwrap());
    assert_eq!(shared(), 1);
    drop(held);
    assert_eq!((shared(), all.shared().by_source.len()), (0, 0));
}

#[test]
fn concurrent_requests_are_all_uncounted_at_their_end() {
    let all = up_to(10, 10);
    let closing = CancellationToken::new();
    let slot = all.admit(all.started, address(1), closing).unwrap();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..10_000 {
                    let begun = [(); 2].map(|()| slot.begin_request());
                    drop(begun);
                }
            });
        }
    });
    let held = [(); 2].map(|()| slot.begin_request().unwrap());
    assert_eq!(all.counts().requests_shared, 0);
    drop(held);
    assert_eq!(all.shared().by_source.len(), 0);
}

#[test]
fn each_further_connection_gets_a_smaller_share() {
    let all = up_to(100, 100);
    let slots: Vec<ConnectionSlot> = (0..100)
        .map(|_| all.admit(all.started, address(1), CancellationToken::new()))
        .map(Result::unwrap)
        .collect();
    let parts = |n: usize| slots[n].part_of(100, 2..=30);
    assert_eq!([0, 2, 3, 9, 49, 99].map(parts), [30, 30, 25, 10, 2, 2]);
}

#[test]
fn the_address_with_the_most_connections_is_counted() {
    let all = up_to(10, 5);
    let admit = |last| {
        let closing = CancellationToken::new();
        all.admit(all.started, address(last), closing).unwrap()
    };
    let per_address = || all.counts().per_address;
    assert_eq!(per_address(), 0);
    let mut of_first = vec![admit(1), admit(1), admit(1)];
    let mut of_second = vec![admit(2), admit(2)];
    assert_eq!(per_address(), 3);
    of_second.push(admit(2));
    of_first.clear();
    assert_eq!(per_address(), 3, "the second one has as many");
    of_second.pop();
    assert_eq!(per_address(), 2);
    of_second.clear();
    assert_eq!(all.counts(), Counts::default());
}

#[test]
fn a_connection_is_busy_until_all_of_its_requests_have_ended() {
    let all = up_to(1, 1);
    let admit = || all.admit(Instant::now(), address(1), CancellationToken::new());
    let slot = admit().unwrap();
    let requests = (slot.begin_request().unwrap(), slot.begin_request().unwrap());
    drop(requests.0);
    assert!(admit().is_err());
    drop(requests.1);
    assert!(admit().is_ok());
}

#[test]
fn a_connection_whose_client_stops_reading_is_replaced_after_a_while() {
    let all = up_to(1, 1);
    let next = |at| all.admit(at, address(1), CancellationToken::new());
    let slot = next(all.started).unwrap();
    let mut request = slot.begin_request().unwrap();
    let mut write_monitor = slot.write_monitor();
    let later = |after: Duration| Instant::now() + after;
    let just_past = SLOW_AFTER + Duration::from_secs(1);
    assert!(next(later(just_past)).is_err(), "no answer is ready yet");
    request.set_unread(true);
    assert!(
        next(later(Duration::ZERO)).is_err(),
        "the client may be slow"
    );
    request.set_unread(false);
    write_monitor.set_blocked(true);
    drop(request);
    assert!(
        next(later(Duration::ZERO)).is_err(),
        "the answer is not yet written"
    );
    assert!(next(later(just_past)).is_ok());
    drop((write_monitor, slot));
    assert!(next(later(Duration::ZERO)).is_ok());
}

#[test]
fn reading_other_answers_does_not_excuse_an_unread_one() {
    let all = up_to(2, 2);
    let admit = |closing: &CancellationToken| {
        let now = Instant::now() + SLOW_AFTER + Duration::from_secs(1);
        all.admit(now, address(1), closing.clone())
    };
    let closing = [(); 3].map(|()| CancellationToken::new());
    let slow = admit(&closing[0]).unwrap();
    let fast = admit(&closing[1]).unwrap();
    let mut unread = [&slow, &fast].map(|slot| slot.begin_request().unwrap());
    unread
        .iter_mut()
        .for_each(|request| request.set_unread(true));
    // The first client also reads small answers, and the second one a large answer.
    let mut read = slow.begin_request().unwrap();
    read.set_unread(true);
    slow.write_monitor().wrote(100);
    drop(read);
    fast.write_monitor().wrote(1 << 20);
    let _new = admit(&closing[2]).unwrap();
    let closed = closing.each_ref().map(CancellationToken::is_cancelled);
    assert_eq!(closed, [true, false, false]);
}

#[test]
fn an_address_with_few_connections_replaces_a_waiting_one_of_an_address_with_many() {
    let all = up_to(4, 4);
    let now = all.started;
    let closing = [(); 4].map(|()| CancellationToken::new());
    let many = closing.each_ref().map(|closing| {
        let slot = all.admit(now, address(1), closing.clone()).unwrap();
        slot.report(now, 1, false, 0);
        slot
    });
    let admit = || all.admit(now, address(2), CancellationToken::new());
    assert_eq!(admit().err(), Some(Full::All), "all connections are busy");
    // A request arrives, though not yet slowly.
    many[2].report(now, 1, true, 10);
    let first = admit().unwrap();
    first.report(now, 1, false, 0);
    let closed = closing.each_ref().map(CancellationToken::is_cancelled);
    assert_eq!(closed, [false, false, true, false]);
    many[1].report(now, 1, true, 10);
    assert_eq!(
        admit().err(),
        Some(Full::All),
        "the address would have two of four connections"
    );
}

#[test]
fn connections_without_a_login_are_replaced_before_those_with_one() {
    let all = Connections::new(
        "test",
        Limits {
            expects_login: true,
            ..up_to(3, 3).limits()
        },
    );
    let now = all.started;
    let closing = [(); 5].map(|()| CancellationToken::new());
    let admit = |n: usize| all.admit(now, address(1), closing[n].clone());
    let logged_in = admit(0).unwrap();
    logged_in.set_logged_in();
    // This connection is slow as well.
    logged_in.report(now, 1, true, 1);
    let later = now + SLOW_AFTER + Duration::from_secs(1);
    logged_in.report(later, 1, true, 1);
    // Half of a login arrives.
    let others = [1, 2].map(|n| admit(n).unwrap());
    for slot in &others {
        slot.report(now, 1, true, 8);
    }
    let _new = [3, 4].map(|n| admit(n).unwrap());
    let closed = closing.each_ref().map(CancellationToken::is_cancelled);
    assert_eq!(closed, [false, true, true, false, false]);
}

#[test]
fn only_ipv6_addresses_of_one_network_count_together() {
    let of = |text: &str| source_of(text.parse().unwrap());
    assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
}

#[test]
fn a_connection_with_a_slow_request_is_replaced_before_an_idle_one() {
    let all = up_to(3, 3);
    let closing = [(); 5].map(|()| CancellationToken::new());
    let now = all.started;
    let admit = |n: usize, at| all.admit(at, address(1), closing[n].clone());
    let _quiet = admit(0, now).unwrap();
    let dripping = admit(1, now).unwrap();
    let quick = admit(2, now).unwrap();
    let later = now + SLOW_AFTER + Duration::from_millis(1);
    dripping.report(now, 1, true, 3);
    dripping.report(later, 1, true, 3);
    quick.report(later, 1, true, 3);
    let closed = || closing.each_ref().map(CancellationToken::is_cancelled);
    let new = admit(3, later).unwrap();
    assert_eq!(closed(), [false, true, false, false, false]);
    // The fast client has sent nothing for a long time, and no other client is sending.
    new.report(later, 0, false, 0);
    let _next = admit(4, later).unwrap();
    assert_eq!(closed(), [true, true, false, false, false]);
}
