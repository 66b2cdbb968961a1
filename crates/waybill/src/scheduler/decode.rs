//! From a record's bytes to the engine's event.
//!
//! Bad input harms only itself: what cannot be decoded becomes an event that carries the bytes and
//! the cause to the dead-letter topic, and what belongs to another partition one that sends it home.

use waybill_engine::{
    Event, ForwardRecord, OperationId, OperationRequest, Recovery, Source, StepReply, partition_for,
};
use waybill_kafka::{RawRecord, RecordRef};
use waybill_messages::{Record as _, headers};

use crate::chain::chain;

/// Decodes the records of one topic.
pub(super) struct Decoder {
    source: Source,
    partitions: u32,
}

impl Decoder {
    pub(super) fn new(source: Source, partitions: u32) -> Self {
        Self { source, partitions }
    }

    /// What the engine is told of `record`.
    pub(super) fn event(&mut self, record: &RecordRef<'_>) -> Event {
        let Some(value) = record.value() else {
            return self.unreadable(record, "the record has no value".to_owned());
        };
        let decoded = match self.source {
            Source::Requests => OperationRequest::decode(value).map(|mut request| {
                let operation = request.operation();
                if let OperationRequest::Create(create) = &mut request {
                    create.traceparent = traceparent(record);
                }
                let event = Event::Request {
                    offset: record.offset(),
                    fingerprint: self.fingerprint(record),
                    bytes: record.bytes(),
                    rerouted: is_rerouted(record),
                    request,
                };
                (operation, event)
            }),
            Source::Replies => StepReply::decode(value).map(|reply| {
                (
                    reply.operation,
                    Event::Reply {
                        offset: record.offset(),
                        reply,
                    },
                )
            }),
            Source::Recoveries => Recovery::decode(value).map(|recovery| {
                (
                    recovery.operation,
                    Event::Recovery {
                        offset: record.offset(),
                        recovery: Box::new(recovery),
                    },
                )
            }),
        };
        match decoded {
            Ok((operation, event)) if self.is_home(operation, record) => event,
            Ok((operation, _)) => self.misplaced(record, operation),
            Err(error) => self.unreadable(record, chain(&error)),
        }
    }

    fn is_home(&self, operation: OperationId, record: &RecordRef<'_>) -> bool {
        partition_for(operation, self.partitions) == record.partition()
    }

    fn unreadable(&self, record: &RecordRef<'_>, cause: String) -> Event {
        Event::Unreadable {
            source: self.source,
            offset: record.offset(),
            fingerprint: self.fingerprint(record),
            cause,
            record: Box::new(forwarded(record.to_raw())),
        }
    }

    fn misplaced(&self, record: &RecordRef<'_>, operation: OperationId) -> Event {
        Event::Misplaced {
            source: self.source,
            offset: record.offset(),
            fingerprint: self.fingerprint(record),
            home: partition_for(operation, self.partitions),
            already_rerouted: is_rerouted(record),
            record: Box::new(forwarded(record.to_raw())),
        }
    }

    /// Tells a record from any other that could lie at its offset: FNV-1a over its timestamp, its
    /// key and the length of its value. It guards against another topic, not against an attacker.
    pub(super) fn fingerprint(&self, record: &RecordRef<'_>) -> u64 {
        const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        let timestamp = record.timestamp_ms().unwrap_or(-1).to_le_bytes();
        let length = (record.value().map_or(0, <[u8]>::len) as u64).to_le_bytes();
        let key = record.key().unwrap_or_default();
        timestamp
            .iter()
            .chain(&length)
            .chain(key)
            .fold(OFFSET_BASIS, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
            })
    }
}

/// Whether another partition's scheduler sent the record here.
fn is_rerouted(record: &RecordRef<'_>) -> bool {
    record
        .headers()
        .any(|header| header.key == headers::REROUTED)
}

/// The trace context that a record came with. One that is not text is left out: it is no reason to
/// refuse the record.
fn traceparent(record: &RecordRef<'_>) -> Option<String> {
    let value = record.header(headers::TRACEPARENT)?;
    std::str::from_utf8(value).ok().map(str::to_owned)
}

fn forwarded(raw: RawRecord) -> ForwardRecord {
    ForwardRecord {
        key: raw.key,
        value: raw.value,
        headers: raw.headers,
        timestamp_ms: raw.timestamp_ms.unwrap_or(-1),
    }
}
