//! The rows of answers.

use scylla::deserialize::row::DeserializeRow;
use scylla::response::query_result::QueryResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;

use super::link::Link;
use crate::StoreError;

impl Link {
    /// Reads all rows that a statement selects, which are few.
    pub(super) async fn rows<R>(
        &self,
        action: &'static str,
        select: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Vec<R>, StoreError>
    where
        R: for<'frame> DeserializeRow<'frame, 'frame>,
    {
        let read = || self.session.execute_unpaged(select, &values);
        decode(action, self.repeat(action, read).await?)
    }
}

/// Decodes all rows of the answer to `action`.
pub(super) fn decode<R>(action: &'static str, answer: QueryResult) -> Result<Vec<R>, StoreError>
where
    R: for<'frame> DeserializeRow<'frame, 'frame>,
{
    let rows = answer
        .into_rows_result()
        .map_err(|error| StoreError::unavailable(action, error))?;
    let rows = rows
        .rows::<R>()
        .map_err(|error| StoreError::unavailable(action, error))?;
    rows.collect::<Result<_, _>>()
        .map_err(|error| StoreError::unavailable(action, error))
}
