//! `/log`: shows and changes the log filter while the process runs.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use waybill_http::problem::{FieldProblem, Problem};
use waybill_telemetry::chain;

use super::{Admin, only_field, unread};
use crate::log_filter::{LogFilter, LogFilterError};

/// The only field of the body.
const FILTER: &str = "filter";

/// The log filter, as shown.
#[derive(Serialize)]
pub(super) struct Shown {
    filter: String,
}

pub(super) async fn show(State(admin): State<Admin>) -> Json<Shown> {
    let filter = admin.telemetry.log().filter();
    Json(Shown { filter })
}

pub(super) async fn set(
    State(admin): State<Admin>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Shown>, Problem> {
    let body = body.map_err(|rejection| unread(&rejection))?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let wanted = "a level, or pairs as in info,waybill=debug";
    let filter = only_field(&body, FILTER, text, wanted)?;
    let refused = |error: LogFilterError| {
        Problem::invalid(vec![FieldProblem::new(format!("/{FILTER}"), chain(&error))])
    };
    let to_apply: LogFilter = filter.parse().map_err(refused)?;
    // Logged before and after the change: either filter may suppress it.
    tracing::info!(filter, "changing the log filter");
    admin.telemetry.log().set_filter(to_apply);
    tracing::info!(filter, "changed the log filter");
    Ok(show(State(admin)).await)
}
