//! Records of every topic: what can be read is written again as it was read.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use waybill_engine::{
    FailedOperation, OperationRequest, OperationStatus, OperatorAlert, OwnerNotice, Recovery,
    StepReply, StepRequest,
};
use waybill_messages::{Framing, Record};

fuzz_target!(|bytes: &[u8]| {
    read::<OperationRequest>(bytes);
    read::<StepRequest>(bytes);
    read::<StepReply>(bytes);
    read::<Recovery>(bytes);
    read::<OperationStatus>(bytes);
    read::<FailedOperation>(bytes);
    read::<OperatorAlert>(bytes);
    read::<OwnerNotice>(bytes);
});

fn read<R: Record + Debug + PartialEq>(bytes: &[u8]) {
    let framing = Framing::default();
    let Ok(record) = framing.decode::<R>(bytes) else {
        return;
    };
    let mut written = Vec::new();
    framing
        .encode(&record, &mut written)
        .expect("what was read can be written");
    let again = framing.decode::<R>(&written).expect("and read again");
    assert_eq!(record, again);
}
