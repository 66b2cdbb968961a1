//! The bytes of a response. Here and not in `wire`, because it holds a permit for its memory.

use std::pin::Pin;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use waybill_connections::Permit;
use waybill_wire::Malformed;

/// An answer's bytes, with the permit for its buffer if the buffer is large.
pub(crate) struct Frame {
    pub(crate) bytes: Bytes,
    pub(crate) permit: Option<Permit>,
}

impl Frame {
    /// Begins its transfer: first when it starts to wait, and again when it is the next to be sent.
    pub(crate) fn begin(&mut self, slow: &CancellationToken) {
        if let Some(permit) = &mut self.permit {
            permit.begin_transfer(0, slow);
        }
    }

    /// How many of `bytes` bytes of it no permit counts.
    pub(crate) fn uncounted(&self, bytes: usize) -> usize {
        match &self.permit {
            Some(_) => 0,
            None => bytes,
        }
    }
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            permit: None,
        }
    }
}

/// An answer that is not ready yet.
pub(crate) type Pending = Pin<Box<dyn Future<Output = Result<Frame, Malformed>> + Send>>;
