//! Requests that wait for the result of an operation: `?wait=30s`.
//!
//! What must hold: a request waits for at most `http.waitMax`, and counts as an event stream in the
//! meantime, so that one tenant cannot use up the limit. A request that created an operation is
//! never refused because it cannot wait.
//!
//! One read of the store serves all waiting requests and all event streams (`events`).

use std::sync::Arc;
use std::time::Duration;

use hyper::{StatusCode, header};
use tokio::time::{Instant, sleep_until};
use waybill_api::form::Form;
use waybill_api::request::Submission;
use waybill_engine::{OperationId, OperationRow};
use waybill_http::auth::{Caller, Denied, Scope};
use waybill_http::problem::{Kind, Problem};

use super::events::Seen;
use super::query::QueryErrors;
use super::{Api, Reply};

/// The parameter with the time to wait.
pub const WAIT: &str = "wait";

/// Reads the value of the parameter.
pub(super) fn read_wait(value: &str, errors: &mut QueryErrors) -> Option<Duration> {
    match waybill_units::duration_from_text(value) {
        Ok(wait) => Some(wait),
        Err(error) => {
            errors.wrong(WAIT, format!("{error}"));
            None
        }
    }
}

/// An operation that a new request waits for.
pub(super) struct Awaited<'a> {
    pub(super) id: OperationId,
    pub(super) submission: &'a Submission,
    pub(super) form: Option<Form>,
    pub(super) wait: Duration,
}

/// Refuses to wait for a result that the caller may not read.
pub(super) fn check_may_read(caller: &Caller) -> Result<(), Problem> {
    match caller.may(Scope::Read) {
        true => Ok(()),
        false => Err(Denied::Scope(Scope::Read).into()),
    }
}

impl Api {
    /// Waits until the operation has ended or is parked, and returns its row. Returns `None` after
    /// `wait`, if another tenant needs the permit, or if the server shuts down.
    ///
    /// # Errors
    ///
    /// If too many requests wait already.
    pub(super) async fn wait_for(
        &self,
        id: OperationId,
        wait: Duration,
        caller: &Caller,
    ) -> Result<Option<Arc<OperationRow>>, Problem> {
        let until = Instant::now() + wait.min(self.wait_max);
        let Some(mut following) = self.events.follow(id, caller) else {
            let detail = "The limit on requests that wait or follow operations is reached.";
            return Err(Problem::new(Kind::Overloaded, detail));
        };
        loop {
            let seen = following.seen.borrow_and_update().clone();
            match seen {
                // A row of another tenant does not exist for this caller.
                Seen::Row(row) if !caller.tenants().include(&row.created.tenant) => {}
                Seen::Row(row) if row.state.state.is_final() => return Ok(Some(row)),
                Seen::Row(_) | Seen::Nothing => {}
                Seen::Gone => return Ok(None),
            }
            tokio::select! {
                changed = following.seen.changed() => if changed.is_err() {
                    return Ok(None);
                },
                () = sleep_until(until) => return Ok(None),
                () = following.permit.revoked() => return Ok(None),
                () = self.stop.cancelled() => return Ok(None),
            }
        }
    }

    /// The answer to a new request that waits: the operation once it has ended or is parked, else
    /// `accepted`.
    pub(super) async fn result_or(
        &self,
        accepted: Reply,
        awaited: Awaited<'_>,
        caller: &Caller,
    ) -> Result<Reply, Problem> {
        let Awaited {
            id,
            submission,
            form,
            wait,
        } = awaited;
        let Ok(Some(row)) = self.wait_for(id, wait, caller).await else {
            return Ok(accepted);
        };
        if row.created.request_hash != submission.record.request_hash {
            let detail = "An earlier, different request has this id.";
            return Err(Problem::new(Kind::IdConflict, detail).with_id(id.to_string()));
        }
        let mut reply = self.as_it_is(&row, form, caller);
        if let Some(location) = accepted.headers().get(header::LOCATION) {
            let headers = reply.headers_mut();
            headers.insert(header::LOCATION, location.clone());
        }
        Ok(reply)
    }

    /// The answer to a repeated request that waits.
    pub(super) async fn result_of_repeat(
        &self,
        row: &OperationRow,
        awaited: Awaited<'_>,
        caller: &Caller,
    ) -> Result<Reply, Problem> {
        let mut reply = self.as_it_is(row, awaited.form, caller);
        if row.state.state.is_final() {
            return Ok(reply);
        }
        *reply.status_mut() = StatusCode::ACCEPTED;
        self.result_or(reply, awaited, caller).await
    }
}
