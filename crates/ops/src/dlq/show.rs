//! `waybill dlq show`: one poison record in full.

use std::io::{self, Write};
use std::ops::ControlFlow;

use anyhow::{Context as _, ensure};
use clap::Args;
use waybill_engine::PartitionId;
use waybill_kafka::RawRecord;
use waybill_messages::headers;
use waybill_node::config::Config;
use waybill_telemetry::visible::escaped;
use waybill_terminal::{Bytes, NOTHING, time};

use super::dead_letter::{DeadLetter, Place, refuse_arguments};
use super::receipts::is_receipt;
use crate::broker_login::BrokerLogin;
use crate::connection::{Connection, chosen};

/// Bytes on a line of a dump.
const LINE_BYTES: usize = 16;

/// The arguments of `waybill dlq show`.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    /// The dead letter as `dlq list` prints it (topic/partition/offset), or the full or short name
    /// of its source topic or dead-letter topic
    #[arg(value_name = "DEAD_LETTER|TOPIC")]
    place: Place,
    /// After TOPIC: the partition of the dead letter
    partition: Option<u32>,
    /// After TOPIC: the offset of the dead letter
    #[arg(value_parser = clap::value_parser!(i64).range(0..))]
    offset: Option<i64>,
    /// Write only the value, byte for byte
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    login: BrokerLogin,
}

impl ShowArgs {
    pub(super) fn run(&self, config: &Config) -> anyhow::Result<()> {
        let (topic, partition, offset) = self.position();
        let connection = Connection::open(&self.login.on(config)?)?;
        let (topic, partitions) = connection.dead_letter_topic(topic)?;
        chosen(&topic, partitions, Some(partition.0))?;
        let dead_letter = dead_letter_at(&connection, &topic, partition, offset)?;
        let mut out = io::stdout().lock();
        if self.raw {
            let value = dead_letter.value.as_deref();
            let value = value.context("the dead letter has no value")?;
            out.write_all(value)?;
            return Ok(out.flush()?);
        }
        Ok(write(&dead_letter, &mut out)?)
    }
}

impl ShowArgs {
    /// The topic, partition and offset that the arguments name.
    fn position(&self) -> (&str, PartitionId, i64) {
        match (&self.place, self.partition, self.offset) {
            (Place::DeadLetter(at), None, None) => (&at.topic, at.partition, at.offset.0),
            (Place::DeadLetter(at), ..) => refuse_arguments(&format!(
                "{at} already names a dead letter: leave out the partition and offset after it"
            )),
            (Place::Topic(topic), Some(partition), Some(offset)) => {
                (topic, PartitionId(partition), offset)
            }
            (Place::Topic(topic), ..) => refuse_arguments(&format!(
                "name a dead letter: {topic}/PARTITION/OFFSET, or {topic} PARTITION OFFSET; `waybill dlq list` lists \
                 the dead letters"
            )),
        }
    }
}

/// The dead letter at an offset of an existing partition.
pub(super) fn dead_letter_at(
    connection: &Connection,
    topic: &str,
    partition: PartitionId,
    offset: i64,
) -> anyhow::Result<DeadLetter> {
    let held = connection.offsets(topic, partition)?;
    ensure!(
        held.contains(&offset),
        "{topic} partition {partition} has no dead letter at offset {offset}: it holds {} up to {}",
        held.start,
        held.end
    );
    let mut found: Option<RawRecord> = None;
    let mut receipt = false;
    // The reader stops after the record. That result carries no information.
    let _ = connection.read(topic, partition, offset..offset + 1, &mut |record| {
        receipt = is_receipt(&record);
        found = Some(record.to_raw());
        Ok(ControlFlow::Break(()))
    })?;
    ensure!(
        !receipt,
        "offset {offset} of {topic} partition {partition} is the receipt of a replay, not a dead letter"
    );
    let record = found.with_context(|| {
        format!("{topic} partition {partition} no longer has a dead letter at offset {offset}")
    })?;
    Ok(DeadLetter::of(record))
}

fn write(dead_letter: &DeadLetter, out: &mut dyn Write) -> io::Result<()> {
    let message = |name: &str| match dead_letter.error(name) {
        Some(text) => escaped(&text),
        None => NOTHING.to_owned(),
    };
    let source = match dead_letter.source() {
        Ok(source) => source.to_string(),
        Err(unplaced) => format!("{NOTHING} ({unplaced})"),
    };
    writeln!(out, "dead letter  {}", dead_letter.position)?;
    writeln!(
        out,
        "time         {}",
        time(dead_letter.timestamp_ms).as_deref().unwrap_or(NOTHING)
    )?;
    writeln!(out, "source       {source}")?;
    writeln!(out, "stage        {}", message(headers::ERRORS_STAGE))?;
    writeln!(out, "component    {}", message(headers::ERRORS_CLASS_NAME))?;
    writeln!(
        out,
        "kind         {}",
        message(headers::ERRORS_EXCEPTION_CLASS_NAME)
    )?;
    writeln!(
        out,
        "cause        {}",
        message(headers::ERRORS_EXCEPTION_MESSAGE)
    )?;
    writeln!(out, "headers      {}", dead_letter.headers.len())?;
    for (name, value) in &dead_letter.headers {
        let name = escaped(name);
        match value {
            Some(value) => writeln!(out, "  {name}: {}", Bytes(value))?,
            None => writeln!(out, "  {name}: {NOTHING}")?,
        }
    }
    dump("key", dead_letter.key.as_deref(), out)?;
    dump("value", dead_letter.value.as_deref(), out)
}

/// Bytes in hexadecimal with their text next to them.
fn dump(name: &str, bytes: Option<&[u8]>, out: &mut dyn Write) -> io::Result<()> {
    let Some(bytes) = bytes else {
        return writeln!(out, "{name:<11}  none");
    };
    writeln!(out, "{name:<11}  {} bytes", bytes.len())?;
    for (index, line) in bytes.chunks(LINE_BYTES).enumerate() {
        let at = index * LINE_BYTES;
        let digits: String = line.iter().map(|byte| format!("{byte:02x} ")).collect();
        let text: String = line.iter().map(|byte| visible(*byte)).collect();
        writeln!(out, "  {at:08x}  {digits:<48} |{text}|")?;
    }
    Ok(())
}

fn visible(byte: u8) -> char {
    match byte {
        b' '..=b'~' => char::from(byte),
        _ => '.',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_shows_every_byte_as_hexadecimal_and_as_text() {
        let dumped = |bytes: Option<&[u8]>| {
            let mut out = Vec::new();
            dump("value", bytes, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let all = dumped(Some(b"\xc3\x01 poison, byte for byte"));
        let expected = "value        24 bytes\n  \
             00000000  c3 01 20 70 6f 69 73 6f 6e 2c 20 62 79 74 65 20  |.. poison, byte |\n  \
             00000010  66 6f 72 20 62 79 74 65                          |for byte|\n";
        assert_eq!(all, expected);
        assert_eq!(dumped(Some(b"")), "value        0 bytes\n");
        assert_eq!(dumped(None), "value        none\n");
    }
}
