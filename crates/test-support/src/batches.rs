//! Hand-made record batches, and requests that append them unchanged and change what their topic
//! accepts. No Kafka client sends such batches.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A batch with a valid checksum. Each record is given as its bytes, from the length on. The lowest
/// bits of `attributes` name the compression.
pub fn batch(attributes: u16, records: &[Vec<u8>]) -> Vec<u8> {
    const UNSEQUENCED: [u8; 8 + 2 + 4] = [0xff; 14];
    let count = u32::try_from(records.len()).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now_ms = u64::try_from(now.as_millis()).unwrap().to_be_bytes();
    let mut checked = attributes.to_be_bytes().to_vec();
    checked.extend((count - 1).to_be_bytes());
    checked.extend([now_ms, now_ms].concat());
    checked.extend(UNSEQUENCED);
    checked.extend(count.to_be_bytes());
    checked.extend(records.concat());
    let mut batch = vec![0; 8];
    batch.extend(u32::try_from(checked.len() + 9).unwrap().to_be_bytes());
    // No leader epoch, and the format version.
    batch.extend([0xff, 0xff, 0xff, 0xff, 2]);
    batch.extend(crc32c::crc32c(&checked).to_be_bytes());
    batch.extend(checked);
    batch
}

/// Records without a key, with an empty value.
pub fn tiny_records(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(tiny_record).collect()
}

fn tiny_record(number: u64) -> Vec<u8> {
    let delta = varint(2 * number);
    let rest = [&[0, 0][..], &delta, &[1, 0, 0]].concat();
    [varint(2 * rest.len() as u64), rest].concat()
}

/// A number in groups of seven bits, the lowest first.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Appends a batch of any content to partition 0 of a topic. Returns the broker's error code.
///
/// Retries for a while if the broker does not lead the partition, as clients do: after a topic is
/// created, the metadata may name a leader before that broker has become it.
pub fn produce(broker: impl ToSocketAddrs, topic: &str, batch: &[u8]) -> i16 {
    const NOT_LEADER: i16 = 6;
    let deadline = Instant::now() + 2 * TIMEOUT;
    loop {
        let code = request(&broker, topic, batch);
        if code != NOT_LEADER || Instant::now() > deadline {
            return code;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Changes one setting of a topic and leaves the others. Returns the broker's error code.
pub fn set_topic(broker: impl ToSocketAddrs, topic: &str, setting: &str, value: &str) -> i16 {
    let one = 1_u32.to_be_bytes();
    let text = |text: &str| {
        let length = u16::try_from(text.len()).unwrap().to_be_bytes();
        [&length[..], text.as_bytes()].concat()
    };
    // IncrementalAlterConfigs, version 0, correlation ID 0, and no client ID.
    let mut request = [0, 44, 0, 0, 0, 0, 0, 0, 0xff, 0xff].to_vec();
    // One topic with one setting, which is set. The change is made, not only checked.
    request.extend([&one[..], &[2], &text(topic), &one].concat());
    request.extend(text(setting));
    request.push(0);
    request.extend(text(value));
    request.push(0);
    // Length, correlation ID, time, the number of resources, and the error code of one.
    let answer = ask(broker, &request, 4 + 4 + 4 + 4 + 2);
    i16::from_be_bytes(*answer.last_chunk().unwrap())
}

const TIMEOUT: Duration = Duration::from_secs(10);

fn request(broker: impl ToSocketAddrs, topic: &str, batch: &[u8]) -> i16 {
    const NONE: [u8; 2] = u16::MAX.to_be_bytes();
    const ALL: [u8; 2] = u16::MAX.to_be_bytes();
    let one = 1_u32.to_be_bytes();
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_be_bytes();
    let topic = [&length(topic.as_bytes())[2..], topic.as_bytes()].concat();
    // Produce, version 7, correlation ID 0, and no client ID.
    let mut request = [&[0, 0, 0, 7][..], &[0; 4], &NONE].concat();
    // No transaction, acknowledged by all replicas: one topic with partition 0.
    let timeout_ms = u32::try_from(TIMEOUT.as_millis()).unwrap();
    request.extend([&NONE[..], &ALL, &timeout_ms.to_be_bytes()].concat());
    request.extend([&one[..], &topic, &one, &[0; 4], &length(batch), batch].concat());
    // Length, correlation ID, one topic with its name, one partition with its number, and the error
    // code.
    let answer = ask(broker, &request, 4 + 4 + 4 + topic.len() + 4 + 4 + 2);
    i16::from_be_bytes(*answer.last_chunk().unwrap())
}

/// Sends a request, and returns the beginning of the answer.
fn ask(broker: impl ToSocketAddrs, request: &[u8], answer_bytes: usize) -> Vec<u8> {
    let length = u32::try_from(request.len()).unwrap().to_be_bytes();
    let mut broker = TcpStream::connect(broker).unwrap();
    broker.set_read_timeout(Some(2 * TIMEOUT)).unwrap();
    let frame = [&length[..], request].concat();
    broker.write_all(&frame).unwrap();
    let mut answer = vec![0; answer_bytes];
    broker.read_exact(&mut answer).unwrap();
    answer
}
