//! The reply key: one row, inserted by a lightweight transaction and never changed.
//!
//! The transaction is serial in the local datacentre only. If schedulers of two datacentres create
//! the key at the same moment, the older key is lost. A scheduler that started with it refuses
//! replies to the requests of others, which are then requested again, until it restarts.

use scylla::statement::prepared::PreparedStatement;

use super::leases::{Attempt, attempt};
use super::link::Link;
use crate::codec::{self, Encoder};
use crate::{ReplyKey, StoreError};

/// The name of the reply key.
const REPLY_KEY: &str = "reply-key";

/// Reads and creates the reply key.
pub(super) struct Secrets {
    plain_select: PreparedStatement,
    select: PreparedStatement,
    insert: PreparedStatement,
}

impl Secrets {
    pub(super) async fn new(link: &Link, keyspace: &str) -> Result<Self, StoreError> {
        let table = format!("{keyspace}.secrets");
        let select = format!("SELECT value FROM {table} WHERE name = ?");
        let insert = format!("INSERT INTO {table} (name, value) VALUES (?, ?) IF NOT EXISTS");
        Ok(Self {
            plain_select: link.prepare(select.clone()).await?,
            select: link.prepare_serial_read(select).await?,
            insert: link.prepare_conditional(insert).await?,
        })
    }

    /// Reads the reply key, or creates it as `candidate`.
    pub(super) async fn reply_key(
        &self,
        link: &Link,
        candidate: ReplyKey,
    ) -> Result<ReplyKey, StoreError> {
        if let Some(key) = self.stored(link, &self.plain_select).await? {
            return Ok(key);
        }
        let value = Encoder::default().reply_key(&candidate).to_vec();
        let mut retries = link.retries_of_transaction("creating the reply key");
        loop {
            let values = (REPLY_KEY, value.as_slice());
            let insert = link.session.execute_unpaged(&self.insert, values);
            match attempt(link.attempt(insert).await)? {
                Attempt::Made => return Ok(candidate),
                // Another caller was first, or an earlier attempt of this one.
                Attempt::Refused => {
                    if let Some(key) = self.stored(link, &self.select).await? {
                        return Ok(key);
                    }
                    let nothing = "a transaction found the key, but a read did not";
                    return Err(StoreError::unavailable("reading the reply key", nothing));
                }
                Attempt::Failed(error) => retries.after(*error).await?,
            }
        }
    }

    async fn stored(
        &self,
        link: &Link,
        select: &PreparedStatement,
    ) -> Result<Option<ReplyKey>, StoreError> {
        let mut rows: Vec<(Option<Vec<u8>>,)> = link
            .rows("reading the reply key", select, (REPLY_KEY,))
            .await?;
        let Some((value,)) = rows.pop() else {
            return Ok(None);
        };
        let key = codec::reply_key(&value.unwrap_or_default());
        key.map(Some).map_err(|cause| StoreError::Corrupt {
            what: "reply key",
            key: REPLY_KEY.to_owned(),
            cause: cause.to_string(),
        })
    }
}
