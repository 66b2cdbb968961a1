//! Consumed records and records to send, as bytes.

use std::fmt;

use rdkafka::Message;
use rdkafka::message::BorrowedMessage;
use waybill_engine::{Offset, PartitionId};

use crate::native;
use crate::partition::partition_id;

/// A record header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// Its name.
    pub key: &'a str,
    /// Its value; Kafka distinguishes no value from an empty one.
    pub value: Option<&'a [u8]>,
}

impl<'a> Header<'a> {
    /// Borrows owned headers, as an [`OutRecord`] takes them.
    #[must_use]
    pub fn all_of(kept: &'a [(String, Option<Vec<u8>>)]) -> Vec<Self> {
        let borrowed = |(key, value): &'a (String, Option<Vec<u8>>)| Self {
            key,
            value: value.as_deref(),
        };
        kept.iter().map(borrowed).collect()
    }
}

/// A consumed record. librdkafka owns its bytes: nothing is copied before [`RecordRef::to_raw`].
#[derive(Clone, Copy)]
pub struct RecordRef<'a> {
    message: &'a BorrowedMessage<'a>,
}

impl<'a> RecordRef<'a> {
    pub(crate) fn new(message: &'a BorrowedMessage<'a>) -> Self {
        Self { message }
    }

    /// Its topic.
    #[must_use]
    pub fn topic(&self) -> &'a str {
        self.message.topic()
    }

    /// Its partition.
    #[must_use]
    pub fn partition(&self) -> PartitionId {
        partition_id(self.message.partition())
    }

    /// Its offset there.
    #[must_use]
    pub fn offset(&self) -> Offset {
        Offset(self.message.offset())
    }

    /// Logs that the record begins another log than the one that was read up to `read_to`.
    pub fn report_new_log(&self, read_to: Offset) {
        tracing::warn!(
            topic = self.topic(),
            partition = %self.partition(),
            offset = %self.offset(),
            %read_to,
            "topic was recreated or lost its end; reading it from the beginning and dropping \
             unstarted records of the old log"
        );
    }

    /// Its timestamp in milliseconds since the Unix epoch, if it has one.
    #[must_use]
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.message.timestamp().to_millis()
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> Option<&'a [u8]> {
        self.message.key()
    }

    /// Its value.
    #[must_use]
    pub fn value(&self) -> Option<&'a [u8]> {
        self.message.payload()
    }

    /// Its headers, parsed on demand. Leaves out headers whose names are not UTF-8, which Kafka
    /// forbids.
    #[must_use]
    pub fn headers(&self) -> Headers<'a> {
        Headers {
            message: self.message,
            index: 0,
        }
    }

    /// The value of the first header of this name; `None` if the header is missing or has no value.
    #[must_use]
    pub fn header(&self, key: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|header| header.key == key)
            .and_then(|header| header.value)
    }

    /// Key and value together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.message.key_len() + self.message.payload_len()
    }

    /// A copy that outlives the poll, for dead letters and records that are rerouted.
    #[must_use]
    pub fn to_raw(&self) -> RawRecord {
        RawRecord {
            topic: self.topic().to_owned(),
            partition: self.partition(),
            offset: self.offset(),
            timestamp_ms: self.timestamp_ms(),
            key: self.key().map(<[u8]>::to_vec),
            value: self.value().map(<[u8]>::to_vec),
            headers: self
                .headers()
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect(),
        }
    }
}

impl fmt::Debug for RecordRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordRef")
            .field("topic", &self.topic())
            .field("partition", &self.partition().0)
            .field("offset", &self.offset().0)
            .field("bytes", &self.bytes())
            .finish()
    }
}

/// The headers of a consumed record, in order.
#[derive(Clone)]
pub struct Headers<'a> {
    message: &'a BorrowedMessage<'a>,
    index: usize,
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        loop {
            let (name, value) = native::header(self.message, self.index)?;
            self.index += 1;
            if let Ok(key) = name.to_str() {
                return Some(Header { key, value });
            }
        }
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// A consumed record that owns its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawRecord {
    /// Its topic.
    pub topic: String,
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset there.
    pub offset: Offset,
    /// Its timestamp in milliseconds since the Unix epoch, if it had one.
    pub timestamp_ms: Option<i64>,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Its headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl RawRecord {
    /// Its headers, borrowed, as an [`OutRecord`] takes them.
    #[must_use]
    pub fn headers(&self) -> Vec<Header<'_>> {
        Header::all_of(&self.headers)
    }
}

/// A record to send. Its bytes are copied into the producer's queue. It has no timestamp: an old
/// one could make retention delete it immediately. librdkafka sets the time of sending; a topic
/// with `LogAppendTime` replaces it.
#[derive(Clone, Copy, Debug)]
pub struct OutRecord<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition, or [`OutRecord::BY_KEY`].
    pub partition: PartitionId,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// The headers. An empty list costs nothing.
    pub headers: &'a [Header<'a>],
}

impl<'a> OutRecord<'a> {
    /// Leaves the partition to librdkafka's murmur2 partitioner, which agrees with
    /// [`partition_for`](crate::partition_for): for topics of other owners, who choose their number
    /// of partitions.
    pub const BY_KEY: PartitionId = PartitionId(u32::MAX);

    /// A record with key and value, and no headers.
    #[must_use]
    pub fn new(topic: &'a str, partition: PartitionId, key: &'a [u8], value: &'a [u8]) -> Self {
        Self {
            topic,
            partition,
            key: Some(key),
            value: Some(value),
            headers: &[],
        }
    }

    /// Key and value together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len)
    }

    /// Its largest size in a batch (format 2): key, value and headers, six numbers of variable
    /// length and one byte, and two more numbers per header.
    pub(crate) fn wire_bytes_max(&self) -> usize {
        let headers = self.headers.iter();
        let headers = headers
            .map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len) + 10)
            .sum::<usize>();
        36 + self.bytes() + headers
    }
}
