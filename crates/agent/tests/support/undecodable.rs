//! A record that no client can decode, in a batch with a right checksum.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// Appends one to partition 0 of a topic, as no client of ours would: its value has the length -2.
pub fn append(broker: &str, topic: &str) {
    const PRODUCE: [u8; 2] = 0_u16.to_be_bytes();
    const VERSION: [u8; 2] = 7_u16.to_be_bytes();
    const NONE: [u8; 2] = u16::MAX.to_be_bytes();
    let one = 1_u32.to_be_bytes();
    let topic = [&length(topic.as_bytes())[2..], topic.as_bytes()].concat();
    let batch = batch();
    let mut request = [&PRODUCE[..], &VERSION, &[0; 4], &NONE].concat();
    // No transaction, acknowledged by all within ten seconds: one topic, one partition, which is 0.
    request.extend([&NONE[..], &NONE, &10_000_u32.to_be_bytes()].concat());
    request.extend([&one[..], &topic, &one, &[0; 4], &length(&batch), &batch].concat());
    let mut broker = TcpStream::connect(broker).unwrap();
    let frame = [&length(&request)[..], &request].concat();
    broker.write_all(&frame).unwrap();
    let mut answer = vec![0; 4 + 4 + 4 + topic.len() + 4 + 4 + 2];
    broker.read_exact(&mut answer).unwrap();
    let error = answer.split_off(answer.len() - 2);
    assert_eq!(error, [0, 0], "the broker takes it");
}

fn batch() -> Vec<u8> {
    let record = [5 * 2, 0, 0, 0, 0, 3];
    let unsequenced = [0xff; 8 + 2 + 4];
    // No attributes, one record, two times.
    let mut checked = vec![0; 2 + 4 + 8 + 8];
    checked.extend([&unsequenced[..], &1_u32.to_be_bytes(), &record].concat());
    let mut batch = vec![0; 8];
    batch.extend(u32::try_from(checked.len() + 9).unwrap().to_be_bytes());
    batch.extend([0xff, 0xff, 0xff, 0xff, 2]);
    batch.extend(crc32c::crc32c(&checked).to_be_bytes());
    batch.extend(checked);
    batch
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap().to_be_bytes()
}
