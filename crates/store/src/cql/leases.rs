//! Leases: only lightweight transactions change their table.
//!
//! * **Taking** compares all bytes that were read, so that only exactly the lease that was seen is
//!   taken. **Renewing** compares owner, epoch and number, and needs no read.
//! * **A transaction that timed out**, or found too few replicas at one of its phases, may have
//!   been applied. It is read back at serial consistency, which also completes pending ones. If the
//!   stored lease is the one to be written, the transaction was applied. Otherwise it is tried
//!   again, under its own condition.
//! * **One datacentre.** Serial consistency covers the local datacentre only, so a lease that is
//!   held in another one is refused. A released lease may be taken anywhere.

use scylla::errors::ExecutionError;
use scylla::response::query_result::QueryResult;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;
use waybill_engine::OwnerId;

use super::error::CqlError;
use super::link::Link;
use super::schema::was_applied;
use crate::codec::{self, Encoder};
use crate::{LayoutGeneration, Lease, LeaseKey, LeaseRole, StoreError};

/// Reads and changes leases.
pub(super) struct Leases {
    plain_select: PreparedStatement,
    select: PreparedStatement,
    insert: PreparedStatement,
    replace: PreparedStatement,
    renew: PreparedStatement,
}

/// A lease as it is stored.
struct Stored {
    lease: Lease,
    body: Vec<u8>,
    datacenter: String,
}

/// The outcome of one attempt at a transaction.
pub(super) enum Attempt {
    /// The condition did not hold.
    Refused,
    /// It was applied.
    Made,
    /// The attempt failed; the caller judges whether it may have been applied.
    Failed(Box<ExecutionError>),
}

impl Leases {
    pub(super) async fn new(link: &Link, keyspace: &str) -> Result<Self, StoreError> {
        let table = format!("{keyspace}.leases");
        let select =
            format!("SELECT body, datacenter FROM {table} WHERE role = ? AND partition = ?");
        Ok(Self {
            plain_select: link.prepare(select.clone()).await?,
            select: link.prepare_serial_read(select).await?,
            insert: link
                .prepare_conditional(format!(
                    "INSERT INTO {table} (body, owner, epoch, renewal, datacenter, role, partition) \
                     VALUES (?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
                ))
                .await?,
            replace: link
                .prepare_conditional(format!(
                    "UPDATE {table} SET body = ?, owner = ?, epoch = ?, renewal = ?, \
                     datacenter = ? WHERE role = ? AND partition = ? IF body = ?"
                ))
                .await?,
            renew: link
                .prepare_conditional(format!(
                    "UPDATE {table} SET body = ?, renewal = ? WHERE role = ? AND partition = ? \
                     IF owner = ? AND epoch = ? AND renewal < ?"
                ))
                .await?,
        })
    }

    /// Reads a lease from a quorum. It may be outdated while a transaction is in progress, which is
    /// harmless: taking and renewing compare with the newest. A serial read would need a round of
    /// consensus and delay renewals.
    pub(super) async fn read(
        &self,
        link: &Link,
        key: LeaseKey,
    ) -> Result<Option<Lease>, StoreError> {
        let stored = self.stored(link, &self.plain_select, key).await?;
        Ok(stored.map(|stored| stored.lease))
    }

    /// Takes exactly the lease that was seen.
    pub(super) async fn take(
        &self,
        link: &Link,
        seen: Option<&Lease>,
        lease: &Lease,
    ) -> Result<bool, StoreError> {
        let mut retries = link.retries_of_transaction("taking a lease");
        loop {
            let error = match self.try_take(link, seen, lease).await? {
                Attempt::Made => return Ok(true),
                // An earlier attempt of this call may have succeeded.
                Attempt::Refused if retries.may_be_done => {
                    return self.is_stored(link, lease).await;
                }
                Attempt::Refused => return Ok(false),
                Attempt::Failed(error) => error,
            };
            retries.after(*error).await?;
            if retries.may_be_done && self.is_stored(link, lease).await? {
                return Ok(true);
            }
        }
    }

    async fn try_take(
        &self,
        link: &Link,
        seen: Option<&Lease>,
        lease: &Lease,
    ) -> Result<Attempt, StoreError> {
        let body = Encoder::default().lease(lease).to_vec();
        let (role, partition) = key(lease.key);
        let role = role.as_str();
        let columns = (
            body.as_slice(),
            owner(lease.owner),
            number(lease.epoch.0),
            number(lease.renewal),
            link.datacenter.as_str(),
            role,
            partition,
        );
        let answer = match seen {
            None => {
                let insert = link.session.execute_unpaged(&self.insert, columns);
                link.attempt(insert).await
            }
            Some(seen) => {
                let stored = match self.stored(link, &self.select, lease.key).await? {
                    Some(stored) if stored.lease == *seen => stored,
                    Some(_) | None => return Ok(Attempt::Refused),
                };
                if seen.owner.is_some() && stored.datacenter != link.datacenter {
                    return Err(CqlError::ElsewhereHeld {
                        what: format!("the lease of {}", lease.key),
                        holder: stored.datacenter,
                        local: link.datacenter.clone(),
                    }
                    .into());
                }
                let (body, owner, epoch, renewal, datacenter, role, partition) = columns;
                let values = (
                    body,
                    owner,
                    epoch,
                    renewal,
                    datacenter,
                    role,
                    partition,
                    stored.body.as_slice(),
                );
                let replace = link.session.execute_unpaged(&self.replace, values);
                link.attempt(replace).await
            }
        };
        attempt(answer)
    }

    /// Renews a lease of the same ownership and a lower number.
    pub(super) async fn renew(&self, link: &Link, lease: &Lease) -> Result<bool, StoreError> {
        let body = Encoder::default().lease(lease).to_vec();
        let (role, partition) = key(lease.key);
        let role = role.as_str();
        let (owner, epoch) = (owner(lease.owner), number(lease.epoch.0));
        let renewal = number(lease.renewal);
        let values = (
            body.as_slice(),
            renewal,
            role,
            partition,
            owner,
            epoch,
            renewal,
        );
        let mut retries = link.retries_of_transaction("renewing a lease");
        loop {
            let renew = link.session.execute_unpaged(&self.renew, values);
            match attempt(link.attempt(renew).await)? {
                Attempt::Made => return Ok(true),
                // A repeat, of this call or by the caller, may find its own write.
                Attempt::Refused => return self.is_stored(link, lease).await,
                Attempt::Failed(error) => retries.after(*error).await?,
            }
        }
    }

    /// Whether a lease is exactly the stored one.
    async fn is_stored(&self, link: &Link, lease: &Lease) -> Result<bool, StoreError> {
        let stored = self.stored(link, &self.select, lease.key).await?;
        Ok(stored.is_some_and(|stored| stored.lease == *lease))
    }

    async fn stored(
        &self,
        link: &Link,
        select: &PreparedStatement,
        lease: LeaseKey,
    ) -> Result<Option<Stored>, StoreError> {
        let mut rows: Vec<(Option<Vec<u8>>, Option<String>)> =
            link.rows("reading a lease", select, key(lease)).await?;
        let Some((body, datacenter)) = rows.pop() else {
            return Ok(None);
        };
        let (body, datacenter) = (body.unwrap_or_default(), datacenter.unwrap_or_default());
        let decoded = codec::lease(&body).map_err(|cause| StoreError::Corrupt {
            what: "lease",
            key: lease.to_string(),
            cause: cause.to_string(),
        })?;
        Ok(Some(Stored {
            lease: decoded,
            body,
            datacenter,
        }))
    }
}

pub(super) fn attempt(answer: Result<QueryResult, ExecutionError>) -> Result<Attempt, StoreError> {
    let answer = match answer {
        Err(error) => return Ok(Attempt::Failed(Box::new(error))),
        Ok(answer) => answer,
    };
    Ok(if was_applied(answer)? {
        Attempt::Made
    } else {
        Attempt::Refused
    })
}

/// The role and the number under which a lease is stored. Leases of the first layout keep the keys
/// that they had before there were others.
fn key(key: LeaseKey) -> (String, i64) {
    let role = match (key.role, key.generation) {
        (LeaseRole::Scheduler, LayoutGeneration(0)) => "scheduler".to_owned(),
        (LeaseRole::Scheduler, generation) => format!("scheduler {generation}"),
        (LeaseRole::Supervisor, _) => "supervisor".to_owned(),
    };
    (role, i64::from(key.number))
}

/// Owners are random; the nil id means that there is none.
fn owner(owner: Option<OwnerId>) -> Uuid {
    owner.map_or(Uuid::nil(), |owner| owner.0)
}

pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
