//! Requests to the embedded broker: each is answered, refused or closes its connection.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use waybill_broker::{Broker, BrokerSettings};

/// Some requests may wait for something that does not come.
const PATIENCE: Duration = Duration::from_millis(20);

struct Fixture {
    runtime: Runtime,
    broker: Broker,
    _directory: TempDir,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("threads can be had");
    let directory = tempfile::tempdir().expect("a directory can be had");
    let config = BrokerSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        partitions_max: 16,
        groups_max: 16,
        producers_max: 16,
        group_initial_delay: Duration::ZERO,
        auto_create_topics: true,
        ..BrokerSettings::new(directory.path())
    };
    let broker = runtime
        .block_on(Broker::start(config))
        .expect("a broker starts");
    Fixture {
        runtime,
        broker,
        _directory: directory,
    }
});

fuzz_target!(|frame: &[u8]| {
    let Fixture {
        runtime, broker, ..
    } = &*FIXTURE;
    let answer = broker.answer(frame.to_vec().into());
    _ = runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await });
});
