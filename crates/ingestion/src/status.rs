//! Finds the status of an operation.
//!
//! What must hold: a caller with the `Location` of a 202 gets no "not found" before a scheduler has
//! read the request and its retention has passed. The row is read first. If there is none, the
//! lease is read, and then the row again: the row may have been written between the first read and
//! the checkpoint that passed it.
//!
//! The checkpoint says nothing about a topic that was deleted and created again. Its requests wait
//! until a person has decided: one of them is pending, even if the old topic's checkpoint passed
//! its offset.
//!
//! Also: a caller restricted to one tenant must see no other tenant's operations. They are filtered
//! out where they are found, in the row, in memory and in the log, so that all later code treats
//! them as absent.

use std::sync::Arc;

use serde_json::value::RawValue;
use waybill_api::form::Form;
use waybill_api::id::{self, CallerId};
use waybill_api::payloads::Payloads;
use waybill_api::view::OperationView;
use waybill_engine::{
    CreateRequest, OperationId, OperationRow, PartitionId, Position, Priority, Workflows,
};
use waybill_http::auth::Tenants;
use waybill_http::problem::{Kind, Problem};
use waybill_ingestion_core::Accepted;

use super::intake::Intake;
use super::request_lookup::FoundRequest;
use super::token::StatusToken;
use super::view::{self, RequestView};

/// A status request.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The id in the path: an operation's, or a caller's.
    pub id: &'a str,
    /// The tenant of the id.
    pub tenant: &'a str,
    /// The tenants whose operations the caller may see.
    pub tenants: &'a Tenants,
    /// The `at` of the `Location`.
    pub token: Option<StatusToken>,
    /// Whether to read the request itself if there is no row.
    pub wants_request: bool,
}

/// The result of a lookup.
#[derive(Debug)]
pub enum Status {
    /// The operation's row.
    Row(Box<OperationRow>),
    /// An earlier request with the same id.
    Rejected(OperationId),
    /// The request, which no scheduler has read yet.
    Pending(Box<Pending>),
}

/// A request that no scheduler has read.
#[derive(Debug)]
pub struct Pending {
    id: OperationId,
    /// How many requests are before it in its topic and partition.
    ahead: Option<i64>,
    /// The cached request, if any.
    accepted: Option<Accepted>,
    /// The request itself, if it was read.
    request: Option<CreateRequest>,
}

/// Which tenant owns a request that no scheduler has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TenantMatch {
    /// The tenant of the status request.
    Same,
    /// Probably that tenant: the mark in the id fits, which happens by chance once in 65,536 times.
    Probable,
    /// Another tenant, or none.
    Other,
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
            .recent(id)
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
        // A cached request was accepted.
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

/// The content of the position in a `Location`.
enum Found {
    /// The request that the `Location` is for.
    Request(Box<CreateRequest>),
    /// A request about this operation, which the `Location` is for.
    About(OperationId),
    /// Another record, or none: the position was invented. Another tenant's request counts as
    /// another.
    Another,
    /// The position could not be read now.
    Unread,
}

/// Reads the request at `position`, and compares it with `ids`.
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

    /// The request, if it was read.
    pub fn request(&self) -> Option<&CreateRequest> {
        self.request.as_ref()
    }

    /// The token for its `Location`, if the request is cached.
    pub fn token(&self) -> Option<StatusToken> {
        StatusToken::of_accepted(self.accepted.as_ref()?)
    }

    /// Its priority, if the request is cached.
    pub fn priority(&self) -> Option<Priority> {
        Some(self.accepted.as_ref()?.priority)
    }

    /// Its tenant, if known.
    pub fn tenant(&self) -> Option<&str> {
        match (&self.request, &self.accepted) {
            (Some(request), _) => Some(&request.tenant),
            (None, Some(accepted)) => Some(accepted.tenant()),
            (None, None) => None,
        }
    }

    /// Whether the operation is known to belong to `tenant`, with the id `text`. Without a tenant
    /// in the status request any tenant fits, as for a row.
    pub fn is_of(&self, tenant: &str, text: &str) -> TenantMatch {
        match self.tenant() {
            Some(_) if tenant.is_empty() => TenantMatch::Same,
            Some(known) if known == tenant => TenantMatch::Same,
            Some(_) => TenantMatch::Other,
            None if self.id == OperationId::of_caller(tenant, text) => TenantMatch::Same,
            None if CallerId::new(text).is_ok_and(|id| id.operation(tenant) == self.id) => {
                TenantMatch::Probable
            }
            None => TenantMatch::Other,
        }
    }
}

impl Status {
    /// The operation, if it has neither ended nor is parked.
    pub fn changing(&self) -> Option<OperationId> {
        match self {
            Self::Row(row) => Some(row.id).filter(|_| !row.state.state.is_final()),
            Self::Pending(pending) => Some(pending.id),
            Self::Rejected(_) => None,
        }
    }

    /// Its view as an operation, for a caller with or without the scope for payloads.
    pub fn operation(&self, workflows: &Workflows, has_payload: bool) -> OperationView {
        match self {
            Self::Row(row) => view::of_row(row, workflows, has_payload),
            Self::Rejected(id) => OperationView::rejected(*id),
            Self::Pending(pending) => {
                let view = OperationView::pending(pending.id, pending.ahead);
                let newest = |name: &str| workflows.newest(name).map(AsRef::as_ref);
                match (&pending.request, &pending.accepted) {
                    (Some(request), _) => {
                        let workflow = newest(&request.workflow);
                        let payloads = Payloads::of(workflow, has_payload);
                        OperationView {
                            input: payloads.input(&request.input),
                            payload_withheld: payloads.withheld(),
                            ..view
                                .with_workflow(request.workflow.as_str().into(), workflow)
                                .with_request(request)
                        }
                    }
                    (None, Some(accepted)) => view
                        .with_workflow(Arc::clone(&accepted.workflow), newest(&accepted.workflow))
                        .with_caller_id(accepted.caller_id.clone())
                        .with_time(accepted.requested_at),
                    (None, None) => view,
                }
            }
        }
    }

    /// Its view as a request in `form`, if it has that form.
    pub fn in_form(
        &self,
        form: Form,
        workflows: &Workflows,
        has_payload: bool,
    ) -> Result<RequestView, Problem> {
        let name = form.names.workflow;
        let mut operation = self.operation(workflows, has_payload);
        // The request is the input.
        operation.input = None;
        if operation.workflow.is_none() {
            // Only the position is known: a token from the form's collection leads back to it.
            let workflow = workflows.newest(name).map(AsRef::as_ref);
            operation = operation.with_workflow(name.into(), workflow);
        }
        if operation.workflow.as_deref().is_some_and(|it| it != name) {
            return Err(unknown());
        }
        let request = match self {
            Self::Row(row) => view::request_of(row, workflows, has_payload),
            Self::Pending(pending) => pending.request.as_ref().and_then(|request| {
                let workflow = workflows.newest(&request.workflow).map(AsRef::as_ref);
                Payloads::of(workflow, has_payload).raw_input(&request.input)
            }),
            Self::Rejected(_) => None,
        };
        Ok(RequestView { operation, request })
    }
}

/// The current input of an operation; `None` if it was cancelled before it arrived.
pub fn request_of(row: &OperationRow) -> Option<Box<RawValue>> {
    raw(row.input()).filter(|_| !row.state.tombstone)
}

/// The stored JSON.
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
            // The tenant cannot be read either, unless the id proves it.
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

/// The id that belongs to the token's partition: of the two ids that a text may mean, the one that
/// the token was given with.
fn at_partition(
    intake: &Intake,
    ids: &[OperationId],
    partition: PartitionId,
) -> Option<OperationId> {
    ids.iter()
        .copied()
        .find(|id| intake.partition_map().was_ever_of(partition, *id))
}

/// The problem of an unknown operation.
pub fn unknown() -> Problem {
    let detail = "No request with this id was accepted, or its retention has passed.";
    Problem::new(Kind::UnknownOrExpired, detail)
}
