//! Round trips, golden bytes, and bytes that are no values at all.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    Attempt, ByPriority, Contact, Epoch, Offset, OperationError, OwnerId, PartitionId, Position,
    Priority, ProcessState, RequestHash, ResumeOffsets, ShardHandover, ShardId, StepError,
    StepProgress, StepState, TopicOffsets,
};

use super::*;
use crate::{Checkpoint, LeaseKey};

fn sample_created() -> Created {
    Created {
        workflow: "drone".into(),
        workflow_version: 3,
        step_names: vec!["check".into(), "fly".into()],
        tenant: "t".into(),
        caller_id: Some("c1".to_owned()),
        input: Arc::from(&b"{\"a\":1}"[..]),
        deadline: Some(Timestamp(1_000)),
        reply_to: None,
        request_hash: RequestHash([0xab; 16]),
        request: Position {
            priority: Priority::Normal,
            partition: PartitionId(2),
            offset: Offset(300),
        },
        requested_at: Timestamp(7),
        created_at: Timestamp(8),
        traceparent: Some("00-x".into()),
        resubmission_of: None,
        notify: vec![Contact::new("tel:+1")],
    }
}

fn sample_state() -> OperationState {
    OperationState {
        state: ProcessState::Processing,
        locked_by: Some(OwnerId(Uuid::from_u128(0x1234))),
        epoch: Epoch(4),
        next_due: Some(Timestamp(-1)),
        handed_off: true,
        failure_count: 2,
        sequence: 5,
        updated_at: Timestamp(9),
        error: Some(OperationError {
            step: Some("fly".to_owned()),
            error: StepError {
                code: "no-drone".to_owned(),
                message: "none".to_owned(),
            },
        }),
        steps: vec![
            StepProgress {
                state: StepState::Completed,
                attempt: Attempt(1),
                outputs: vec![("k".to_owned(), "v".to_owned())],
                ..StepProgress::default()
            },
            StepProgress {
                state: StepState::Running,
                attempt: Attempt(2),
                complete_by: Some(Timestamp(10)),
                retry_at: Some(Timestamp(11)),
                failure_count: 2,
                error: Some(StepError {
                    code: "busy".to_owned(),
                    message: String::new(),
                }),
                outputs: Vec::new(),
                ..StepProgress::default()
            },
        ],
        ..OperationState::default()
    }
}

fn sample_lease() -> Lease {
    Lease {
        owner: Some(OwnerId(Uuid::from_u128(0x55))),
        epoch: Epoch(6),
        renewal: 7,
        duration: Duration::from_millis(1_500),
        stamp_limit: Stamp(1_000_000),
        checkpoint: Checkpoint {
            at: TopicOffsets {
                requests: Offset(10),
                replies: Offset(20),
                recoveries: Offset(30),
                ..TopicOffsets::default()
            },
            fingerprints: ByPriority {
                normal: Some(0xfeed),
                high: None,
            },
        },
        consumed: ByPriority {
            normal: Offset(11),
            high: Offset(0),
        },
        ..Lease::new(LeaseKey::supervisor(PartitionId(1)), PartitionId(1))
    }
}

fn header() -> StateHeader {
    StateHeader {
        stamp: Stamp(0x0102_0304),
        expires_at: Some(Timestamp(0x0506)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn values_round_trip() {
    let mut encoder = Encoder::default();

    let bytes = encoder.state(header(), &sample_state());
    assert_eq!(state(bytes), Ok((header(), sample_state())));

    let kept = StateHeader {
        stamp: Stamp(-1),
        expires_at: None,
    };
    let bytes = encoder.state(kept, &sample_state());
    assert_eq!(state(bytes), Ok((kept, sample_state())));

    let bytes = encoder.created(Stamp(77), &sample_created());
    assert_eq!(created(bytes), Ok((Stamp(77), sample_created())));

    assert_eq!(lease(encoder.lease(&sample_lease())), Ok(sample_lease()));

    let bytes = encoder.cursor(DueBucket(-5));
    assert_eq!(cursor(bytes), Ok(DueBucket(-5)));
}

/// Changes only together with [`FORMAT`]: stored values must stay readable.
#[test]
fn the_format_is_stable() {
    let mut encoder = Encoder::default();
    let written = [
        hex(encoder.state(header(), &sample_state())),
        hex(encoder.created(Stamp(77), &sample_created())),
        hex(encoder.lease(&sample_lease())),
        hex(encoder.cursor(DueBucket(5))),
    ];
    assert_eq!(written, GOLDEN.map(|parts| parts.concat()));
}

/// A state, an immutable part, a lease and a cursor, in parts that a person can follow.
const GOLDEN: [&[&str]; 4] = [
    &[
        "010000000001020304",                       // format, stamp
        "0000000000000506",                         // expiry
        "01",                                       // Processing
        "011000000000000000000000000000001234",     // locked by
        "0401010102051200", // epoch, next due -1, handed off, failures, sequence, updated at, no reply
        "010103666c79086e6f2d64726f6e65046e6f6e65", // error: fly, no-drone, none
        "0000000000000000", // never failed for good, nor undone; no history, nor records that led to it
        "02",               // two steps
        "020001000000000000000000000000", // Completed, by running, attempt 1, nothing else
        "01016b01760000",   // one output; no status record
        "01000201140116020000000000000000", // Running, attempt 2, its times, two failures
        "01046275737900",   // busy
        "000000",           // no output; no status record
        "2dac36a4",         // checksum
    ],
    &[
        "01000000000000004d",               // format, stamp
        "0564726f6e6503",                   // workflow drone, version 3
        "0205636865636b03666c79",           // two steps: check, fly
        "0174",                             // tenant t
        "01026331",                         // caller id c1
        "077b2261223a317d",                 // input
        "01d00f00",                         // deadline, no reply-to
        "abababababababababababababababab", // request hash
        "02d804",                           // request: partition 2, offset 300
        "0e10",                             // requested at, created at
        "010430302d7800",                   // traceparent, runs no other again
        "010674656c3a2b31",                 // one contact
        "343abb29",                         // checksum
    ],
    &[
        "01010001",                             // format, supervisor, layout, index shard
        "011000000000000000000000000000000055", // owner
        "0607",                                 // epoch, renewal
        "0180cab5ee01",                         // duration: 1 s, 500,000,000 ns
        "80897a",                               // stamp limit
        "1400283c",                             // checkpoint: its offsets, and fingerprints of
        "01edfd0300",                           // normal requests, not of high-priority ones
        "1600",                                 // consumed of both
        "01000000",                             // partition, no handover, not ended, not begun
        "3affc4dd",                             // checksum
    ],
    &["01", "0000000000000005"],
];

#[test]
fn a_layout_round_trips() {
    let mut encoder = Encoder::default();
    let of = |shards_per_partition| ShardingScheme {
        partitions: 4,
        shards_per_partition,
    };
    let sample = Layout::first(4).successor(of(2)).unwrap();
    let bytes = encoder.layout(&sample);
    // format, those before, the sharding scheme, no change, no boundaries, none retired, checksum
    assert_eq!(hex(bytes), "0101040104020000001315f035");
    assert_eq!(layout(bytes), Ok(sample));

    let offsets = |requests, high_priority| TopicOffsets {
        requests: Offset(requests),
        high_priority: Offset(high_priority),
        replies: Offset(1),
        recoveries: Offset(2),
    };
    let begins = vec![offsets(0, 0), offsets(5, 70)];
    let sample = Layout::first(2).intended(4).unwrap();
    let sample = sample.announced(begins).unwrap();
    let sample = sample.moved(vec![offsets(7, 0), offsets(8, 71)]).unwrap();
    let bytes = encoder.layout(&sample);
    // format, those before, the sharding scheme, the change: from, to, moved into, ends, since,
    // begins; boundaries; none retired; checksum
    assert_eq!(
        hex(bytes),
        "010302010201020204010102040303020e000204108e010204010202000002040a8c010204020e000204108e01020400\
         75b43dce"
    );
    assert_eq!(layout(bytes), Ok(sample));
}

#[test]
fn a_lease_of_a_shard_round_trips() {
    let mut encoder = Encoder::default();
    let at = TopicOffsets {
        requests: Offset(9),
        high_priority: Offset(8),
        ..TopicOffsets::default()
    };
    let resume = ResumeOffsets {
        scheme: ShardingScheme::one_each(4),
        shard: ShardId(0),
        at,
    };
    let mut sample = sample_lease();
    sample.key = LeaseKey::scheduler(LayoutGeneration(0), ShardId(1));
    sample.handover = ShardHandover::new([resume], |_| Offset(0));
    sample.checkpoint.at.high_priority = Offset(4);
    sample.checkpoint.fingerprints.high = Some(u64::MAX);
    sample.consumed.high = Offset(6);
    for is_begun in [false, true] {
        sample.is_begun = is_begun;
        assert_eq!(lease(encoder.lease(&sample)), Ok(sample.clone()));
    }
}

/// Sharding schemes that would make a computation panic.
const IMPOSSIBLE: [ShardingScheme; 4] = [
    ShardingScheme {
        partitions: 0,
        shards_per_partition: 2,
    },
    ShardingScheme {
        partitions: 4,
        shards_per_partition: 0,
    },
    ShardingScheme {
        partitions: 1 << 31,
        shards_per_partition: 2,
    },
    ShardingScheme {
        partitions: u32::MAX,
        shards_per_partition: u32::MAX,
    },
];

#[test]
fn an_impossible_layout_is_refused() {
    let mut encoder = Encoder::default();
    for impossible in IMPOSSIBLE {
        let possible = ShardingScheme::one_each(4);
        let refused = Err(Malformed::ShardingScheme(impossible));
        for schemes in [
            (vec![], impossible),
            (vec![impossible], possible),
            (vec![possible, impossible], possible),
            (vec![possible], impossible),
        ] {
            let (past, scheme) = schemes;
            let nothing = Vec::<()>::new();
            let now = (&past, scheme, None::<()>, &nothing, &nothing);
            assert_eq!(layout(encoder.bare(&now)), refused, "{past:?} {scheme}");
        }
        let nothing = Vec::<()>::new();
        let now = (vec![possible], possible, None::<()>, &nothing, &nothing);
        assert!(layout(encoder.bare(&now)).is_ok());
    }
    // From none to two, intended, without starts.
    let change = Some((0_u32, 2_u32, 0_u32, None::<()>));
    let nothing = Vec::<()>::new();
    let changing = (
        &nothing,
        ShardingScheme::one_each(4),
        change,
        &nothing,
        &nothing,
    );
    assert_eq!(
        layout(encoder.bare(&changing)),
        Err(Malformed::ShardingScheme(ShardingScheme::one_each(0)))
    );
}

#[test]
fn a_lease_with_an_impossible_parent_is_refused() {
    let mut encoder = Encoder::default();
    let mut handed_over_by = |schemes: &[ShardingScheme]| {
        let resume = schemes.iter().map(|scheme| ResumeOffsets {
            scheme: *scheme,
            shard: ShardId(0),
            at: TopicOffsets {
                requests: Offset(9),
                ..TopicOffsets::default()
            },
        });
        let sample = Lease {
            handover: ShardHandover::new(resume, |_| Offset(0)),
            ..sample_lease()
        };
        let read = lease(encoder.lease(&sample));
        (sample, read)
    };
    let possible = ShardingScheme::one_each(4);
    let (sample, read) = handed_over_by(&[possible, possible]);
    assert_eq!(read, Ok(sample));
    for impossible in IMPOSSIBLE {
        let (_, read) = handed_over_by(&[possible, impossible]);
        assert_eq!(read, Err(Malformed::ShardingScheme(impossible)));
    }
}

#[test]
fn an_unknown_format_is_named() {
    assert_eq!(state(&[2, 0, 0]), Err(Malformed::UnknownFormat(2)));
    assert_eq!(
        Malformed::UnknownFormat(2).to_string(),
        "it has format 2, which this program does not support"
    );
    assert_eq!(lease(&[]), Err(Malformed::Empty));
}

#[test]
fn a_value_cut_anywhere_is_refused() {
    let mut encoder = Encoder::default();
    let bytes = encoder.state(header(), &sample_state());
    for len in 0..bytes.len() {
        assert!(state(&bytes[..len]).is_err(), "state, {len} bytes");
    }
    let bytes = encoder.created(Stamp(1), &sample_created());
    for len in 0..bytes.len() {
        assert!(created(&bytes[..len]).is_err(), "created, {len} bytes");
    }
    let bytes = encoder.lease(&sample_lease());
    for len in 0..bytes.len() {
        assert!(lease(&bytes[..len]).is_err(), "lease, {len} bytes");
    }
    let bytes = encoder.cursor(DueBucket(1));
    for len in 0..bytes.len() {
        assert!(cursor(&bytes[..len]).is_err(), "cursor, {len} bytes");
    }
}

/// Even if the changed value would decode.
#[test]
fn any_flipped_bit_of_a_row_or_a_lease_is_detected() {
    let mut encoder = Encoder::default();
    let state_bytes = encoder.state(header(), &sample_state()).to_vec();
    let created_bytes = encoder.created(Stamp(1), &sample_created()).to_vec();
    let bare_bytes = encoder.bare(&sample_state()).to_vec();
    let lease_bytes = encoder.lease(&sample_lease()).to_vec();
    let changed = |bytes: &[u8], at: usize| {
        let mut changed = bytes.to_vec();
        changed[at / 8] ^= 1 << (at % 8);
        changed
    };
    for at in 0..state_bytes.len() * 8 {
        assert!(
            state(&changed(&state_bytes, at)).is_err(),
            "state, bit {at}"
        );
    }
    for at in 0..created_bytes.len() * 8 {
        assert!(
            created(&changed(&created_bytes, at)).is_err(),
            "created, bit {at}"
        );
    }
    for at in 0..bare_bytes.len() * 8 {
        let read = bare::<OperationState>(&changed(&bare_bytes, at));
        assert!(read.is_err(), "bare, bit {at}");
    }
    for at in 0..lease_bytes.len() * 8 {
        assert!(
            lease(&changed(&lease_bytes, at)).is_err(),
            "lease, bit {at}"
        );
    }
}

#[test]
fn a_reply_key_round_trips_and_other_bytes_are_refused() {
    let mut encoder = Encoder::default();
    let key = ReplyKey::new(std::array::from_fn(|at| at as u8));
    let bytes = encoder.reply_key(&key).to_vec();
    let golden = "01000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    assert_eq!(hex(&bytes[..33]), golden);
    assert_eq!(reply_key(&bytes), Ok(key));
    for at in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[at / 8] ^= 1 << (at % 8);
        assert!(reply_key(&changed).is_err(), "bit {at}");
    }
    for len in 0..bytes.len() {
        assert!(reply_key(&bytes[..len]).is_err(), "{len} bytes");
    }
    let mut longer = encoder.bare(&([0_u8; 32], 0_u8)).to_vec();
    assert_eq!(reply_key(&longer), Err(Malformed::Trailing(1)));
    longer.push(0);
    assert!(reply_key(&longer).is_err());
}

#[test]
fn a_reply_key_is_not_shown() {
    assert_eq!(format!("{:?}", ReplyKey::new([7; 32])), "ReplyKey(..)");
}

#[test]
fn trailing_bytes_are_refused() {
    let mut encoder = Encoder::default();
    let bytes = encoder.bare(&(sample_lease(), 0_u8)).to_vec();
    assert_eq!(lease(&bytes), Err(Malformed::Trailing(1)));
    let mut bytes = encoder.cursor(DueBucket(1)).to_vec();
    bytes.push(0);
    assert_eq!(cursor(&bytes), Err(Malformed::Trailing(1)));
}

#[test]
fn random_and_damaged_bytes_never_panic() {
    let mut encoder = Encoder::default();
    let samples = [
        encoder.state(header(), &sample_state()).to_vec(),
        encoder.created(Stamp(1), &sample_created()).to_vec(),
        encoder.lease(&sample_lease()).to_vec(),
        encoder.cursor(DueBucket(1)).to_vec(),
    ];
    let mut seed = 0x5eed_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut refused = 0;
    for round in 0..20_000 {
        let bytes: Vec<u8> = if round % 2 == 0 {
            let len = random() % 200;
            std::iter::once(FORMAT)
                .chain((0..len).map(|_| random().to_le_bytes()[0]))
                .collect()
        } else {
            let mut bytes = samples[round / 2 % samples.len()].clone();
            for _ in 0..=random() % 4 {
                let at = usize::try_from(random()).unwrap() % bytes.len();
                bytes[at] = random().to_le_bytes()[0];
            }
            bytes
        };
        refused += usize::from(state(&bytes).is_err());
        refused += usize::from(created(&bytes).is_err());
        refused += usize::from(lease(&bytes).is_err());
        refused += usize::from(cursor(&bytes).is_err());
    }
    assert!(refused > 40_000, "only {refused} were refused");
}
