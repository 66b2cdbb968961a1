//! Instruction counts of encoding and decoding the records of a delivery, in both framings, checked
//! against `.ci/budgets`.
//!
//! What must hold: a benchmark does the same work in every run and on every machine. Its allocator
//! is linked in, and the codecs, which are built once per process, are built before it.
//!
//! `.ci/budgets/check messages` runs it.

#![expect(missing_docs, reason = "the macros make public items without a word")]

use std::hint::black_box;
use std::sync::Arc;

use gungraun::prelude::*;
use waybill_engine::{
    Action, Attempt, CreateRequest, Epoch, IdOrigin, Nonce, Offset, OperationId, OperationRequest,
    OperationStatus, Outcome, PartitionId, Position, Priority, ProcessState, RequestHash,
    StatusKind, StepReply, StepRequest, Timestamp,
};
use waybill_messages::{Framing, Lookup, RECORD_SCHEMAS, Record, SchemaId, SchemaIds, Schemas};

/// The program's own allocator: the cost of the system's allocator differs between systems.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How many times to encode or decode a record.
const ROUNDS: usize = 100;

type Encoding<R> = (Framing, R, Vec<u8>);
type Decoding = (Framing, Vec<u8>);

#[library_benchmark]
#[bench::single_object(args = (Framing::single_object(), request()), setup = to_encode)]
#[bench::confluent(args = (confluent(), request()), setup = to_encode)]
fn encode_request(encoding: Encoding<OperationRequest>) -> Vec<u8> {
    encode(encoding)
}

#[library_benchmark]
#[bench::single_object(args = (Framing::single_object(), step_request()), setup = to_encode)]
#[bench::confluent(args = (confluent(), step_request()), setup = to_encode)]
fn encode_step_request(encoding: Encoding<StepRequest>) -> Vec<u8> {
    encode(encoding)
}

#[library_benchmark]
#[bench::single_object(args = (Framing::single_object(), step_reply()), setup = to_encode)]
#[bench::confluent(args = (confluent(), step_reply()), setup = to_encode)]
fn encode_step_reply(encoding: Encoding<StepReply>) -> Vec<u8> {
    encode(encoding)
}

#[library_benchmark]
#[bench::single_object(args = (Framing::single_object(), status()), setup = to_encode)]
#[bench::confluent(args = (confluent(), status()), setup = to_encode)]
fn encode_status(encoding: Encoding<OperationStatus>) -> Vec<u8> {
    encode(encoding)
}

#[library_benchmark]
#[bench::single_object(args = (Framing::single_object(), request()), setup = to_decode)]
#[bench::confluent(args = (confluent(), request()), setup = to_decode)]
fn decode_request(decoding: Decoding) -> Decoding {
    decode::<OperationRequest>(decoding)
}

#[library_benchmark]
#[bench::single_object(args = (Framing::single_object(), step_request()), setup = to_decode)]
#[bench::confluent(args = (confluent(), step_request()), setup = to_decode)]
fn decode_step_request(decoding: Decoding) -> Decoding {
    decode::<StepRequest>(decoding)
}

#[library_benchmark]
#[bench::single_object(args = (Framing::single_object(), step_reply()), setup = to_decode)]
#[bench::confluent(args = (confluent(), step_reply()), setup = to_decode)]
fn decode_step_reply(decoding: Decoding) -> Decoding {
    decode::<StepReply>(decoding)
}

#[library_benchmark]
#[bench::single_object(args = (Framing::single_object(), status()), setup = to_decode)]
#[bench::confluent(args = (confluent(), status()), setup = to_decode)]
fn decode_status(decoding: Decoding) -> Decoding {
    decode::<OperationStatus>(decoding)
}

library_benchmark_group!(
    name = messages,
    benchmarks = [
        encode_request,
        encode_step_request,
        encode_step_reply,
        encode_status,
        decode_request,
        decode_step_request,
        decode_step_reply,
        decode_status
    ]
);

main!(library_benchmark_groups = messages);

/// A record, and a buffer that has held it once: the codec is built, and the buffer is large
/// enough.
fn to_encode<R: Record>(framing: Framing, record: R) -> Encoding<R> {
    let mut bytes = Vec::new();
    framing.encode(&record, &mut bytes).expect("it is a record");
    (framing, record, bytes)
}

/// A record's bytes, after one decoding.
fn to_decode<R: Record>(framing: Framing, record: R) -> Decoding {
    let (framing, _, bytes) = to_encode(framing, record);
    drop(framing.decode::<R>(&bytes).expect("the value was encoded"));
    (framing, bytes)
}

fn encode<R: Record>((framing, record, mut bytes): Encoding<R>) -> Vec<u8> {
    for _ in 0..ROUNDS {
        bytes.clear();
        framing
            .encode(black_box(&record), black_box(&mut bytes))
            .expect("it was encoded before");
    }
    bytes
}

fn decode<R: Record>((framing, bytes): Decoding) -> Decoding {
    for _ in 0..ROUNDS {
        let record = framing.decode::<R>(black_box(&bytes));
        drop(black_box(record).expect("it was decoded before"));
    }
    (framing, bytes)
}

/// A registry that is never called: a writer knows its IDs, and reads records with the same ones.
struct Unasked;

impl Schemas for Unasked {
    fn writer_schema(&self, id: SchemaId) -> Lookup {
        panic!("the id {id} is a writer's own")
    }
}

fn confluent() -> Framing {
    let mut ids = SchemaIds::default();
    for (schema, id) in RECORD_SCHEMAS.iter().zip(1..) {
        ids.set(schema.kind, SchemaId(id));
    }
    Framing::confluent(ids, Arc::new(Unasked))
}

fn operation() -> OperationId {
    "0190b1e2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
        .parse()
        .expect("it is a UUID")
}

fn request() -> OperationRequest {
    OperationRequest::Create(CreateRequest {
        operation: operation(),
        id_origin: IdOrigin::Server,
        workflow: "drone-delivery".to_owned(),
        tenant: String::new(),
        caller_id: None,
        input: vec![b'x'; 600],
        deadline: None,
        reply_to: None,
        request_hash: RequestHash::default(),
        verify_hash: true,
        requested_at: Timestamp(1_760_000_000_000_000),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    })
}

fn step_request() -> StepRequest {
    StepRequest {
        operation: operation(),
        workflow: "drone-delivery".into(),
        step: "drone".into(),
        agent: "drone".into(),
        attempt: Attempt(1),
        epoch: Epoch(7),
        action: Action::Run,
        complete_by: Timestamp(1_760_000_005_000_000),
        tenant: "".into(),
        input: vec![b'x'; 600].into(),
        results: (0..4)
            .map(|number| (format!("step{number}.output"), format!("value-{number}")))
            .collect(),
        reply_partition: PartitionId(3),
        shard: None,
        nonce: Some(Nonce([7; Nonce::BYTES])),
        traceparent: None,
    }
}

fn step_reply() -> StepReply {
    StepReply {
        operation: operation(),
        step: "drone".to_owned(),
        attempt: Attempt(1),
        epoch: Epoch(7),
        action: Action::Run,
        nonce: Some(Nonce([7; Nonce::BYTES])),
        outcome: Outcome::Success {
            outputs: (0..2)
                .map(|number| (format!("output{number}"), format!("value-{number}")))
                .collect(),
        },
    }
}

fn status() -> OperationStatus {
    OperationStatus {
        event_id: operation().0,
        operation: operation(),
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
    }
}
