//! Rows of the embedded store: whatever lies on disk is reported as corrupt, or is a row that is
//! written so that it reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waybill_engine::OperationId;
use waybill_store::{RowBytes, RowCodec, RowWrite};

const ID: OperationId = OperationId(uuid::Uuid::nil());

// The first byte says how many of the others are the immutable part.
fuzz_target!(|bytes: &[u8]| {
    let Some((&length, values)) = bytes.split_first() else {
        return;
    };
    let (created, state) = values.split_at(values.len().min(length.into()));
    let mut bytes = RowBytes {
        state: state.to_vec(),
        created: created.to_vec(),
    };
    let mut codec = RowCodec::default();
    let Ok(row) = codec.decode(ID, &bytes) else {
        return;
    };
    let write = RowWrite {
        id: ID,
        created: Some(row.created.clone()),
        state: row.state.clone(),
        stamp: row.stamp,
        keep_for: None,
    };
    codec.encode(&write, &mut bytes);
    let again = codec
        .decode(ID, &bytes)
        .expect("what was read can be written");
    assert_eq!(again, row);
});
