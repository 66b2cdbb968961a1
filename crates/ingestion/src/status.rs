//! What is known of an operation.
//!
//! What must hold: whoever asks with the `Location` of a 202 is never told that there is no such
//! operation before a scheduler has read the request and its retention has passed. The row is read
//! first; if there is none, the lease, and then the row again: between "no row" and "consumed past
//! it" the row may have come.
//!
//! What was consumed says nothing of a topic that was deleted and created again, whose requests wait until a person has
//! decided: one that lies there is pending, though its offset was consumed in the old topic.
//!
//! And: to whoever may see one tenant's operations, another's are not there. They are taken out where they are found, in
//! the row, in memory and in the log, so that all that follows from "there is none" follows for them.

use std::sync::Arc;

use serde_json::value::RawValue;
use waybill_api::id::{self, CallerId};
use waybill_api::request::DRONE_DELIVERY;
use waybill_engine::{
    CreateRequest, OperationId, OperationRow, PartitionId, Position, Priority, Workflows,
};
use waybill_http::auth::Tenants;
use waybill_http::problem::{Kind, Problem};

use super::dedup_cache::Accepted;
use super::intake::Intake;
use super::request_lookup::FoundRequest;
use super::token::StatusToken;
use super::view::{DeliveryView, OperationView};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The id in the path: an operation's, or a caller's.
    pub id: &'a str,
    /// The tenant whose id it is.
    pub tenant: &'a str,
    /// Whose operations there are, for whoever asks.
    pub tenants: &'a Tenants,
    /// The `at` of the `Location`.
    pub token: Option<StatusToken>,
    /// Whether to look for the request itself where there is no row.
    pub wants_request: bool,
}

/// What was found.
#[derive(Debug)]
pub enum Status {
    /// Its row.
    Row(Box<OperationRow>),
    /// Another request under its id, which had come first.
    Rejected(OperationId),
    /// Not yet read by a scheduler.
    Pending(Box<Pending>),
}

/// A request that no scheduler has read.
#[derive(Debug)]
pub struct Pending {
    id: OperationId,
    /// How many requests lie before it in its topic and partition.
    ahead: Option<i64>,
    /// What memory knows of it.
    accepted: Option<Accepted>,
    /// The request itself, where it was read.
    request: Option<CreateRequest>,
}

/// Whose a request is that no scheduler has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The tenant's that is asked about.
    Theirs,
    /// That tenant's by the mark in its id, which another's bears once in 65,536 times.
    LooksTheirs,
    /// Another's, or nobody's.
    Anothers,
}

/// Looks an operation up.
pub async fn find(intake: &Intake, query: Query<'_>) -> Result<Status, Problem> {
    let ids = id::candidates(query.tenant, query.id);
    if ids.is_empty() {
        return Err(unknown());
    }
    if let Some(status) = read(intake, &ids, &query).await? {
        return Ok(status);
    }
    let recent = |id| {
        intake
            .recent()
            .get(id)
            .filter(|it| query.tenants.include(it.tenant()))
    };
    let accepted = ids
        .iter()
        .find_map(|id| recent(*id).map(|found| (*id, found)));
    let (id, priority, partition, offset) = match (query.token, &accepted) {
        (Some(token), accepted) => {
            let id = accepted.as_ref().map_or(ids[0], |(id, _)| *id);
            let Position {
                priority,
                partition,
                offset,
            } = token.position;
            let id = at_partition(intake, &ids, partition).unwrap_or(id);
            (id, priority, partition, Some(offset))
        }
        (None, Some((id, accepted))) => {
            (*id, accepted.priority, accepted.partition, accepted.offset)
        }
        (None, None) => return Err(unknown()),
    };
    let is_it = |found: &Accepted| query.token.is_none_or(|token| token.is_of(found.hash));
    let accepted = accepted
        .filter(|(found, accepted)| *found == id && is_it(accepted))
        .map(|(_, accepted)| accepted);
    let consumed = intake.reads().consumed(priority, partition).await?;
    if let Some(status) = read(intake, &ids, &query).await? {
        return Ok(status);
    }
    let position = |offset| Position {
        priority,
        partition,
        offset,
    };
    let is_sent_on = |offset| intake.partition_map().is_sent_on(position(offset), id);
    let is_read = offset.is_some_and(|offset| offset < consumed && !is_sent_on(offset));
    let mut found = Found::Unread;
    if let Some(offset) = offset
        && (is_read || query.wants_request || accepted.is_none())
    {
        found = request_at(intake, position(offset), &ids, &query).await;
    }
    let may_be_unread = is_read && !matches!(found, Found::Another);
    if is_read && !(may_be_unread && intake.is_another_log(priority, partition).await?) {
        return Err(unknown());
    }
    let (id, request) = match found {
        Found::Request(request) => (request.operation, Some(*request)),
        // What memory knows was accepted.
        Found::Unread | Found::Another if accepted.is_some() => (id, None),
        Found::About(id) => (id, None),
        Found::Unread => (id, None),
        Found::Another => return Err(unknown()),
    };
    Ok(Status::Pending(Box::new(Pending {
        id,
        ahead: offset
            .filter(|_| !is_read)
            .map(|offset| (offset.0 - consumed.0).max(0)),
        accepted,
        request,
    })))
}

/// What lies at the place of a `Location`.
enum Found {
    /// The request that it was given for.
    Request(Box<CreateRequest>),
    /// A request about this operation, which it was given for.
    About(OperationId),
    /// Something else, or nothing: the place was made up. Another tenant's request is something else.
    Another,
    /// It could not be read now.
    Unread,
}

/// Looks whether the request of one of `ids` lies at `position`.
async fn request_at(
    intake: &Intake,
    position: Position,
    ids: &[OperationId],
    query: &Query<'_>,
) -> Found {
    let Query { tenants, token, .. } = *query;
    match intake.request_lookup().read(position, tenants).await {
        Some(FoundRequest::Create(request)) => {
            let is_it = ids.contains(&request.operation)
                && tenants.include(&request.tenant)
                && token.is_none_or(|token| token.is_of(request.request_hash));
            match is_it {
                true => Found::Request(request),
                false => Found::Another,
            }
        }
        Some(FoundRequest::Amend(request))
            if ids.contains(&request.operation)
                && tenants.include(&request.tenant)
                && token.is_none_or(|token| token.is_of_any()) =>
        {
            Found::About(request.operation)
        }
        Some(FoundRequest::Amend(_) | FoundRequest::Nothing) => Found::Another,
        None => Found::Unread,
    }
}

impl Pending {
    /// The operation.
    pub fn id(&self) -> OperationId {
        self.id
    }

    /// Its request, where it was read.
    pub fn request(&self) -> Option<&CreateRequest> {
        self.request.as_ref()
    }

    /// What its `Location` carries, if memory knows it.
    pub fn token(&self) -> Option<StatusToken> {
        self.accepted.as_ref()?.token()
    }

    /// The priority that it came with, if memory knows it.
    pub fn priority(&self) -> Option<Priority> {
        Some(self.accepted.as_ref()?.priority)
    }

    /// Whose it is, where that is known.
    pub fn tenant(&self) -> Option<&str> {
        match (&self.request, &self.accepted) {
            (Some(request), _) => Some(&request.tenant),
            (None, Some(accepted)) => Some(accepted.tenant()),
            (None, None) => None,
        }
    }

    /// Whether it is an operation of `tenant`, which calls it `text`, as far as can be told. Where no tenant is named,
    /// any will do, as it does for a row.
    pub fn is_of(&self, tenant: &str, text: &str) -> Whose {
        match self.tenant() {
            Some(_) if tenant.is_empty() => Whose::Theirs,
            Some(known) if known == tenant => Whose::Theirs,
            Some(_) => Whose::Anothers,
            None if self.id == OperationId::of_caller(tenant, text) => Whose::Theirs,
            None if CallerId::new(text).is_ok_and(|id| id.operation(tenant) == self.id) => {
                Whose::LooksTheirs
            }
            None => Whose::Anothers,
        }
    }
}

impl Status {
    /// It as an operation.
    pub fn operation(&self, workflows: &Workflows) -> OperationView {
        match self {
            Self::Row(row) => OperationView::of_row(row, workflows),
            Self::Rejected(id) => OperationView::rejected(*id),
            Self::Pending(pending) => {
                let view = OperationView::pending(pending.id, pending.ahead);
                let newest = |name: &str| workflows.newest(name).map(AsRef::as_ref);
                match (&pending.request, &pending.accepted) {
                    (Some(request), _) => view
                        .with_workflow(request.workflow.as_str().into(), newest(&request.workflow))
                        .with_request(request),
                    (None, Some(accepted)) => view
                        .with_workflow(Arc::clone(&accepted.workflow), newest(&accepted.workflow))
                        .with_caller_id(accepted.caller_id.clone())
                        .with_time(accepted.requested_at),
                    (None, None) => view,
                }
            }
        }
    }

    /// It as a delivery, if it is one.
    pub fn delivery(&self, workflows: &Workflows) -> Result<DeliveryView, Problem> {
        let mut operation = self.operation(workflows);
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
            Self::Row(row) => request_of(row),
            Self::Pending(pending) => pending.request.as_ref().and_then(|r| raw(&r.input)),
            Self::Rejected(_) => None,
        };
        Ok(DeliveryView { operation, request })
    }
}

/// A delivery's request as it is now; `None` where it was cancelled before it came.
pub fn request_of(row: &OperationRow) -> Option<Box<RawValue>> {
    raw(row.input()).filter(|_| !row.state.tombstone)
}

/// JSON as it is stored.
pub fn raw(json: &[u8]) -> Option<Box<RawValue>> {
    serde_json::from_slice(json).ok()
}

async fn read(
    intake: &Intake,
    ids: &[OperationId],
    query: &Query<'_>,
) -> Result<Option<Status>, Problem> {
    let Query { tenants, token, .. } = *query;
    let mut unreadable = None;
    for (id, row) in ids.iter().zip(intake.rows(ids.to_vec()).await?) {
        match row {
            Ok(None) => {}
            Ok(Some(row)) if !tenants.include(&row.created.tenant) => {}
            // Whose it is cannot be read either, unless its id says so.
            Err(_)
                if tenants
                    .only()
                    .is_some_and(|only| *id != OperationId::of_caller(only, query.id)) => {}
            Ok(Some(row)) => {
                return Ok(Some(match token {
                    Some(token) if !token.is_of(row.created.request_hash) => {
                        Status::Rejected(row.id)
                    }
                    _ => Status::Row(Box::new(row)),
                }));
            }
            Err(problem) => unreadable = Some(problem),
        }
    }
    unreadable.map_or(Ok(None), Err)
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
        .find(|id| intake.partition_map().was_ever_of(partition, *id))
}

/// There is no such operation.
pub fn unknown() -> Problem {
    let detail = "No request with this id was accepted, or its retention has passed.";
    Problem::new(Kind::UnknownOrExpired, detail)
}
