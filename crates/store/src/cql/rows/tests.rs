//! The slots of rows, how long they are kept, and how a commit is split.

use super::*;

/// A UUIDv7 that was made at this millisecond.
fn made_at(millis: u64, random: u128) -> OperationId {
    let random = random & ((1 << 74) - 1);
    let (a, b) = (random >> 62, random & ((1 << 62) - 1));
    let id = (u128::from(millis) << 80) | (7 << 76) | (a << 64) | (2 << 62) | b;
    OperationId(Uuid::from_u128(id))
}

#[test]
fn generated_ids_of_some_seconds_share_a_few_slots() {
    let of = |millis| {
        let ids = (0..1_000_u128).map(move |n| made_at(millis, n * 0x9e37_79b9_7f4a_7c15));
        ids.map(slot).collect::<std::collections::BTreeSet<_>>()
    };
    let begin = 1_800_000_000_000;
    let slots = of(begin);
    assert_eq!(slots.len(), SLOTS as usize);
    assert_eq!(of(begin + 3_999), slots);
    assert!(of(begin + 4_000).is_disjoint(&slots));
    assert!(slots.iter().all(|&slot| slot >= 0));
}

#[test]
fn callers_ids_have_their_own_slots() {
    let ids = (0..1_000).map(|n| OperationId::of_caller("tenant", &n.to_string()));
    let slots: std::collections::BTreeSet<_> = ids.map(slot).collect();
    assert_eq!(slots.len(), 1_000);
    assert!(slots.iter().all(|&slot| slot < 0));
}

/// Rows are found by their slots: whatever changes one loses every row.
#[test]
fn the_slot_of_an_id_never_changes() {
    let server = OperationId("0198c8f2-3a11-7b52-9d0a-5f0c6c1d2e3f".parse().unwrap());
    let caller = OperationId("886313e1-3b8a-5372-9b90-0c9aee199e5d".parse().unwrap());
    assert_eq!(
        [slot(server), slot(caller)],
        [3_511_435_949, -7_785_844_714_068_783_825]
    );
}

fn encoded(bytes: usize) -> Encoded {
    Encoded {
        id: made_at(0, 0),
        slot: 0,
        stamp: 1,
        ttl_s: FOR_GOOD,
        body: vec![0; bytes],
        created: None,
        state: "Processing",
        epoch: 1,
        next_due: CqlTimestamp(0),
        failure_count: 0,
        updated_at: CqlTimestamp(0),
    }
}

#[test]
fn rows_of_a_slot_are_split_into_bounded_batches() {
    let sizes = |rows: &[usize]| {
        let rows: Vec<_> = rows.iter().map(|&bytes| encoded(bytes)).collect();
        let batches = Batches { rest: &rows };
        batches.map(<[Encoded]>::len).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&[]), [0; 0]);
    assert_eq!(sizes(&[1_000_000]), [1]);
    assert_eq!(sizes(&[1_000, 1_000_000, 1_000]), [1, 1, 1]);
    assert_eq!(sizes(&[30_000; 5]), [2, 2, 1]);
    assert_eq!(sizes(&[10; 130]), [64, 64, 2]);
}

#[test]
fn retention_is_whole_seconds_and_never_ends_early() {
    let now = Timestamp::from_millis(1_800_000_000_000);
    for (keep_for, wanted) in [
        (Duration::ZERO, 1),
        (Duration::from_millis(1), 1),
        (Duration::from_secs(60), 60),
        (Duration::from_millis(60_001), 61),
        (Duration::from_secs(347_397_247), 347_397_247),
        // Servers that count seconds in 32 bits refuse what ends in 2038.
        (Duration::from_secs(347_397_248), FOR_GOOD),
        (Duration::MAX, FOR_GOOD),
    ] {
        assert_eq!(ttl_s(keep_for, now), wanted, "{keep_for:?}");
    }
    let long_ago = Timestamp(0);
    assert_eq!(ttl_s(Duration::from_secs(TTL_S_MAX), long_ago), 630_720_000);
    assert_eq!(
        ttl_s(Duration::from_secs(TTL_S_MAX + 1), long_ago),
        FOR_GOOD
    );
}
