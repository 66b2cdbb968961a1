//! The whole system with a schema registry: what lies on the topics, what a start does, and what
//! becomes of records while the registry is away.

mod consumer;
mod real;
mod records;
mod start;

use std::path::Path;
use std::process::{Command, Output};

use waybill_messages::{RECORD_SCHEMAS, RecordKind, RecordSchema};
use waybill_test_support::registry::Stub;
use waybill_test_support::world;
use waybill_test_support::world::World;

const STATUS: &str = "waybill.operation-status.v1";

/// A configuration that names the registry, and says `more` of it.
fn with_registry(stub: &Stub, more: &str) -> String {
    format!(
        "partitions: 2\nschemaRegistry: {{ url: '{}', {more} }}\n",
        stub.url()
    )
}

/// What a command of the program that ends by itself says with this configuration.
fn waybill(config: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    command.args(arguments).arg("--config").arg(config);
    waybill_test_support::process::without_test_variables(&mut command);
    command.output().expect("the program was built")
}

fn schema_of(kind: RecordKind) -> RecordSchema {
    let mut schemas = RECORD_SCHEMAS.into_iter();
    let found = schemas.find(|schema| schema.kind == kind);
    found.expect("every record has a schema")
}

/// Sends so many deliveries, and returns their ids.
async fn deliver(world: &World, prefix: &str, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for index in 0..count {
        let delivery = world::delivery(&format!("{prefix}-{index}"), false);
        ids.push(world.deliver(&delivery).await);
    }
    ids
}
