//! A row and its bytes, without a store around them.
//!
//! For the benchmarks, which measure the codec: `codec` itself stays private, so that its formats
//! can change.

use std::sync::Arc;

use waybill_engine::{OperationId, OperationRow};

use crate::codec::{self, Encoder, Malformed, StateHeader};
use crate::{CorruptRow, RowWrite};

/// Turns rows into the values that the embedded store keeps, and back.
#[derive(Debug, Default)]
pub struct RowCodec {
    encoder: Encoder,
}

/// The values of one row.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RowBytes {
    /// The mutable state, with its header.
    pub state: Vec<u8>,
    /// The immutable columns, with their stamp; empty if the write has none.
    pub created: Vec<u8>,
}

impl RowCodec {
    /// Writes a row's values into `bytes`, replacing its content. The row is kept for good.
    pub fn encode(&mut self, row: &RowWrite, bytes: &mut RowBytes) {
        let header = StateHeader {
            stamp: row.stamp,
            expires_at: None,
        };
        bytes.state.clear();
        bytes
            .state
            .extend_from_slice(self.encoder.state(header, &row.state));
        bytes.created.clear();
        if let Some(created) = &row.created {
            bytes
                .created
                .extend_from_slice(self.encoder.created(row.stamp, created));
        }
    }

    /// Reads a row back.
    ///
    /// # Errors
    ///
    /// [`CorruptRow`] if one of its values cannot be decoded, or is empty.
    pub fn decode(&self, id: OperationId, bytes: &RowBytes) -> Result<OperationRow, CorruptRow> {
        let corrupt = |what| {
            move |cause: Malformed| CorruptRow {
                id,
                what,
                cause: cause.to_string(),
            }
        };
        let (header, state) = codec::state(&bytes.state).map_err(corrupt("state"))?;
        let (_, created) = codec::created(&bytes.created).map_err(corrupt("immutable part"))?;
        Ok(OperationRow {
            id,
            created: Arc::new(created),
            state,
            stamp: header.stamp,
        })
    }
}
