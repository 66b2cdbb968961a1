//! Attacks on the embedded broker.

use std::io;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use tokio::io::AsyncWriteExt as _;
use waybill_messages::Topics;

use super::{Attacker, hold};

const CODECS: [&str; 4] = ["gzip", "snappy", "lz4", "zstd"];
/// What a bomb holds.
const BOMB_BYTES: usize = 32 << 20;
/// How long a bomb or a record waits for its acknowledgement.
const PATIENCE: Duration = Duration::from_secs(10);
/// Records that mean nothing, in one step.
const RUBBISH: usize = 20;

pub(super) async fn bad_frames(attacker: &Attacker) -> io::Result<()> {
    let frames: [&[u8]; 4] = [
        // Longer than any frame may be, and negative.
        &[0x7f, 0xff, 0xff, 0xff, 0, 0],
        &[0x80, 0, 0, 0],
        // A request of an API that is none, and a fetch that claims two billion topics.
        &[0, 0, 0, 8, 0x7f, 0xff, 0, 1, 0, 0, 0, 1],
        &[
            0, 0, 0, 39, 0, 1, 0, 4, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    ];
    for frame in frames {
        let mut stream = attacker.connect().await?;
        stream.write_all(frame).await?;
        hold(&mut stream).await;
    }
    Ok(())
}

fn topics(attacker: &Attacker) -> [String; 3] {
    let topics = Topics::new(&attacker.topic_prefix);
    [topics.requests(), topics.step_replies(), topics.recovery()].map(str::to_owned)
}

fn producer(attacker: &Attacker, codec: &str) -> io::Result<FutureProducer> {
    ClientConfig::new()
        .set("bootstrap.servers", attacker.address.to_string())
        .set("compression.codec", codec)
        .set("message.max.bytes", "1000000000")
        .set("message.timeout.ms", "5000")
        .create()
        .map_err(io::Error::other)
}

pub(super) async fn bombs(attacker: &Attacker) -> io::Result<()> {
    let zeroes = vec![0; BOMB_BYTES];
    for codec in CODECS {
        let producer = producer(attacker, codec)?;
        for topic in topics(attacker) {
            let record = FutureRecord::<(), _>::to(&topic).payload(&zeroes);
            // The broker should refuse it.
            let _ = producer.send(record, Timeout::After(PATIENCE)).await;
            tokio::time::sleep(PATIENCE / 10).await;
        }
    }
    Ok(())
}

pub(super) async fn rubbish(attacker: &Attacker) -> io::Result<()> {
    let producer = producer(attacker, "none")?;
    for number in 0..RUBBISH {
        for topic in topics(attacker) {
            let value = format!("{number} of a record that means nothing").repeat(10);
            let record = FutureRecord::<(), _>::to(&topic).payload(&value);
            let sent = producer.send(record, Timeout::After(PATIENCE)).await;
            sent.map_err(|(error, _)| io::Error::other(error))?;
        }
        tokio::time::sleep(PATIENCE / 100).await;
    }
    Ok(())
}
