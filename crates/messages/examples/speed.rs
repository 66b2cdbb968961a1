//! Measures encoding and decoding: `cargo run --release -p waybill-messages --example speed`.

use std::hint::black_box;
use std::time::Instant;

use waybill_engine::{
    Action, Attempt, CreateRequest, Epoch, IdOrigin, Nonce, Offset, OperationId, OperationRequest,
    OperationStatus, Outcome, PartitionId, Position, Priority, ProcessState, RequestHash,
    StatusKind, StepReply, StepRequest, Timestamp,
};
use waybill_messages::Record;

const ROUNDS: u32 = 200_000;

fn main() {
    let operation: OperationId = "0190b1e2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
        .parse()
        .expect("it is a UUID");
    let input = vec![b'x'; 600];
    measure(
        "operation-request, 600 bytes of input",
        &OperationRequest::Create(CreateRequest {
            operation,
            id_origin: IdOrigin::Server,
            workflow: "drone-delivery".to_owned(),
            tenant: String::new(),
            caller_id: None,
            input: input.clone(),
            deadline: None,
            reply_to: None,
            request_hash: RequestHash::default(),
            verify_hash: false,
            requested_at: Timestamp(1_760_000_000_000_000),
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        }),
    );
    measure(
        "step-request, 600 bytes of input, 4 results",
        &StepRequest {
            operation,
            workflow: "drone-delivery".into(),
            step: "drone".into(),
            agent: "drone".into(),
            attempt: Attempt(1),
            epoch: Epoch(7),
            action: Action::Run,
            complete_by: Timestamp(1_760_000_005_000_000),
            tenant: "".into(),
            input: input.into(),
            results: (0..4)
                .map(|i| (format!("step{i}.output"), format!("value-{i}")))
                .collect(),
            reply_partition: PartitionId(3),
            shard: None,
            nonce: Some(Nonce([7; Nonce::BYTES])),
            traceparent: None,
        },
    );
    measure(
        "step-reply, 2 outputs",
        &StepReply {
            operation,
            step: "drone".to_owned(),
            attempt: Attempt(1),
            epoch: Epoch(7),
            action: Action::Run,
            nonce: Some(Nonce([7; Nonce::BYTES])),
            outcome: Outcome::Success {
                outputs: (0..2)
                    .map(|i| (format!("output{i}"), format!("value-{i}")))
                    .collect(),
            },
        },
    );
    measure(
        "operation-status",
        &OperationStatus {
            event_id: operation.0,
            operation,
            caller_id: None,
            workflow: "drone-delivery".to_owned(),
            tenant: String::new(),
            kind: StatusKind::Final,
            state: ProcessState::Processed,
            sequence: 1,
            error: None,
            failing_step: None,
            step: None,
            request: Position {
                priority: Priority::Normal,
                partition: PartitionId(3),
                offset: Offset(123_456),
            },
            requested_at: Timestamp(1_760_000_000_000_000),
            at: Timestamp(1_760_000_000_010_000),
            reply_to: None,
        },
    );
}

fn measure<R: Record>(name: &str, value: &R) {
    let mut bytes = Vec::new();
    value
        .encode(&mut bytes)
        .expect("the sample is a valid record");
    let size = bytes.len();

    let started = Instant::now();
    for _ in 0..ROUNDS {
        bytes.clear();
        black_box(value)
            .encode(black_box(&mut bytes))
            .expect("it was encoded before");
    }
    let encode = started.elapsed() / ROUNDS;

    let started = Instant::now();
    for _ in 0..ROUNDS {
        drop(black_box(R::decode(black_box(&bytes))));
    }
    let decode = started.elapsed() / ROUNDS;
    println!("{name}: {size} bytes, encode {encode:?}, decode {decode:?}");
}
