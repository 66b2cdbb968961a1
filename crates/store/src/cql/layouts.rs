//! The layout: one row, replaced by lightweight transactions only, as leases are.

use scylla::statement::prepared::PreparedStatement;

use super::error::CqlError;
use super::leases::{Attempt, attempt, number};
use super::link::Link;
use crate::codec::{self, Encoder};
use crate::{Layout, StoreError};

/// The name of the schedulers' layout, the only one.
const NAME: &str = "schedulers";

/// Reads and replaces the layout.
pub(super) struct Layouts {
    plain_select: PreparedStatement,
    select: PreparedStatement,
    insert: PreparedStatement,
    replace: PreparedStatement,
}

impl Layouts {
    pub(super) async fn new(link: &Link, keyspace: &str) -> Result<Self, StoreError> {
        let table = format!("{keyspace}.layouts");
        let select = format!("SELECT body, datacenter FROM {table} WHERE name = ?");
        Ok(Self {
            plain_select: link.prepare(select.clone()).await?,
            select: link.prepare_serial_read(select).await?,
            insert: link
                .prepare_conditional(format!(
                    "INSERT INTO {table} (body, generation, datacenter, name) VALUES (?, ?, ?, ?) \
                     IF NOT EXISTS"
                ))
                .await?,
            replace: link
                .prepare_conditional(format!(
                    "UPDATE {table} SET body = ?, generation = ? WHERE name = ? \
                     IF generation = ? AND datacenter = ?"
                ))
                .await?,
        })
    }

    /// Reads the layout as a quorum has it.
    pub(super) async fn read(&self, link: &Link) -> Result<Option<Layout>, StoreError> {
        let stored = self.stored(link, &self.plain_select).await?;
        Ok(stored.map(|(layout, _)| layout))
    }

    /// Replaces exactly the layout that was seen, in the datacentre that holds it: transactions of
    /// another one are not visible there. A generation has one layout, so comparing its number is
    /// enough.
    pub(super) async fn set(
        &self,
        link: &Link,
        seen: Option<&Layout>,
        layout: &Layout,
    ) -> Result<bool, StoreError> {
        let body = Encoder::default().layout(layout).to_vec();
        let generation = number(layout.generation().0);
        let here = link.datacenter.as_str();
        let mut retries = link.retries_of_transaction("replacing the layout");
        loop {
            let answer = match seen {
                None => {
                    let values = (body.as_slice(), generation, here, NAME);
                    let insert = link.session.execute_unpaged(&self.insert, values);
                    link.attempt(insert).await
                }
                Some(seen) => {
                    let before = number(seen.generation().0);
                    let values = (body.as_slice(), generation, NAME, before, here);
                    let replace = link.session.execute_unpaged(&self.replace, values);
                    link.attempt(replace).await
                }
            };
            match attempt(answer)? {
                Attempt::Made => return Ok(true),
                // An earlier attempt of this call may have succeeded.
                Attempt::Refused => {
                    let Some((stored, holder)) = self.stored(link, &self.select).await? else {
                        return Ok(false);
                    };
                    if holder != here {
                        return Err(CqlError::ElsewhereHeld {
                            what: "the layout of shards".to_owned(),
                            holder,
                            local: here.to_owned(),
                        }
                        .into());
                    }
                    return Ok(stored == *layout);
                }
                Attempt::Failed(error) => retries.after(*error).await?,
            }
        }
    }

    async fn stored(
        &self,
        link: &Link,
        select: &PreparedStatement,
    ) -> Result<Option<(Layout, String)>, StoreError> {
        let mut rows: Vec<(Option<Vec<u8>>, Option<String>)> =
            link.rows("reading the layout", select, (NAME,)).await?;
        let Some((body, datacenter)) = rows.pop() else {
            return Ok(None);
        };
        let layout = codec::layout(&body.unwrap_or_default());
        let layout = layout.map_err(|cause| StoreError::Corrupt {
            what: "layout",
            key: NAME.to_owned(),
            cause: cause.to_string(),
        })?;
        Ok(Some((layout, datacenter.unwrap_or_default())))
    }
}
