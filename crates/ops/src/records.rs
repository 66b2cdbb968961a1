//! `waybill records`: prints the decoded records of a topic. It joins no group and commits no
//! offset.

use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::str::FromStr;

use anyhow::ensure;
use clap::Args;
use serde::Serialize;
use waybill_config::ConfigError;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::RecordRef;
use waybill_node::config::Config;
use waybill_telemetry::visible::escaped;
use waybill_terminal::{Bytes, NOTHING, Output, ShownHeader, time};

use crate::avro::{Decoded, Json, RegistrySchema, Schemas, Undecoded};
use crate::broker_login::BrokerLogin;
use crate::connection::{Connection, Next, chosen, topic_from_text, until_reader_leaves};

/// The arguments of `waybill records`.
#[derive(Clone, Debug, Args)]
pub struct RecordsArgs {
    /// The full or short name of the topic: failed-operations is
    /// {topicPrefix}.failed-operations.v1
    #[arg(value_parser = topic_from_text)]
    topic: String,
    /// Where to start: beginning, end, or an offset of --partition
    #[arg(
        long,
        value_name = "beginning|end|OFFSET",
        default_value_t = From::Beginning
    )]
    from: From,
    /// Print only the records of this partition
    #[arg(long, value_name = "P")]
    partition: Option<u32>,
    /// Stop after this number of records
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU64>,
    /// Continue with new records until interrupted
    #[arg(long)]
    follow: bool,
    /// The format of the records
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Json)]
    output: Output,
    /// A schema file (.avsc) for records in Confluent wire format, by the schema's id in their
    /// registry; the command requests other schemas from schemaRegistry.url
    #[arg(long = "schema", value_name = "ID=FILE")]
    schemas: Vec<RegistrySchema>,
    #[command(flatten)]
    login: BrokerLogin,
}

/// The offset to start from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Beginning,
    End,
    Offset(i64),
}

impl FromStr for From {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "beginning" => Ok(Self::Beginning),
            "end" => Ok(Self::End),
            _ => text
                .parse()
                .ok()
                .filter(|offset| *offset >= 0)
                .map(Self::Offset)
                .ok_or("expected beginning, end, or an offset of at least 0"),
        }
    }
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning => f.write_str("beginning"),
            Self::End => f.write_str("end"),
            Self::Offset(offset) => offset.fmt(f),
        }
    }
}

impl RecordsArgs {
    /// Prints the records.
    ///
    /// # Errors
    ///
    /// If the topic, partition or offset does not exist, the brokers are unavailable, or a schema
    /// cannot be read. A record that cannot be decoded is no error: its bytes are printed.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        let config = self.login.on(config)?;
        until_reader_leaves(self.print(&config, &mut io::stdout().lock()))
    }

    fn print(&self, config: &Config, out: &mut dyn Write) -> anyhow::Result<()> {
        let schemas = Schemas::load(&self.schemas, &config.schema_registry)?;
        let connection = Connection::open(config)?;
        let (topic, partitions) = connection.topic(&self.topic)?;
        if matches!(self.from, From::Offset(_)) && self.partition.is_none() && partitions > 1 {
            let problem = format!(
                "is required: {topic} has {partitions} partitions, and --from names an offset of one"
            );
            return Err(ConfigError::invalid("--partition", problem).into());
        }
        let mut ranges = Vec::new();
        for partition in chosen(&topic, partitions, self.partition)? {
            let held = connection.offsets(&topic, partition)?;
            let start = match self.from {
                From::Beginning => held.start,
                From::End => held.end,
                From::Offset(offset) => offset,
            };
            ensure!(
                (held.start..=held.end).contains(&start),
                "{topic} partition {partition} has no offset {start}: it holds {} up to {}",
                held.start,
                held.end
            );
            ranges.push((partition, start..held.end));
        }

        if self.output == Output::Table {
            writeln!(out, "{}", Row::HEADING)?;
        }
        let mut left = self.count.map(NonZeroU64::get);
        let mut on_record = |record: RecordRef<'_>| -> Next {
            self.write(&record, &schemas, out)?;
            if let Some(left) = &mut left {
                *left -= 1;
            }
            Ok(match left {
                Some(0) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        };
        if self.follow {
            let starts: Vec<(&str, PartitionId, Offset)> = ranges
                .iter()
                .map(|(partition, range)| (topic.as_str(), *partition, Offset(range.start)))
                .collect();
            return connection.follow(&starts, &mut on_record);
        }
        for (partition, range) in ranges {
            let read = connection.read(&topic, partition, range, &mut on_record)?;
            if read.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn write(
        &self,
        record: &RecordRef<'_>,
        schemas: &Schemas,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let decoded = record.value().map(|value| schemas.decode(value));
        let row = Row::new(record, decoded);
        writeln!(out, "{}", self.output.text(&row)?)?;
        Ok(())
    }
}

/// The output for a record.
#[derive(Serialize)]
struct Row<'a> {
    partition: u32,
    offset: i64,
    timestamp: Option<String>,
    key: Option<Bytes<'a>>,
    headers: Vec<ShownHeader<'a>>,
    schema: Option<String>,
    value: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The value's bytes in base64, if they could not be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<String>,
}

impl<'a> Row<'a> {
    const HEADING: &'static str = concat!(
        "PARTITION        OFFSET  TIME                      ",
        "KEY                                   SCHEMA             VALUE"
    );

    fn new(record: &RecordRef<'a>, decoded: Option<Result<Decoded, Undecoded>>) -> Self {
        let row = Self {
            partition: record.partition().0,
            offset: record.offset().0,
            timestamp: time(record.timestamp_ms()),
            key: record.key().map(Bytes),
            headers: record
                .headers()
                .map(|header| ShownHeader::new(header.key, header.value))
                .collect(),
            schema: None,
            value: None,
            error: None,
            bytes: None,
        };
        match decoded {
            None => row,
            Some(Ok(Decoded { schema, value })) => Self {
                schema: Some(schema),
                value: Some(value),
                ..row
            },
            Some(Err(error)) => Self {
                error: Some(error.to_string()),
                bytes: record.value().map(|value| Bytes(value).to_base64()),
                ..row
            },
        }
    }
}

/// A line of the table.
impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            partition, offset, ..
        } = self;
        let time = self.timestamp.as_deref().unwrap_or(NOTHING);
        let key = self.key.unwrap_or(Bytes(NOTHING.as_bytes()));
        let schema = self.schema.as_deref().unwrap_or(NOTHING);
        write!(
            f,
            "{partition:>9}  {offset:>12}  {time:<24}  {key:<36}  {schema:<17}  "
        )?;
        match (&self.error, &self.bytes) {
            (Some(error), Some(bytes)) => write!(f, "{error}: {bytes}"),
            _ => {
                let value = serde_json::to_string(&self.value).map_err(|_| fmt::Error)?;
                f.write_str(&escaped(&value))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_the_beginning_the_end_or_an_offset() {
        assert_eq!("beginning".parse(), Ok(From::Beginning));
        assert_eq!("end".parse(), Ok(From::End));
        assert_eq!("17".parse(), Ok(From::Offset(17)));
        for bad in ["", "start", "-1", "1.5", "99999999999999999999"] {
            assert!(bad.parse::<From>().is_err(), "{bad}");
        }
    }

    #[test]
    fn table_columns_match_their_headings() {
        let row = Row {
            partition: 3,
            offset: 17,
            timestamp: time(Some(0)),
            key: Some(Bytes(b"some-key")),
            headers: Vec::new(),
            schema: Some("step-reply".to_owned()),
            value: None,
            error: None,
            bytes: None,
        };
        let line = row.to_string();
        for (heading, cell) in [
            ("TIME", "1970-01-01T00:00:00.000Z"),
            ("KEY", "some-key"),
            ("SCHEMA", "step-reply"),
            ("VALUE", "null"),
        ] {
            assert_eq!(Row::HEADING.find(heading), line.find(cell), "{line}");
        }
        let end = |text: &str, cell: &str| text.find(cell).unwrap() + cell.len();
        assert_eq!(end(Row::HEADING, "PARTITION"), end(&line, "3"));
        assert_eq!(end(Row::HEADING, "OFFSET"), end(&line, "17"));
    }
}
