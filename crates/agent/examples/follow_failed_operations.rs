//! Follows the operations that failed for good, as its own consumer group.
//!
//! ```sh
//! cargo run --release -p waybill-agent --example follow_failed_operations -- 127.0.0.1:9092
//! ```

use std::error::Error;
use std::io::Write as _;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::Message as _;
use waybill_engine::FailedOperation;
use waybill_messages::{Record as _, Topics};

fn main() -> Result<(), Box<dyn Error>> {
    let brokers = std::env::args().nth(1).ok_or("which brokers? HOST:PORT")?;
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "failed-operations-report")
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .create()?;
    consumer.subscribe(&[Topics::default().failed_operations()])?;
    loop {
        let Some(message) = consumer.poll(Duration::from_secs(1)) else {
            continue;
        };
        let message = match message {
            Ok(message) => message,
            // The client recovers on its own.
            Err(error) => {
                eprintln!("nothing can be read for now: {error}");
                continue;
            }
        };
        match FailedOperation::decode(message.payload().unwrap_or_default()) {
            // Duplicates of a record have the same event ID, so a consumer can skip those that it
            // has seen.
            Ok(failed) => writeln!(
                std::io::stdout(),
                "{} {} {} {}: {}",
                failed.event_id,
                failed.operation,
                failed.failing_step.as_deref().unwrap_or("-"),
                failed.error.code,
                failed.error.message
            )?,
            Err(error) => eprintln!("offset {} cannot be read: {error}", message.offset()),
        }
        consumer.commit_message(&message, CommitMode::Async)?;
    }
}
