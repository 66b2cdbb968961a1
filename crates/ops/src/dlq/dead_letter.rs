//! A poison record: its original bytes and headers, and why it is on a dead-letter topic.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use clap::error::ErrorKind;
use serde::Serialize;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::RawRecord;
use waybill_messages::{Topics, headers, is_topic_name};

use crate::connection::topic_from_text;

/// Header of a replayed record; the value is the position of the dead letter, as text.
pub(super) const REPLAYED_FROM: &str = "waybill-replayed-from";

/// The prefix of the headers that describe a dead letter.
const ERRORS_PREFIX: &str = "__connect.errors.";

/// Headers that own their bytes.
pub(super) type OwnedHeaders = Vec<(String, Option<Vec<u8>>)>;

/// The position of a record. As text: topic, partition and offset, separated by slashes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(super) struct Position {
    pub(super) topic: String,
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topic,
            partition,
            offset,
        } = self;
        f.pad(&format!("{topic}/{partition}/{offset}"))
    }
}

impl FromStr for Position {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('/');
        let position = (|| {
            let topic = parts.next().filter(|topic| is_topic_name(topic))?;
            let partition = parts.next()?.parse().ok()?;
            let offset = parts.next()?.parse().ok().filter(|offset| *offset >= 0)?;
            let ends = parts.next().is_none();
            ends.then(|| Self {
                topic: topic.to_owned(),
                partition: PartitionId(partition),
                offset: Offset(offset),
            })
        })();
        position.ok_or("expected topic/partition/offset, as `waybill dlq list` prints it")
    }
}

/// The first argument of a command: one dead letter, or a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Its position, as lists print it.
    DeadLetter(Position),
    /// A full or short name.
    Topic(String),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.contains('/') {
            true => text.parse().map(Self::DeadLetter).map_err(str::to_owned),
            false => topic_from_text(text).map(Self::Topic),
        }
    }
}

/// Exits as the command line does for wrong arguments.
pub(super) fn refuse_arguments(problem: &str) -> ! {
    clap::Error::raw(ErrorKind::MissingRequiredArgument, format!("{problem}\n")).exit()
}

/// Why a dead letter cannot be sent back to its source.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Unplaced {
    #[error("it does not name its source topic, partition and offset")]
    Missing,
    #[error("it names {0} as its source, which has another dead-letter topic")]
    Foreign(String),
    #[error(
        "it has only the first bytes of its record; the full record is at {0} until retention deletes it"
    )]
    Cut(Position),
    #[error("the records at {0} could not be decoded, so the dead letter has no copy to replay")]
    Undecodable(Position),
}

/// A dead letter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DeadLetter {
    /// Its position on the dead-letter topic.
    pub(super) position: Position,
    /// The record's timestamp, in milliseconds since the Unix epoch.
    pub(super) timestamp_ms: Option<i64>,
    /// The record's key.
    pub(super) key: Option<Vec<u8>>,
    /// The record's value.
    pub(super) value: Option<Vec<u8>>,
    /// The record's own headers.
    pub(super) headers: OwnedHeaders,
    /// The headers that were added with the dead letter.
    errors: OwnedHeaders,
}

impl DeadLetter {
    /// Separates the record's own headers from those that were added with the dead letter.
    pub(super) fn of(record: RawRecord) -> Self {
        let mut headers = record.headers;
        let errors = headers.split_off(own_headers(&headers));
        Self {
            position: Position {
                topic: record.topic,
                partition: record.partition,
                offset: record.offset,
            },
            timestamp_ms: record.timestamp_ms,
            key: record.key,
            value: record.value,
            headers,
            errors,
        }
    }

    /// The value of one of the added headers.
    pub(super) fn error(&self, name: &str) -> Option<Cow<'_, str>> {
        let (_, value) = self.errors.iter().find(|(other, _)| other == name)?;
        value.as_deref().map(String::from_utf8_lossy)
    }

    /// The reason, for people.
    pub(super) fn cause(&self) -> Option<Cow<'_, str>> {
        self.error(headers::ERRORS_EXCEPTION_MESSAGE)
    }

    /// The position of the original record. Valid only if the dead letter is on that topic's
    /// dead-letter topic.
    pub(super) fn source(&self) -> Result<Position, Unplaced> {
        let source = (|| {
            Some(Position {
                topic: self.error(headers::ERRORS_TOPIC)?.into_owned(),
                partition: PartitionId(self.error(headers::ERRORS_PARTITION)?.parse().ok()?),
                offset: Offset(self.error(headers::ERRORS_OFFSET)?.parse().ok()?),
            })
        })();
        let source = source.ok_or(Unplaced::Missing)?;
        if Topics::dead_letter(&source.topic) != self.position.topic {
            return Err(Unplaced::Foreign(source.topic));
        }
        Ok(source)
    }

    /// The position to which the record can be sent again.
    pub(super) fn destination(&self) -> Result<Position, Unplaced> {
        let source = self.source()?;
        let is_mark = |(name, _): &(String, _)| name == headers::UNDECODABLE_UNTIL;
        if self.headers.iter().any(is_mark) {
            return Err(Unplaced::Undecodable(source));
        }
        match self.error(headers::CUT_BYTES) {
            Some(_) => Err(Unplaced::Cut(source)),
            None => Ok(source),
        }
    }

    /// The dead letter whose replay became this one.
    pub(super) fn replayed_from(&self) -> Option<Cow<'_, str>> {
        let mut marks = self.headers.iter().rev();
        let (_, value) = marks.find(|(name, _)| name == REPLAYED_FROM)?;
        value.as_deref().map(String::from_utf8_lossy)
    }

    /// The length of key and value together.
    pub(super) fn bytes(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        length(&self.key) + length(&self.value)
    }
}

/// The number of the record's own headers. The added ones come last and begin with the topic; a
/// record that was a dead letter of another topic before keeps its older ones.
fn own_headers(headers: &[(String, Option<Vec<u8>>)]) -> usize {
    let trailing = headers
        .iter()
        .rev()
        .take_while(|(name, _)| name.starts_with(ERRORS_PREFIX))
        .count();
    let first = headers.len() - trailing;
    headers[first..]
        .iter()
        .rposition(|(name, _)| name == headers::ERRORS_TOPIC)
        .map_or(headers.len(), |index| first + index)
}

#[cfg(test)]
mod tests {
    use waybill_messages::headers::Stage;

    use super::*;

    fn dead(topic: &str, own: &[(&str, Option<&[u8]>)], lies_on: &str) -> DeadLetter {
        let dead_letter = waybill_messages::DeadLetter {
            topic,
            partition: PartitionId(3),
            offset: Offset(17),
            task_id: "0",
            stage: Stage::Value,
            component: "scheduler",
            error_kind: "DecodeError",
            message: "no record",
        };
        let own = own
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.map(<[u8]>::to_vec)));
        let errors = dead_letter.headers();
        let errors = errors
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Some(value)));
        DeadLetter::of(RawRecord {
            topic: lies_on.to_owned(),
            partition: PartitionId(3),
            offset: Offset(5),
            timestamp_ms: Some(1),
            key: Some(b"key".to_vec()),
            value: Some(b"value".to_vec()),
            headers: own.chain(errors).collect(),
        })
    }

    #[test]
    fn the_records_own_headers_are_separated_from_those_of_the_dead_letter() {
        let own: [(&str, Option<&[u8]>); 3] = [
            ("traceparent", Some(b"\xff")),
            ("none", None),
            // An earlier dead letter, on another topic.
            (headers::ERRORS_TOPIC, Some(b"elsewhere")),
        ];
        let dead_letter = dead("t", &own, "t.dlq");
        let kept: Vec<(&str, Option<&[u8]>)> = dead_letter
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect();
        assert_eq!(kept, own);
        assert_eq!(dead_letter.cause().as_deref(), Some("no record"));
        assert_eq!(dead_letter.source().unwrap().to_string(), "t/3/17");
        assert_eq!(dead_letter.bytes(), 8);
    }

    #[test]
    fn a_truncated_dead_letter_is_not_replayed() {
        let mut dead_letter = dead("t", &[], "t.dlq");
        assert_eq!(dead_letter.destination(), dead_letter.source());
        let size = Some(b"2000000".to_vec());
        dead_letter
            .errors
            .push((headers::CUT_BYTES.to_owned(), size));
        let refused = dead_letter.destination().unwrap_err();
        assert!(refused.to_string().contains("is at t/3/17"), "{refused}");
    }

    #[test]
    fn a_dead_letter_for_undecodable_records_is_not_replayed() {
        let mark = (headers::UNDECODABLE_UNTIL, Some(&b"18"[..]));
        let dead_letter = dead("t", &[mark], "t.dlq");
        assert_eq!(dead_letter.source().unwrap().to_string(), "t/3/17");
        let refused = dead_letter.destination().unwrap_err();
        let cause = "records at t/3/17 could not be decoded";
        assert!(refused.to_string().contains(cause), "{refused}");
    }

    #[test]
    fn the_source_topic_must_match_the_dead_letter_topic() {
        let dead_letter = dead("t", &[], "other.dlq");
        assert_eq!(dead_letter.source(), Err(Unplaced::Foreign("t".to_owned())));
    }

    #[test]
    fn a_record_without_dead_letter_headers_is_shown_unchanged() {
        let mut dead_letter = dead("t", &[("a", None)], "t.dlq");
        dead_letter.errors.clear();
        assert_eq!(dead_letter.source(), Err(Unplaced::Missing));
        assert_eq!(dead_letter.cause(), None);
        assert_eq!(own_headers(&[("a".to_owned(), None)]), 1);
        assert_eq!(own_headers(&[]), 0);
    }

    #[test]
    fn a_position_is_parsed_as_printed() {
        let text = "waybill.operation-requests.v1.dlq/3/17";
        assert_eq!(text.parse::<Position>().unwrap().to_string(), text);
        for bad in ["", "t", "t/0", "t/0/-1", "t/x/1", "t/0/1/2", "a b/0/1"] {
            assert!(bad.parse::<Position>().is_err(), "{bad}");
        }
    }
}
