//! The protocol's framing: what is supported, what a request's bytes must look like, and how
//! answers are written.

mod apis;
mod shape;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};

pub(crate) use apis::{APIS, Api, api};

/// Why a connection is closed because of what it sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a frame of {bytes} bytes; at most {max} are accepted")]
    FrameSize { bytes: i64, max: usize },
    #[error("a frame without a whole request header")]
    Header,
    #[error("API {key} before it has logged in")]
    NotLoggedIn { key: i16 },
    #[error("API {key} version {version}, which is not supported")]
    Unsupported { key: i16, version: i16 },
    #[error("a request of API {key} version {version} that does not decode: {cause}")]
    Body {
        key: i16,
        version: i16,
        cause: String,
    },
    #[error("an answer to API {key} version {version} does not encode: {cause}")]
    Answer {
        key: i16,
        version: i16,
        cause: String,
    },
}

/// What an answer needs of its request. It does not keep the request's bytes in memory.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) key: i16,
    pub(crate) version: i16,
    pub(crate) correlation_id: i32,
}

impl Head {
    /// Reads the header of a request and leaves its body. Also returns the client's id, a part of `frame`.
    pub(crate) fn read(frame: &mut Bytes) -> Result<(Self, StrBytes), Malformed> {
        let (key, version) = peek(frame).ok_or(Malformed::Header)?;
        // Of an unsupported request only the fields that never change are read.
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
    pub(crate) fn decode<R: Decodable>(&self, api: &Api, mut body: Bytes) -> Result<R, Malformed> {
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
    pub(crate) fn answer<R: Encodable + HeaderVersion>(
        &self,
        answer: &R,
    ) -> Result<Bytes, Malformed> {
        self.answer_in(answer, self.version)
    }

    /// Writes an answer in another version than was asked for.
    pub(crate) fn answer_in<R: Encodable + HeaderVersion>(
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

/// The API and version of a request, as soon as they have arrived.
pub(crate) fn peek(frame: &[u8]) -> Option<(i16, i16)> {
    let (key, rest) = frame.split_first_chunk()?;
    let (version, _) = rest.split_first_chunk()?;
    Some((i16::from_be_bytes(*key), i16::from_be_bytes(*version)))
}

/// Writes a frame's length into its first four bytes, which were left for it.
pub(crate) fn finish(mut frame: BytesMut) -> Bytes {
    let length = i32::try_from(frame.len() - 4).unwrap_or(i32::MAX);
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame.freeze()
}
