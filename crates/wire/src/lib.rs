//! The bytes of the Kafka protocol: the APIs that the broker serves, the required form of a
//! request's bytes, the encoding of answers, and [record batches](batch).
//!
//! What must hold: no input causes a panic, or reserves more memory than its size justifies.

mod apis;
pub mod batch;
mod shape;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};

pub use apis::{APIS, Api, api};

/// The error code of success in a response.
pub const OK: i16 = 0;

/// Why a connection is closed because of its input.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// A frame claims to exceed the largest size.
    #[error("a frame of {bytes} bytes; at most {max} are accepted")]
    FrameSize {
        /// The claimed length.
        bytes: i64,
        /// The largest accepted length.
        max: usize,
    },
    /// A frame ends within the header of its request.
    #[error("a frame without a whole request header")]
    Header,
    /// A request that requires a login.
    #[error("a request before its login (API key {key})")]
    NotLoggedIn {
        /// The API's number.
        key: i16,
    },
    /// A request that is not served.
    #[error("API {key} version {version}, which is not supported")]
    Unsupported {
        /// The API's number.
        key: i16,
        /// The request's version.
        version: i16,
    },
    /// The body of a request does not match its header.
    #[error("a request of API {key} version {version} that does not decode: {cause}")]
    Body {
        /// The API's number.
        key: i16,
        /// The request's version.
        version: i16,
        /// What is wrong with it.
        cause: String,
    },
    /// An answer cannot be written in the requested version.
    #[error("a response to API {key} version {version} does not encode: {cause}")]
    Answer {
        /// The API's number.
        key: i16,
        /// The answer's version.
        version: i16,
        /// Why not.
        cause: String,
    },
}

/// The parts of a request that its answer needs. Does not keep the request's bytes in memory.
#[derive(Clone, Debug)]
pub struct Head {
    /// The API's number.
    pub key: i16,
    /// The request's version.
    pub version: i16,
    /// Matches the answer to its request.
    pub correlation_id: i32,
}

impl Head {
    /// Reads the header of a request and leaves its body. Also returns the client's ID, a part of
    /// `frame`.
    ///
    /// # Errors
    ///
    /// [`Malformed::Header`] if the frame ends too early.
    pub fn read(frame: &mut Bytes) -> Result<(Self, StrBytes), Malformed> {
        let (key, version) = peek(frame).ok_or(Malformed::Header)?;
        // For an unsupported request, only the fields that never change are read.
        let header_version = match ApiKey::try_from(key) {
            Ok(known) => known.request_header_version(version),
            Err(()) => 1,
        };
        let header = RequestHeader::decode(frame, header_version).map_err(|_| Malformed::Header)?;
        let head = Self {
            key,
            version,
            correlation_id: header.correlation_id,
        };
        Ok((head, header.client_id.unwrap_or_default()))
    }

    /// Decodes the body. Its shape is checked first: the decoder reserves memory for as many
    /// elements as a request claims to have.
    ///
    /// # Errors
    ///
    /// [`Malformed::Body`] if it does not decode.
    pub fn decode<R: Decodable>(&self, api: &Api, mut body: Bytes) -> Result<R, Malformed> {
        let malformed = |cause: String| {
            let (key, version) = (self.key, self.version);
            Malformed::Body {
                key,
                version,
                cause,
            }
        };
        shape::check(
            api.fields,
            &body,
            self.version,
            self.version >= api.flexible_from,
        )
        .map_err(|error| malformed(error.to_string()))?;
        R::decode(&mut body, self.version).map_err(|error| malformed(error.to_string()))
    }

    /// Writes an answer with its frame.
    ///
    /// # Errors
    ///
    /// [`Malformed::Answer`] if it cannot be written in the requested version.
    pub fn answer<R: Encodable + HeaderVersion>(&self, answer: &R) -> Result<Bytes, Malformed> {
        self.answer_in(answer, self.version)
    }

    /// Writes an answer in another version than the requested one.
    ///
    /// # Errors
    ///
    /// [`Malformed::Answer`] if it cannot be written in that version.
    pub fn answer_in<R: Encodable + HeaderVersion>(
        &self,
        answer: &R,
        version: i16,
    ) -> Result<Bytes, Malformed> {
        let mut frame = BytesMut::with_capacity(128);
        frame.put_i32(0);
        ResponseHeader::default()
            .with_correlation_id(self.correlation_id)
            .encode(&mut frame, R::header_version(version))
            .and_then(|()| answer.encode(&mut frame, version))
            .map_err(|error| Malformed::Answer {
                key: self.key,
                version,
                cause: error.to_string(),
            })?;
        Ok(finish(frame))
    }
}

/// The API and version of a request, as soon as these bytes have arrived.
#[must_use]
pub fn peek(frame: &[u8]) -> Option<(i16, i16)> {
    let (key, rest) = frame.split_first_chunk()?;
    let (version, _) = rest.split_first_chunk()?;
    Some((i16::from_be_bytes(*key), i16::from_be_bytes(*version)))
}

/// Writes a frame's length into its first four bytes, which are reserved for it.
///
/// # Panics
///
/// If the frame has fewer than four bytes.
#[must_use]
pub fn finish(mut frame: BytesMut) -> Bytes {
    let length = i32::try_from(frame.len() - 4).unwrap_or(i32::MAX);
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame.freeze()
}
