//! The two things that librdkafka knows of a message and rust-rdkafka does not hand out: whether a
//! message whose delivery failed may have been persisted, and its headers without a panic where a
//! header's name is not UTF-8.
//!
//! This is the only module of the crate with unsafe code. Both functions only read, through the
//! message pointer that [`BorrowedMessage::ptr`] gives: it stays valid as long as the borrowed
//! message, which holds the event that owns it.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr;
use std::slice;

use rdkafka::bindings::{
    rd_kafka_header_get_all, rd_kafka_message_headers, rd_kafka_message_status,
    rd_kafka_msg_status_t,
};
use rdkafka::message::BorrowedMessage;
use rdkafka::types::RDKafkaRespErr;

/// Whether the broker has a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Persisted {
    /// Surely not: it was never sent, or refused.
    No,
    /// It was sent and no answer tells.
    Possibly,
    /// The broker acknowledged it.
    Yes,
}

/// Whether the broker has this message, whose delivery was reported.
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
