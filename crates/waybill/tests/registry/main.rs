//! The whole system with a schema registry: the records on the topics, the start of roles, and
//! records during an outage of the registry.

mod consumer;
mod real;
mod records;
mod start;

use std::path::Path;
use std::process::{Command, Output};

use waybill_messages::{RECORD_SCHEMAS, RecordKind, RecordSchema};
use waybill_test_support::registry::Stub;
use waybill_test_support::setup;
use waybill_test_support::setup::Setup;

const STATUS: &str = "waybill.operation-status.v1";

/// A configuration with the registry and the settings `more` for it.
fn with_registry(stub: &Stub, more: &str) -> String {
    format!(
        "partitions: 2\nschemaRegistry: {{ url: '{}', {more} }}\n",
        stub.url()
    )
}

/// The output of a command with this configuration.
fn waybill(config: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    command.args(arguments).arg("--config").arg(config);
    waybill_test_support::process::without_variables(&mut command);
    command.output().expect("the program was built")
}

fn schema_of(kind: RecordKind) -> RecordSchema {
    let mut schemas = RECORD_SCHEMAS.into_iter();
    let found = schemas.find(|schema| schema.kind == kind);
    found.expect("every record has a schema")
}

/// Sends `count` deliveries and returns their IDs.
async fn deliver(setup: &Setup, prefix: &str, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for index in 0..count {
        let delivery = setup::delivery(&format!("{prefix}-{index}"), false);
        ids.push(setup.deliver(&delivery).await);
    }
    ids
}
