//! Decodes a record into the engine's event.
//!
//! Bad input harms only itself. A record becomes an event for the dead-letter topic, with its bytes
//! and the cause, if it cannot be decoded, fails the checks of `admission`, or is a reply without
//! the nonce of its request (`nonces`). A record of another partition becomes an event that
//! reroutes it. A record whose schema is not known *yet* produces no event.

use waybill_api::form::Forms;
use waybill_engine::{
    Event, ForwardRecord, OperationId, OperationRequest, Priority, Recovery, ShardFilter, Source,
    StepReply, partition_for,
};
use waybill_kafka::fingerprint;
use waybill_kafka::{RawRecord, RecordRef};
use waybill_messages::{DecodeError, Framing, Lookup, SchemaId, headers};
use waybill_telemetry::chain;
use waybill_telemetry::trace::TraceContext;

use super::admission::admit;
use super::nonces::Nonces;
use super::spans;

/// Decodes the records of one topic.
pub(super) struct Decoder {
    source: Source,
    framing: Framing,
    nonces: Nonces,
    forms: Forms,
}

impl Decoder {
    pub(super) fn new(source: Source, framing: Framing, nonces: Nonces, forms: Forms) -> Self {
        Self {
            source,
            framing,
            nonces,
            forms,
        }
    }

    /// Decodes `record`, which belongs to its shard by its key.
    ///
    /// # Errors
    ///
    /// The schema that must be known first.
    pub(super) fn event(
        &self,
        record: &RecordRef<'_>,
        filter: &ShardFilter,
    ) -> Result<Event, SchemaId> {
        let Some(value) = record.value() else {
            return Ok(self.unreadable(record, filter, "the record has no value".to_owned()));
        };
        let decoded = match self.source {
            Source::Requests => return self.request(Priority::Normal, record, value, filter),
            Source::HighPriority => return self.request(Priority::High, record, value, filter),
            Source::Replies => {
                let decoded = self.framing.decode::<StepReply>(value);
                // In any partition: a forged reply is not rerouted either.
                if let Ok(reply) = &decoded
                    && let Err(unproven) = self.nonces.verify(reply)
                {
                    return Ok(self.unreadable(record, filter, unproven.to_string()));
                }
                decoded.map(|reply| {
                    (
                        reply.operation,
                        Event::Reply {
                            offset: record.offset(),
                            reply,
                        },
                    )
                })
            }
            Source::Recoveries => self.framing.decode(value).map(|recovery: Recovery| {
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
            Ok((operation, _)) if !is_in_shard(filter, operation, record) => {
                Ok(self.misrouted_by_key(record, operation, filter))
            }
            Ok((operation, event)) if self.is_home(operation, record, filter) => Ok(event),
            Ok((operation, _)) => Ok(self.misrouted(record, operation, filter)),
            Err(error) => self.undecoded(record, filter, &error),
        }
    }

    /// Whether a schema is still being fetched.
    pub(super) fn waits_for(&self, schema: SchemaId) -> bool {
        matches!(self.framing.look_up(schema), Some(Lookup::NotYet))
    }

    /// A request, which any client may have written: its key must be that of its operation, and it
    /// must pass the checks of ingestion.
    fn request(
        &self,
        priority: Priority,
        record: &RecordRef<'_>,
        value: &[u8],
        filter: &ShardFilter,
    ) -> Result<Event, SchemaId> {
        let request: OperationRequest = match self.framing.decode(value) {
            Ok(request) => request,
            Err(error) => return self.undecoded(record, filter, &error),
        };
        let operation = request.operation();
        if !self.is_home(operation, record, filter) {
            return Ok(self.misrouted(record, operation, filter));
        }
        if record.key() != Some(&operation.key()[..]) {
            let cause = format!("the record's key is not the id of its operation, {operation}");
            return Ok(self.unreadable(record, filter, cause));
        }
        let mut request = match admit(request, &self.forms) {
            Ok(request) => request,
            Err(refused) => return Ok(self.unreadable(record, filter, refused.to_string())),
        };
        if let OperationRequest::Create(create) = &mut request {
            create.traceparent = traceparent(record).or_else(|| spans::context_of(operation));
        }
        Ok(Event::Request {
            priority,
            offset: record.offset(),
            fingerprint: fingerprint(record),
            bytes: record.bytes(),
            rerouted: rerouted_by(record).is_some(),
            request,
        })
    }

    /// Whether a record is in the right partition, by the number of partitions that its writer
    /// used.
    fn is_home(
        &self,
        operation: OperationId,
        record: &RecordRef<'_>,
        filter: &ShardFilter,
    ) -> bool {
        let partitions = filter.partitions_at(self.source, record.offset());
        partition_for(operation, partitions) == record.partition()
    }

    /// A record that cannot be decoded: poison, unless its schema is still being fetched.
    fn undecoded(
        &self,
        record: &RecordRef<'_>,
        filter: &ShardFilter,
        error: &DecodeError,
    ) -> Result<Event, SchemaId> {
        match error.waits_for() {
            Some(schema) => Err(schema),
            None => Ok(self.unreadable(record, filter, chain(error))),
        }
    }

    fn unreadable(&self, record: &RecordRef<'_>, filter: &ShardFilter, cause: String) -> Event {
        Event::Unreadable {
            source: self.source,
            offset: record.offset(),
            fingerprint: fingerprint(record),
            operation: self.operation_by_key(record, filter),
            cause,
            record: Box::new(forwarded(record.to_raw())),
        }
    }

    /// The operation of this shard that the key of a request names.
    fn operation_by_key(
        &self,
        record: &RecordRef<'_>,
        filter: &ShardFilter,
    ) -> Option<OperationId> {
        self.source.priority()?;
        let key = std::str::from_utf8(record.key()?).ok()?;
        let operation: OperationId = key.parse().ok()?;
        let is_key = operation.key() == key.as_bytes();
        (is_key && self.is_home(operation, record, filter)).then_some(operation)
    }

    fn misrouted(
        &self,
        record: &RecordRef<'_>,
        operation: OperationId,
        filter: &ShardFilter,
    ) -> Event {
        let partitions = filter.partitions_written();
        Event::Misrouted {
            source: self.source,
            offset: record.offset(),
            fingerprint: fingerprint(record),
            home: partition_for(operation, partitions),
            partitions,
            already_rerouted: rerouted_by(record) == Some(partitions),
            record: Box::new(forwarded(record.to_raw())),
        }
    }

    /// A record that another shard should process, although its key says otherwise. Shards take
    /// records by key, so it is rerouted under the key of its operation.
    fn misrouted_by_key(
        &self,
        record: &RecordRef<'_>,
        operation: OperationId,
        filter: &ShardFilter,
    ) -> Event {
        let mut event = self.misrouted(record, operation, filter);
        if let Event::Misrouted { record, .. } = &mut event {
            record.key = Some(operation.key().to_vec());
        }
        event
    }
}

/// Whether the operation of a record belongs to the shard, whatever the record's key.
fn is_in_shard(filter: &ShardFilter, operation: OperationId, record: &RecordRef<'_>) -> bool {
    filter.is_whole() || record.key() == Some(&operation.key()[..]) || filter.has(operation)
}

/// The number of partitions when another scheduler rerouted the record to this one; `None` if none
/// did. A malformed mark counts as 0. Of several marks the last one counts.
fn rerouted_by(record: &RecordRef<'_>) -> Option<u32> {
    let marks = record
        .headers()
        .filter(|header| header.key == headers::REROUTED);
    let mark = marks.last()?.value.unwrap_or_default();
    let partitions = std::str::from_utf8(mark).ok();
    Some(partitions.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// The trace context of a record. A malformed one is ignored: it is no reason to refuse the record.
fn traceparent(record: &RecordRef<'_>) -> Option<String> {
    let value = record.header(headers::TRACEPARENT)?;
    let text = std::str::from_utf8(value).ok()?;
    TraceContext::parse(text).map(|_| text.to_owned())
}

fn forwarded(raw: RawRecord) -> ForwardRecord {
    ForwardRecord {
        key: raw.key,
        value: raw.value,
        headers: raw.headers,
    }
}

#[cfg(test)]
mod tests;
