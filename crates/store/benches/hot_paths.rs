//! Counts the instructions that encode and decode a row. `.ci/budgets` holds the limits.
//!
//! What must hold: a benchmark does the same whenever and wherever it runs. Its allocator is linked
//! in.
//!
//! Deliberately absent: the database. Its threads and syncs cannot be counted reproducibly.
//!
//! `.ci/budgets/check store` runs it.

#![expect(missing_docs, reason = "the macros make public items without a word")]

use std::hint::black_box;
use std::sync::Arc;

use gungraun::prelude::*;
use uuid::Uuid;
use waybill_engine::{
    Attempt, Created, Epoch, Offset, OperationId, OperationState, OwnerId, PartitionId, Position,
    Priority, ProcessState, RequestHash, Stamp, StepProgress, StepState, Timestamp,
};
use waybill_store::{RowBytes, RowCodec, RowWrite};

/// The program's own allocator, because the cost of the system's allocator differs between systems.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How many times a row is encoded or decoded.
const ROUNDS: usize = 100;

const ID: OperationId = OperationId(Uuid::from_u128(0x0190_b1e2_3c4d_7e5f_8a9b_0c1d_2e3f_4a5b));

const STEPS: [&str; 5] = ["account", "package", "transport", "drone", "delivery"];

const NOW: Timestamp = Timestamp(1_760_000_000_000_000);

// The first write of a row has both parts; later writes have only the state.
#[library_benchmark]
#[bench::first_write(args = (first_write()), setup = to_encode)]
#[bench::later_write(args = (later_write()), setup = to_encode)]
fn encode_row((mut codec, row, mut bytes): (RowCodec, RowWrite, RowBytes)) -> RowBytes {
    for _ in 0..ROUNDS {
        codec.encode(black_box(&row), black_box(&mut bytes));
    }
    bytes
}

#[library_benchmark]
#[bench::under_way(setup = to_decode)]
fn decode_row((codec, bytes): (RowCodec, RowBytes)) -> RowBytes {
    for _ in 0..ROUNDS {
        let row = codec.decode(ID, black_box(&bytes));
        drop(black_box(row).expect("the value was encoded"));
    }
    bytes
}

library_benchmark_group!(name = store, benchmarks = [encode_row, decode_row]);

main!(library_benchmark_groups = store);

/// A row, with reused buffers that are already large enough for it.
fn to_encode(row: RowWrite) -> (RowCodec, RowWrite, RowBytes) {
    let (mut codec, mut bytes) = (RowCodec::default(), RowBytes::default());
    codec.encode(&row, &mut bytes);
    (codec, row, bytes)
}

/// Both parts of the row of an operation in progress.
fn to_decode() -> (RowCodec, RowBytes) {
    let row = RowWrite {
        created: first_write().created,
        ..later_write()
    };
    let (codec, _, bytes) = to_encode(row);
    (codec, bytes)
}

/// A delivery whose first step is in progress.
fn first_write() -> RowWrite {
    let created = Created {
        workflow: "drone-delivery".into(),
        workflow_version: 1,
        step_names: STEPS.map(Arc::from).into(),
        tenant: "".into(),
        caller_id: None,
        input: vec![b'x'; 600].into(),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash([7; 16]),
        request: Position {
            priority: Priority::Normal,
            partition: PartitionId(3),
            offset: Offset(123_456),
        },
        requested_at: NOW,
        created_at: NOW,
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    };
    RowWrite {
        created: Some(Arc::new(created)),
        ..write(0)
    }
}

/// A delivery whose fourth step is in progress.
fn later_write() -> RowWrite {
    write(3)
}

/// The state of a delivery with `completed` steps completed.
fn write(completed: usize) -> RowWrite {
    let steps = (0..STEPS.len()).map(|index| {
        if index < completed {
            StepProgress {
                state: StepState::Completed,
                attempt: Attempt(1),
                succeeded: Some(Attempt(1)),
                outputs: vec![("id".to_owned(), format!("value-{index}"))],
                changed_at: NOW,
                ..StepProgress::default()
            }
        } else if index == completed {
            StepProgress {
                state: StepState::Running,
                attempt: Attempt(1),
                complete_by: Some(NOW),
                changed_at: NOW,
                ..StepProgress::default()
            }
        } else {
            StepProgress::default()
        }
    });
    RowWrite {
        id: ID,
        created: None,
        state: OperationState {
            state: ProcessState::Processing,
            locked_by: Some(OwnerId(Uuid::from_u128(1))),
            epoch: Epoch(7),
            next_due: Some(NOW),
            updated_at: NOW,
            steps: steps.collect(),
            ..OperationState::default()
        },
        stamp: Stamp(1_760_000_000_000_000),
        keep_for: None,
    }
}
