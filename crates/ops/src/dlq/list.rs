//! `waybill dlq list`: a page of poison records, ordered by topic, partition and offset.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::ops::Range;

use clap::Args;
use serde::Serialize;
use waybill_engine::PartitionId;
use waybill_messages::headers;
use waybill_node::config::Config;
use waybill_telemetry::visible::escaped;
use waybill_terminal::{Bytes, NOTHING, Output, time};

use super::dead_letter::{DeadLetter, Position};
use super::receipts::{Receipts, is_receipt};
use crate::broker_login::BrokerLogin;
use crate::connection::{Connection, chosen, topic_from_text};
use crate::dead_letter_topics::DeadLetterTopics;

/// The arguments of `waybill dlq list`.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    /// List only the dead letters of this topic, given by its full or short name [default: every
    /// dead-letter topic whose name begins with kafka.topicPrefix]
    #[arg(long, value_name = "TOPIC", value_parser = topic_from_text)]
    topic: Option<String>,
    /// List only dead letters that were not replayed; reads each partition to its end first
    #[arg(long)]
    open: bool,
    /// The maximum number of dead letters
    #[arg(long, value_name = "N", default_value = "100")]
    limit: NonZeroU64,
    /// Continue after this dead letter, given as topic/partition/offset
    #[arg(long, value_name = "CURSOR")]
    after: Option<Position>,
    /// The format of the list
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    login: BrokerLogin,
}

impl ListArgs {
    pub(super) fn run(&self, config: &Config) -> anyhow::Result<()> {
        let connection = Connection::open(&self.login.on(config)?)?;
        let mut page = Page {
            output: self.output,
            left: self.limit.get(),
            last: None,
            has_more: false,
            out: io::stdout().lock(),
        };
        let found = self.topics(&connection)?;
        'topics: for (topic, &partitions) in &found.topics {
            for partition in chosen(topic, partitions, None)? {
                let mut range = connection.offsets(topic, partition)?;
                range.start = range.start.max(self.start(topic, partition));
                let read = self.partition(&connection, topic, partition, range, &mut page)?;
                if read.is_break() {
                    break 'topics;
                }
            }
        }
        if let (true, Some(last)) = (page.has_more, &page.last) {
            eprintln!("there are more: --after {last}");
        }
        if page.last.is_none() && found.forbidden.is_empty() {
            let after = self.after.as_ref().map(|after| format!(" after {after}"));
            let open = if self.open { "open " } else { "" };
            eprintln!("no {open}dead letters{}", after.unwrap_or_default());
        }
        found.require_all()
    }

    /// The topics to list, ordered by name.
    fn topics(&self, connection: &Connection) -> anyhow::Result<DeadLetterTopics> {
        match &self.topic {
            Some(topic) => Ok(DeadLetterTopics {
                topics: BTreeMap::from([connection.dead_letter_topic(topic)?]),
                ..DeadLetterTopics::default()
            }),
            None => connection.dead_letter_topics(),
        }
    }

    /// The first offset of a partition after the cursor.
    fn start(&self, topic: &str, partition: PartitionId) -> i64 {
        let Some(after) = &self.after else { return 0 };
        match (topic, partition).cmp(&(after.topic.as_str(), after.partition)) {
            std::cmp::Ordering::Less => i64::MAX,
            std::cmp::Ordering::Equal => after.offset.0.saturating_add(1),
            std::cmp::Ordering::Greater => 0,
        }
    }

    fn partition(
        &self,
        connection: &Connection,
        topic: &str,
        partition: PartitionId,
        range: Range<i64>,
        page: &mut Page<impl Write>,
    ) -> anyhow::Result<ControlFlow<()>> {
        let replayed = match self.open {
            true => Receipts::read(connection, topic, partition, range.clone())?,
            false => Receipts::default(),
        };
        connection.read(topic, partition, range, &mut |record| {
            if is_receipt(&record) || replayed.contains(record.offset().0) {
                return Ok(ControlFlow::Continue(()));
            }
            page.take(DeadLetter::of(record.to_raw()))
        })
    }
}

/// A page, written while it is read.
struct Page<W> {
    output: Output,
    left: u64,
    last: Option<Position>,
    has_more: bool,
    out: W,
}

impl<W: Write> Page<W> {
    fn heading(&mut self) -> io::Result<()> {
        match self.output {
            Output::Json => Ok(()),
            Output::Table => writeln!(self.out, "{}", Row::HEADING),
        }
    }

    /// Writes a dead letter, or ends the page if it is full.
    fn take(&mut self, dead_letter: DeadLetter) -> anyhow::Result<ControlFlow<()>> {
        if self.left == 0 {
            self.has_more = true;
            return Ok(ControlFlow::Break(()));
        }
        self.left -= 1;
        if self.last.is_none() {
            self.heading()?;
        }
        let row = Row::of(&dead_letter);
        writeln!(self.out, "{}", self.output.text(&row)?)?;
        self.last = Some(dead_letter.position);
        Ok(ControlFlow::Continue(()))
    }
}

/// The output for a dead letter.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    /// The value for `--after` that continues after this dead letter.
    cursor: String,
    #[serde(flatten)]
    position: &'a Position,
    timestamp: Option<String>,
    source: Option<Position>,
    stage: Option<String>,
    component: Option<String>,
    kind: Option<String>,
    cause: Option<String>,
    key: Option<Bytes<'a>>,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed_from: Option<String>,
}

impl<'a> Row<'a> {
    const HEADING: &'static str = concat!(
        "DEAD LETTER                                       TIME                         BYTES  ",
        "SOURCE                                        CAUSE"
    );

    fn of(dead_letter: &'a DeadLetter) -> Self {
        let error = |name| dead_letter.error(name).map(Into::into);
        Self {
            cursor: dead_letter.position.to_string(),
            position: &dead_letter.position,
            timestamp: time(dead_letter.timestamp_ms),
            source: dead_letter.source().ok(),
            stage: error(headers::ERRORS_STAGE),
            component: error(headers::ERRORS_CLASS_NAME),
            kind: error(headers::ERRORS_EXCEPTION_CLASS_NAME),
            cause: dead_letter.cause().map(Into::into),
            key: dead_letter.key.as_deref().map(Bytes),
            bytes: dead_letter.bytes(),
            replayed_from: dead_letter.replayed_from().map(Into::into),
        }
    }
}

/// A line of the table.
impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.timestamp.as_deref().unwrap_or(NOTHING);
        let source = match &self.source {
            Some(source) => source.to_string(),
            None => NOTHING.to_owned(),
        };
        let cause = self.cause.as_deref().unwrap_or(NOTHING);
        let Self { cursor, bytes, .. } = self;
        let cause = escaped(cause);
        write!(
            f,
            "{cursor:<48}  {time:<24}  {bytes:>8}  {source:<44}  {cause}"
        )
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::Offset;

    use super::*;

    #[test]
    fn table_columns_match_their_headings() {
        let position = Position {
            topic: "t.dlq".to_owned(),
            partition: PartitionId(0),
            offset: Offset(5),
        };
        let row = Row {
            cursor: position.to_string(),
            position: &position,
            timestamp: time(Some(0)),
            source: "t/0/17".parse().ok(),
            stage: None,
            component: None,
            kind: None,
            cause: Some("no\nrecord".to_owned()),
            key: None,
            bytes: 12_345,
            replayed_from: None,
        };
        let line = row.to_string();
        for (heading, cell) in [
            ("DEAD LETTER", "t.dlq/0/5"),
            ("TIME", "1970-"),
            ("SOURCE", "t/0/17"),
            ("CAUSE", "no\\nrecord"),
        ] {
            assert_eq!(Row::HEADING.find(heading), line.find(cell), "{line}");
        }
        let end = |text: &str, cell: &str| text.find(cell).unwrap() + cell.len();
        assert_eq!(end(Row::HEADING, "BYTES"), end(&line, "12345"));
    }
}
