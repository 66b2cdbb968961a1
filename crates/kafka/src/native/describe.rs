//! Queries the brokers for the ID of a topic, which only librdkafka's Admin API returns.

use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};
use std::time::Duration;

use rdkafka::bindings::{
    RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT, rd_kafka_AdminOptions_destroy, rd_kafka_AdminOptions_new,
    rd_kafka_AdminOptions_set_broker, rd_kafka_AdminOptions_set_request_timeout,
    rd_kafka_AdminOptions_t, rd_kafka_DescribeTopics, rd_kafka_DescribeTopics_result_topics,
    rd_kafka_TopicCollection_destroy, rd_kafka_TopicCollection_of_topic_names,
    rd_kafka_TopicCollection_t, rd_kafka_TopicDescription_error, rd_kafka_TopicDescription_t,
    rd_kafka_TopicDescription_topic_id, rd_kafka_Uuid_least_significant_bits,
    rd_kafka_Uuid_most_significant_bits, rd_kafka_admin_op_t, rd_kafka_error_code,
    rd_kafka_event_DescribeTopics_result, rd_kafka_event_destroy, rd_kafka_event_error,
    rd_kafka_event_t, rd_kafka_event_type, rd_kafka_queue_destroy, rd_kafka_queue_new,
    rd_kafka_queue_poll, rd_kafka_queue_t,
};
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use waybill_engine::PartitionId;

use crate::TopicId;
use crate::partition::partition_number;

/// How much longer than the request's timeout to wait for librdkafka's answer: it always answers.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// The ID of a topic, from the leader of a partition. `None` if the leader returns none, or hides
/// the topic from this client. Blocks up to `timeout` for each of two requests, and one second more
/// if librdkafka does not answer.
///
/// By default librdkafka would ask the controller, and wait if there is none.
pub(crate) fn topic_id<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partition: PartitionId,
    timeout: Duration,
) -> Result<Option<TopicId>, KafkaError> {
    let name = CString::new(topic).map_err(KafkaError::Nul)?;
    let Some(leader) = leader_of(client, topic, partition, timeout)? else {
        return Ok(None);
    };
    let event = answered(client, &name, leader, timeout)?;
    let event = event.0.as_ptr();
    // SAFETY: the event is alive until the end of this function, and owns its result and the
    // description in it.
    unsafe {
        if rd_kafka_event_type(event) != RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT {
            return Err(failed(RDKafkaRespErr::RD_KAFKA_RESP_ERR__FAIL));
        }
        let error = rd_kafka_event_error(event);
        if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(failed(error));
        }
        let mut count = 0;
        let result = rd_kafka_event_DescribeTopics_result(event);
        let described = rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        if count != 1 {
            return Err(failed(RDKafkaRespErr::RD_KAFKA_RESP_ERR__FAIL));
        }
        id_of(*described)
    }
}

/// The leader of a partition; `None` if the topic is hidden from this client.
fn leader_of<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partition: PartitionId,
    timeout: Duration,
) -> Result<Option<i32>, KafkaError> {
    let metadata = client.fetch_metadata(Some(topic), timeout)?;
    let mut topics = metadata.topics().iter();
    let topic = topics.find(|found| found.name() == topic);
    let missing = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    let topic = topic.ok_or_else(|| failed(missing))?;
    match topic.error() {
        None => {}
        Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED) => return Ok(None),
        Some(error) => return Err(failed(error)),
    }
    let mut partitions = topic.partitions().iter();
    let found = partitions.find(|found| found.id() == partition_number(partition));
    match found.map(MetadataPartition::leader) {
        Some(leader) if leader >= 0 => Ok(Some(leader)),
        Some(_) => Err(failed(
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
        )),
        None => Err(failed(missing)),
    }
}

/// Sends the request to a broker, and waits for the answer.
fn answered<C: ClientContext>(
    client: &Client<C>,
    name: &CStr,
    broker: i32,
    timeout: Duration,
) -> Result<Event, KafkaError> {
    let in_ms = |duration: Duration| i32::try_from(duration.as_millis()).unwrap_or(i32::MAX);
    let mut names = [name.as_ptr()];
    // SAFETY: the client is alive. The values created here are freed on drop, after the request;
    // librdkafka copies the name and the options, and answers on the queue, to which it holds a
    // reference.
    unsafe {
        let rk = client.native_ptr();
        let op = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let queue = Queue(made(rd_kafka_queue_new(rk))?);
        let options = Options(made(rd_kafka_AdminOptions_new(rk, op))?);
        let (set, no_text) = (options.0.as_ptr(), ptr::null_mut());
        for error in [
            rd_kafka_AdminOptions_set_request_timeout(set, in_ms(timeout), no_text, 0),
            rd_kafka_AdminOptions_set_broker(set, broker, no_text, 0),
        ] {
            if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                return Err(failed(error));
            }
        }
        let topics = rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        let topics = Topics(made(topics)?);
        rd_kafka_DescribeTopics(rk, topics.0.as_ptr(), options.0.as_ptr(), queue.0.as_ptr());
        let event = rd_kafka_queue_poll(queue.0.as_ptr(), in_ms(timeout + ANSWER_MARGIN));
        let event = NonNull::new(event).map(Event);
        event.ok_or_else(|| failed(RDKafkaRespErr::RD_KAFKA_RESP_ERR__TIMED_OUT))
    }
}

/// The ID of a described topic.
///
/// # Safety
///
/// The description must be alive.
unsafe fn id_of(topic: *const rd_kafka_TopicDescription_t) -> Result<Option<TopicId>, KafkaError> {
    // SAFETY: as the caller promises; the description owns its error and ID. A missing error has
    // the code of success.
    let (error, high, low) = unsafe {
        let error = rd_kafka_error_code(rd_kafka_TopicDescription_error(topic));
        let id = rd_kafka_TopicDescription_topic_id(topic);
        if id.is_null() {
            (error, 0, 0)
        } else {
            let high = rd_kafka_Uuid_most_significant_bits(id);
            (error, high, rd_kafka_Uuid_least_significant_bits(id))
        }
    };
    match error {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => {}
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED => return Ok(None),
        error => return Err(failed(error)),
    }
    let bits = (u128::from(high.cast_unsigned()) << 64) | u128::from(low.cast_unsigned());
    Ok((bits != 0).then_some(TopicId(bits)))
}

fn made<T>(pointer: *mut T) -> Result<NonNull<T>, KafkaError> {
    NonNull::new(pointer).ok_or_else(|| failed(RDKafkaRespErr::RD_KAFKA_RESP_ERR__FAIL))
}

fn failed(error: RDKafkaRespErr) -> KafkaError {
    KafkaError::MetadataFetch(RDKafkaErrorCode::from(error))
}

struct Queue(NonNull<rd_kafka_queue_t>);
struct Options(NonNull<rd_kafka_AdminOptions_t>);
struct Topics(NonNull<rd_kafka_TopicCollection_t>);
struct Event(NonNull<rd_kafka_event_t>);

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: this value owns the queue and is being dropped.
        unsafe { rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { rd_kafka_AdminOptions_destroy(self.0.as_ptr()) }
    }
}

impl Drop for Topics {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { rd_kafka_TopicCollection_destroy(self.0.as_ptr()) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}
