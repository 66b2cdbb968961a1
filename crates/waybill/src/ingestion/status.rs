//! What is known of an operation.
//!
//! What must hold: whoever asks with the `Location` of a 202 is never told that there is no such
//! operation before a scheduler has read the request and its retention has passed. The row is read
//! first; if there is none, the lease, and then the row again: between "no row" and "consumed past
//! it" the row may have come.

use serde_json::value::RawValue;
use waybill_engine::{Offset, OperationId, OperationRow, PartitionId, Workflows, partition_for};

use super::id;
use super::intake::{Intake, store_unavailable};
use super::problem::{Kind, Problem};
use super::request::DRONE_DELIVERY;
use super::token::StatusToken;
use super::view::{DeliveryView, OperationView};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The id in the path: an operation's, or a caller's.
    pub id: &'a str,
    /// The tenant whose id it is.
    pub tenant: &'a str,
    /// The `at` of the `Location`.
    pub token: Option<StatusToken>,
}

/// What was found.
#[derive(Debug)]
pub enum Status {
    /// Its row.
    Row(Box<OperationRow>),
    /// Another request under its id, which had come first.
    Rejected(OperationId),
    /// Not yet read by a scheduler, with how many requests at most are ahead of it.
    Pending(OperationId, Option<i64>),
}

/// Looks an operation up.
pub async fn find(intake: &Intake, query: Query<'_>) -> Result<Status, Problem> {
    let ids = id::candidates(query.tenant, query.id);
    if ids.is_empty() {
        return Err(unknown());
    }
    if let Some(status) = read(intake, &ids, query.token).await? {
        return Ok(status);
    }
    let accepted = ids
        .iter()
        .find_map(|id| intake.recent().get(*id).map(|found| (*id, found)));
    let (id, partition, offset) = match (query.token, &accepted) {
        (Some(token), accepted) => {
            let id = accepted.as_ref().map_or(ids[0], |(id, _)| *id);
            let id = at_partition(intake, &ids, token.position.partition).unwrap_or(id);
            (id, token.position.partition, Some(token.position.offset))
        }
        (None, Some((id, accepted))) => (*id, accepted.partition, accepted.offset),
        (None, None) => return Err(unknown()),
    };
    let consumed = consumed(intake, partition).await?;
    if let Some(status) = read(intake, &ids, query.token).await? {
        return Ok(status);
    }
    match offset {
        Some(offset) if offset < consumed => Err(unknown()),
        Some(offset) => Ok(Status::Pending(id, Some(offset.0 - consumed.0))),
        None => Ok(Status::Pending(id, None)),
    }
}

impl Status {
    /// It as an operation.
    pub fn operation(&self, intake: &Intake, workflows: &Workflows) -> OperationView {
        match self {
            Self::Row(row) => OperationView::of_row(row),
            Self::Rejected(id) => OperationView::rejected(*id),
            Self::Pending(id, ahead) => {
                let view = OperationView::pending(*id, *ahead);
                match intake.recent().get(*id) {
                    None => view,
                    Some(accepted) => {
                        let workflow = workflows.newest(&accepted.workflow);
                        view.with_workflow(accepted.workflow, workflow.map(AsRef::as_ref))
                            .with_time(accepted.requested_at)
                    }
                }
            }
        }
    }

    /// It as a delivery, if it is one.
    pub fn delivery(
        &self,
        intake: &Intake,
        workflows: &Workflows,
    ) -> Result<DeliveryView, Problem> {
        let mut operation = self.operation(intake, workflows);
        if operation.workflow.is_none() {
            // Only the position is known: what a delivery's token leads to is a delivery.
            let workflow = workflows.newest(DRONE_DELIVERY).map(AsRef::as_ref);
            operation = operation.with_workflow(DRONE_DELIVERY.into(), workflow);
        }
        if operation
            .workflow
            .as_ref()
            .is_some_and(|name| &**name != DRONE_DELIVERY)
        {
            return Err(unknown());
        }
        let request = match self {
            Self::Row(row) => raw(&row.created.input),
            Self::Rejected(_) | Self::Pending(..) => None,
        };
        Ok(DeliveryView { operation, request })
    }
}

/// JSON as it is stored.
pub fn raw(json: &[u8]) -> Option<Box<RawValue>> {
    serde_json::from_slice(json).ok()
}

async fn read(
    intake: &Intake,
    ids: &[OperationId],
    token: Option<StatusToken>,
) -> Result<Option<Status>, Problem> {
    let row = intake
        .rows(ids.to_vec())
        .await?
        .into_iter()
        .flatten()
        .next();
    Ok(row.map(|row| match token {
        Some(token) if !token.is_of(row.created.request_hash) => Status::Rejected(row.id),
        _ => Status::Row(Box::new(row)),
    }))
}

/// Which of the ids lies in the token's partition: of the two that a text may stand for, the one
/// that the token was given with.
fn at_partition(
    intake: &Intake,
    ids: &[OperationId],
    partition: PartitionId,
) -> Option<OperationId> {
    ids.iter()
        .copied()
        .find(|id| partition_for(*id, intake.partitions()) == partition)
}

/// The first offset that no scheduler has durably consumed.
async fn consumed(intake: &Intake, partition: PartitionId) -> Result<Offset, Problem> {
    let lease = intake.store().lease(partition).await;
    let lease = lease.map_err(|error| store_unavailable(&error))?;
    Ok(lease.map_or(Offset(0), |lease| lease.consumed))
}

fn unknown() -> Problem {
    let detail = "No request with this id was accepted, or its retention has passed.";
    Problem::new(Kind::UnknownOrExpired, detail)
}
