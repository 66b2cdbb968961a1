//! Files of workflows: one that is taken keeps its promise, as the check at load says; the rest is
//! refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waybill_engine::{Workflow, WorkflowDefinition};

fuzz_target!(|text: &str| {
    if let Ok(definition) = serde_saphyr::from_str::<WorkflowDefinition>(text) {
        _ = Workflow::try_from(definition);
    }
});
