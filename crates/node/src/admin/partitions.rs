//! `/partitions`: adds partitions to the operation topics of a process with embedded broker and
//! store.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::Value;
use waybill_http::problem::{Kind, Problem};
use waybill_topology::repartition::{Repartition, RepartitionView};

use super::{Admin, only_field, unread};

/// The only field of the body.
const PARTITIONS: &str = "partitions";

pub(super) async fn show(State(admin): State<Admin>) -> Result<Json<RepartitionView>, Problem> {
    let view = here(&admin)?.view();
    let never = || {
        Problem::new(
            Kind::NotFound,
            "No change of the number of partitions was requested from this process.",
        )
    };
    view.map(Json).ok_or_else(never)
}

pub(super) async fn grow(
    State(admin): State<Admin>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<RepartitionView>), Problem> {
    let body = body.map_err(|rejection| unread(&rejection))?;
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let partitions = only_field(&body, PARTITIONS, number, "a number from 1")?;
    let repartition = here(&admin)?;
    if repartition.is_shared() {
        let detail = "Other processes share these partitions: change their number with \
                      `waybill topics grow P --scylla HOST:PORT`, or `shrink`.";
        return Err(Problem::new(Kind::VerbRefused, detail));
    }
    match repartition.begin(partitions) {
        Ok(view) => Ok((StatusCode::ACCEPTED, Json(view))),
        Err(under_way) => Err(Problem::new(
            Kind::VerbRefused,
            format!(
                "A change to {} partitions is in progress: {}.",
                under_way.partitions, under_way.step
            ),
        )),
    }
}

fn here(admin: &Admin) -> Result<&Repartition, Problem> {
    let repartition = admin.repartition.get();
    repartition.ok_or_else(|| admin.no_scheduler())
}
