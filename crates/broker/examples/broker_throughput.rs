//! The cost of a record: `cargo run --release --example broker_throughput -- [RECORDS] [BYTES]`.
//!
//! Produces through librdkafka and reads back, to a topic without and with `flush.messages=1`, and
//! prints the CPU time of the whole process (clients and broker) per record, as the kernel counts
//! it. `produce` and `fetch` move batches as a busy application's clients form them; `hop` sends
//! one record at a time to a consumer that waits for it, which costs a produce and a fetch each.

use std::error::Error;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use waybill_broker::{Broker, BrokerSettings};

const AT_ONCE: usize = 100;

/// CPU time in the kernel's ticks of 10 ms. The broker runs on the runtime's threads and two of
/// its own; all others are the clients'.
#[derive(Clone, Copy, Default)]
struct Cpu {
    broker: u64,
    clients: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let records: usize = arguments.next().map_or(Ok(500_000), |n| n.parse())?;
    let bytes: usize = arguments.next().map_or(Ok(600), |n| n.parse())?;
    let dir = tempfile::tempdir()?;
    let mut config = BrokerSettings::new(dir.path());
    config.listen = "127.0.0.1:0".parse()?;
    let broker = Broker::start(config).await?;
    let brokers = broker.address().to_string();
    for (topic, flush) in [("plain", "9223372036854775807"), ("synced", "1")] {
        let admin: AdminClient<DefaultClientContext> = client(&brokers).create()?;
        let new = NewTopic::new(topic, 4, TopicReplication::Fixed(1)).set("flush.messages", flush);
        for created in admin.create_topics([&new], &AdminOptions::new()).await? {
            created.map_err(|(name, code)| format!("{name}: {code}"))?;
        }
        let before = broker.stats();
        let works: [(&str, usize, Work); 3] = [
            ("produce", records, produce),
            ("fetch", records, fetch),
            ("hop", records / 50, hop),
        ];
        for (what, records, work) in works {
            let (cpu, started) = (cpu(), Instant::now());
            let (brokers, topic) = (brokers.clone(), topic.to_owned());
            let named = topic.clone();
            // Its own thread, so that it does not count as the broker's.
            let (done, finished) = tokio::sync::oneshot::channel();
            std::thread::Builder::new()
                .name("client".to_owned())
                .spawn(move || {
                    let outcome = work(&brokers, &topic, records, bytes);
                    let _ = done.send(outcome.map_err(|error| error.to_string()));
                })?;
            finished.await??;
            let (elapsed, spent) = (started.elapsed(), self::cpu());
            let per_record = |ticks: u64| ticks as f64 * 10_000.0 / records as f64;
            println!(
                "{named:>7} {what:>8}: {:.2} µs CPU per record in the broker, {:.2} in the clients; \
                 {:.0} records/s",
                per_record(spent.broker - cpu.broker),
                per_record(spent.clients - cpu.clients),
                records as f64 / elapsed.as_secs_f64(),
            );
        }
        let after = broker.stats();
        println!(
            "{topic:>7}: {} produce requests, {} fetches, {} syncs in {:?}",
            after.produce_requests - before.produce_requests,
            after.fetch_requests - before.fetch_requests,
            after.syncs - before.syncs,
            after.sync_time - before.sync_time,
        );
    }
    if !broker.shutdown().await {
        return Err("not everything could be synced to disk".into());
    }
    Ok(())
}

type Work = fn(&str, &str, usize, usize) -> Outcome;
type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("linger.ms", "0")
        .set("group.id", "throughput");
    config.set("queue.buffering.max.messages", "1000000");
    // Commits come back as events, which would end a poll without a record.
    config.set("enable.auto.commit", "false");
    config
}

fn produce(brokers: &str, topic: &str, records: usize, bytes: usize) -> Outcome {
    let producer: BaseProducer = client(brokers).create()?;
    let payload = vec![b'x'; bytes];
    for n in 0..records {
        let record = BaseRecord::<(), [u8]>::to(topic)
            .partition((n / AT_ONCE % 4) as i32)
            .payload(&payload);
        producer.send(record).map_err(|(error, _)| error)?;
        if n % AT_ONCE == 0 {
            producer.poll(Duration::ZERO);
            while producer.in_flight_count() > 10_000 {
                producer.poll(Duration::from_millis(1));
            }
        }
    }
    Ok(producer.flush(Duration::from_secs(60))?)
}

fn fetch(brokers: &str, topic: &str, records: usize, _bytes: usize) -> Outcome {
    let consumer: BaseConsumer = client(brokers).create()?;
    let mut assigned = TopicPartitionList::new();
    for partition in 0..4 {
        assigned.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&assigned)?;
    let mut seen = 0;
    while seen < records {
        if let Some(record) = consumer.poll(Duration::from_secs(10)) {
            record?;
            seen += 1;
        }
    }
    Ok(())
}

/// One record at a time from the producer to a consumer that waits for it.
fn hop(brokers: &str, topic: &str, records: usize, bytes: usize) -> Outcome {
    let producer: BaseProducer = client(brokers).create()?;
    let consumer: BaseConsumer = client(brokers).create()?;
    let (_, end) = consumer.fetch_watermarks(topic, 0, Duration::from_secs(10))?;
    let mut assigned = TopicPartitionList::new();
    assigned.add_partition_offset(topic, 0, Offset::Offset(end))?;
    consumer.assign(&assigned)?;
    let payload = vec![b'x'; bytes];
    for _ in 0..records {
        let record = BaseRecord::<(), [u8]>::to(topic)
            .partition(0)
            .payload(&payload);
        producer.send(record).map_err(|(error, _)| error)?;
        producer.poll(Duration::ZERO);
        consumer
            .poll(Duration::from_secs(10))
            .ok_or("the record did not arrive")??;
    }
    Ok(producer.flush(Duration::from_secs(60))?)
}

/// Reads the CPU times; zero if the system does not report them.
fn cpu() -> Cpu {
    let ticks = |path: &std::path::Path| {
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        let (name, rest) = stat.rsplit_once(") ").unwrap_or_default();
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |at: usize| {
            fields
                .get(at)
                .and_then(|t| t.parse::<u64>().ok())
                .unwrap_or(0)
        };
        (
            name.contains("(broker-") || name.contains("(tokio-rt-worker"),
            field(11) + field(12),
        )
    };
    // The clients' threads have ended, so their share is the rest of the process's time.
    let (_, whole) = ticks("/proc/self/stat".as_ref());
    let mut broker = 0;
    for thread in std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let (is_brokers, spent) = ticks(&thread.path().join("stat"));
        broker += if is_brokers { spent } else { 0 };
    }
    Cpu {
        broker,
        clients: whole.saturating_sub(broker),
    }
}
