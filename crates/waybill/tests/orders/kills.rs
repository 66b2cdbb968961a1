//! Every process is killed between any two steps, many times.

use std::collections::BTreeMap;
use std::process::Child;
use std::time::Instant;

use crate::shop::{Member, PATIENCE, Shop};

const ORDERS: u64 = 60;

/// The seed that decides which process is killed, and when.
const SEED: u64 = 0x5eed_0de2;

/// The maximum number of written rows between two kills.
const STEPS_BETWEEN_MAX: u64 = 12;

/// The number of concurrent customers.
const ORDERING_AT_ONCE: usize = 6;

/// The expected result of an order, by its number.
struct Fate {
    options: &'static [&'static str],
    status: &'static str,
    state: &'static str,
    ledger: &'static [&'static str],
}

fn fate(order: u64) -> Fate {
    match order % 6 {
        1 => Fate {
            options: &["--token", "declined"],
            status: "cancelled",
            state: "Compensated",
            ledger: &["stock done", "stock undone"],
        },
        4 => Fate {
            options: &["--city", "Nowhere"],
            status: "cancelled",
            state: "Compensated",
            ledger: &[
                "stock done",
                "payment done",
                "payment undone",
                "stock undone",
            ],
        },
        _ => Fate {
            options: &[],
            status: "completed",
            state: "Processed",
            ledger: &["stock done", "payment done", "shipping done"],
        },
    }
}

#[test]
fn repeated_kills_lose_and_duplicate_no_order() {
    let Some(mut shop) = Shop::open() else { return };
    let mut random = Random(SEED);
    let mut kills = BTreeMap::new();
    let mut kills_at_work = 0;
    let mut customers = Customers::default();
    let (mut seen, mut next_kill) = (0, 0);
    let deadline = Instant::now() + 4 * PATIENCE;
    while customers.order(&shop, &mut random) || !is_settled(&shop) {
        assert!(
            Instant::now() < deadline,
            "orders are not settled, by seed {SEED:#x}\n{}",
            shop.logs()
        );
        seen = steps(&shop).max(seen);
        if seen < next_kill {
            continue;
        }
        kills_at_work += u32::from(open_orders(&shop) > 0);
        for _ in 0..1 + usize::from(random.below(4) == 0) {
            let victim = next_victim(&kills, &mut random);
            *kills.entry(victim).or_insert(0) += 1;
            shop.kill(victim);
            shop.start(victim);
        }
        next_kill = seen + 1 + random.below(STEPS_BETWEEN_MAX);
    }

    let requests = shop.records("waybill.operation-requests.v1");
    println!(
        "seed {SEED:#x}: killed {kills:?}, {kills_at_work} times at work, and {} who ordered; \
         {requests} requests were sent",
        customers.killed
    );
    for member in Member::ALL {
        let times = kills.get(&member).copied().unwrap_or(0);
        assert!(times >= 3, "{member:?} was killed {times} times only");
    }
    assert!(
        kills_at_work >= 15,
        "only {kills_at_work} kills interrupted work"
    );
    for order in 0..ORDERS {
        let (id, fate) = (order.to_string(), fate(order));
        let operation = shop.known_operation(&id);
        assert_eq!(operation["state"], fate.state, "order {id}: {operation}");
        assert_eq!(shop.status(&id), fate.status, "order {id}: {operation}");
        assert_eq!(shop.ledger(&id), fate.ledger, "order {id}: {operation}");
    }
    let count = |table: &str| {
        let count = format!("SELECT count(*) FROM {table}");
        u64::try_from(shop.postgres.number(&count)).unwrap()
    };
    assert_eq!((count("orders"), count("outbox")), (ORDERS, ORDERS));
    let shipped = (0..ORDERS).filter(|order| fate(*order).status == "completed");
    let shelf = "SELECT on_hand FROM services.shelf WHERE article = 'lamp'";
    let on_hand = 1000 - i64::try_from(shipped.count()).unwrap();
    assert_eq!(shop.postgres.number(shelf), on_hand);
}

/// The customers: a process for each order, several at the same time. A killed one leaves either a
/// complete order or none, and is started again.
#[derive(Default)]
struct Customers {
    next: u64,
    again: Vec<u64>,
    /// The order, its process, and the number of looks after which it is killed.
    ordering: Vec<(u64, Child, Option<u64>)>,
    killed: u32,
}

impl Customers {
    /// Places additional orders. Returns whether any are left.
    fn order(&mut self, shop: &Shop, random: &mut Random) -> bool {
        while self.ordering.len() < ORDERING_AT_ONCE {
            let Some(order) = self.again.pop().or_else(|| {
                let next = (self.next < ORDERS).then_some(self.next);
                self.next += u64::from(next.is_some());
                next
            }) else {
                break;
            };
            let mut command = shop.ordering(&order.to_string(), fate(order).options);
            let kill_after = (random.below(4) == 0).then(|| random.below(10));
            self.ordering
                .push((order, command.spawn().unwrap(), kill_after));
        }
        let mut still = Vec::new();
        for (order, mut child, kill_after) in self.ordering.drain(..) {
            if kill_after == Some(0) {
                child.kill().unwrap();
                self.killed += 1;
            }
            match child.try_wait().unwrap() {
                Some(status) if status.success() => {}
                Some(_) => self.again.push(order),
                None => still.push((
                    order,
                    child,
                    kill_after.and_then(|left| left.checked_sub(1)),
                )),
            }
        }
        self.ordering = still;
        self.next < ORDERS || !self.again.is_empty() || !self.ordering.is_empty()
    }
}

/// Whether every order has ended and every request was sent.
fn is_settled(shop: &Shop) -> bool {
    let unsent = "SELECT count(*) FROM outbox WHERE sent_at IS NULL";
    open_orders(shop) == 0 && shop.postgres.number(unsent) == 0
}

/// The number of orders without an end.
fn open_orders(shop: &Shop) -> i64 {
    let open = "SELECT count(*) FROM orders WHERE status NOT IN ('completed', 'cancelled')";
    shop.postgres.number(open)
}

/// The progress: written rows and sent requests.
fn steps(shop: &Shop) -> u64 {
    let rows = "SELECT (SELECT count(*) FROM news) + (SELECT count(*) FROM services.ledger)
        + (SELECT count(*) FROM outbox) + (SELECT count(sent_at) FROM outbox)";
    u64::try_from(shop.postgres.number(rows)).unwrap()
}

/// One of the processes that were killed least often.
fn next_victim(kills: &BTreeMap<Member, u32>, random: &mut Random) -> Member {
    let times = |member: &Member| kills.get(member).copied().unwrap_or(0);
    let least = Member::ALL.iter().map(times).min().unwrap();
    let candidates: Vec<Member> = Member::ALL
        .into_iter()
        .filter(|member| times(member) <= least + 1)
        .collect();
    let count = u64::try_from(candidates.len()).unwrap();
    candidates[usize::try_from(random.below(count)).unwrap()]
}

/// SplitMix64: the same seed makes the same numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
