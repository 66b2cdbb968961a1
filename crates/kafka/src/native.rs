//! Functions of librdkafka that rust-rdkafka does not expose: whether a message whose delivery
//! failed may have been persisted, message headers without a panic on names that are not UTF-8,
//! whether a consumer is a member of its group, the end of a partition as of the last fetch, the
//! IDs of topics, and, without the reason, whether a producer gave up. Also adding brokers to a
//! client, and commits whose outcome is reported.
//!
//! All functions but these last two only read. Those about a message use the pointer of
//! [`BorrowedMessage::ptr`]: it stays valid as long as the borrowed message, which holds the event
//! that owns it. Those about a client use [`Client::native_ptr`], which stays valid as long as the
//! client.
#![allow(unsafe_code)]

mod describe;

use std::ffi::{CStr, CString};
use std::ptr;
use std::slice;

use rdkafka::bindings::{
    rd_kafka_brokers_add, rd_kafka_commit_queue, rd_kafka_fatal_error,
    rd_kafka_get_watermark_offsets, rd_kafka_header_get_all, rd_kafka_mem_free, rd_kafka_memberid,
    rd_kafka_message_headers, rd_kafka_message_status, rd_kafka_msg_status_t,
    rd_kafka_queue_destroy, rd_kafka_queue_get_consumer,
};
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use waybill_engine::{Offset, PartitionId};

pub(crate) use self::describe::topic_id;
use crate::partition::partition_number;

/// Whether the broker has persisted a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Persisted {
    /// Certainly not: it was never sent, or was refused.
    No,
    /// It was sent, and no answer arrived.
    Possibly,
    /// The broker acknowledged it.
    Yes,
}

/// Whether the broker has persisted this message, whose delivery was reported.
pub(crate) fn persisted(message: &BorrowedMessage<'_>) -> Persisted {
    // SAFETY: the pointer is that of a live message (see the module's documentation), and the
    // function reads one field of it.
    match unsafe { rd_kafka_message_status(message.ptr()) } {
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED => Persisted::No,
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_POSSIBLY_PERSISTED => Persisted::Possibly,
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_PERSISTED => Persisted::Yes,
    }
}

/// The name and value of the header at `index`, or `None` past the last.
pub(crate) fn header<'m>(
    message: &'m BorrowedMessage<'_>,
    index: usize,
) -> Option<(&'m CStr, Option<&'m [u8]>)> {
    let mut headers = ptr::null_mut();
    // SAFETY: the message is live; librdkafka parses its headers on the first call and keeps them
    // with the message.
    let error = unsafe { rd_kafka_message_headers(message.ptr(), &raw mut headers) };
    if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR || headers.is_null() {
        return None;
    }
    let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
    // SAFETY: `headers` was given by librdkafka just now, the other pointers are to locals, and an
    // index past the end is an error.
    let error = unsafe {
        rd_kafka_header_get_all(headers, index, &raw mut name, &raw mut value, &raw mut size)
    };
    if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        return None;
    }
    // SAFETY: on success `name` is a NUL-terminated string and `value` is NULL or `size` bytes,
    // both owned by the message's headers and so alive and unchanged while it is borrowed.
    unsafe {
        let value = (!value.is_null()).then(|| slice::from_raw_parts(value.cast::<u8>(), size));
        Some((CStr::from_ptr(name), value))
    }
}

/// Whether the group counts this consumer among its members. Turns false when librdkafka begins to
/// tell the group that it leaves; librdkafka ends the client only after the group's answer.
///
/// Asks librdkafka's main thread, which never waits.
pub(crate) fn is_group_member<C: ClientContext>(client: &Client<C>) -> bool {
    // SAFETY: the client is alive. The caller owns the returned string, if any, and frees it.
    unsafe {
        let id = rd_kafka_memberid(client.native_ptr());
        if id.is_null() {
            return false;
        }
        let is_member = *id != 0;
        rd_kafka_mem_free(client.native_ptr(), id.cast());
        is_member
    }
}

/// Commits offsets, and returns immediately. A later poll of the consumer passes the outcome to its
/// context; with rust-rdkafka's own function, librdkafka only logs a failure.
pub(crate) fn commit<C: ClientContext>(
    client: &Client<C>,
    offsets: &TopicPartitionList,
) -> KafkaResult<()> {
    // SAFETY: the client and the list are alive, and librdkafka copies the list. This function owns
    // its reference to the queue and releases it; the pending request holds one of its own.
    let code = unsafe {
        let queue = rd_kafka_queue_get_consumer(client.native_ptr());
        if queue.is_null() {
            return Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::UnknownGroup));
        }
        let code = rd_kafka_commit_queue(
            client.native_ptr(),
            offsets.ptr(),
            queue,
            None,
            ptr::null_mut(),
        );
        rd_kafka_queue_destroy(queue);
        code
    };
    match code {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(KafkaError::ConsumerCommit(code.into())),
    }
}

/// The offset that the next record of a partition will get, as of the last fetch; `None` before the
/// first.
pub(crate) fn known_end<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partition: PartitionId,
) -> Option<Offset> {
    let topic = CString::new(topic).ok()?;
    let (mut low, mut high) = (-1, -1);
    // SAFETY: the client is alive, the topic is NUL-terminated, and the other pointers are to
    // locals.
    let error = unsafe {
        rd_kafka_get_watermark_offsets(
            client.native_ptr(),
            topic.as_ptr(),
            partition_number(partition),
            &raw mut low,
            &raw mut high,
        )
    };
    (error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(Offset(high))
}

/// Adds bootstrap brokers to a client. Known ones are not added again.
pub(crate) fn add_brokers<C: ClientContext>(client: &Client<C>, brokers: &CStr) {
    // SAFETY: the client is alive, and librdkafka copies the list.
    unsafe { rd_kafka_brokers_add(client.native_ptr(), brokers.as_ptr()) };
}

/// Whether a producer has met an error after which it sends nothing more. Costs one load.
pub(crate) fn gave_up<C: ClientContext>(client: &Client<C>) -> bool {
    // SAFETY: the client is alive, and no buffer is passed for the reason.
    let error = unsafe { rd_kafka_fatal_error(client.native_ptr(), ptr::null_mut(), 0) };
    error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
}

/// Makes a producer meet a fatal error.
#[cfg(test)]
pub(crate) fn raise_fatal_error<C: ClientContext>(client: &Client<C>) {
    use rdkafka::bindings::rd_kafka_test_fatal_error;

    let code = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    // SAFETY: the client is alive, and the reason is a string that librdkafka copies.
    unsafe { rd_kafka_test_fatal_error(client.native_ptr(), code, c"on purpose".as_ptr()) };
}
