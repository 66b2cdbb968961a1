//! `/shards`: shows and changes the number of shards per partition.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use serde_json::Value;
use waybill_http::problem::{FieldProblem, Kind, Problem};
use waybill_store::StoreError;
use waybill_telemetry::chain;
use waybill_topology::shards::show::{LayoutView, SetError, Shards};

use super::{Admin, only_field, unread};

/// The only field of the body.
const PER_PARTITION: &str = "perPartition";

pub(super) async fn show(State(admin): State<Admin>) -> Result<Json<LayoutView>, Problem> {
    let shards = here(&admin)?;
    Ok(Json(
        shards.show().await.map_err(|error| unavailable(&error))?,
    ))
}

pub(super) async fn set(
    State(admin): State<Admin>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<LayoutView>, Problem> {
    let body = body.map_err(|rejection| unread(&rejection))?;
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let per_partition = only_field(&body, PER_PARTITION, number, "a number from 1")?;
    let shards = here(&admin)?;
    if shards.are_shared() {
        let detail =
            "Other processes share these shards: change them with `waybill shards set M --scylla`.";
        return Err(Problem::new(Kind::VerbRefused, detail));
    }
    let set = shards.set(per_partition).await;
    set.map(Json).map_err(|error| match error {
        SetError::Store(error) => unavailable(&error),
        SetError::Layout(refused) => Problem::invalid(vec![FieldProblem::new(
            format!("/{PER_PARTITION}"),
            refused.to_string(),
        )]),
        SetError::NotBegun | SetError::Changed => {
            Problem::new(Kind::VerbRefused, error.to_string())
        }
    })
}

fn here(admin: &Admin) -> Result<&Shards, Problem> {
    let shards = admin.shards.get();
    shards.ok_or_else(|| admin.no_scheduler())
}

fn unavailable(error: &StoreError) -> Problem {
    tracing::warn!(error = %chain(error), "could not show or change the shards");
    Problem::new(Kind::StoreUnavailable, "The state store is unavailable.")
}
