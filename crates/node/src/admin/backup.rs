//! `/backup`: a backup of everything that a process stores.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use waybill_http::media_type::check_media_type_of_optional_json;
use waybill_http::problem::{Kind, Problem};
use waybill_telemetry::chain;

use super::Admin;
use crate::backup::BackupError;

pub(super) async fn make(
    State(admin): State<Admin>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    check_media_type_of_optional_json(&headers)?;
    let Some(backups) = admin.backups.get() else {
        let detail = "This process does not own both the broker and the store: back up Kafka and the database \
                      with their own tools.";
        return Err(admin.not_connected(Problem::new(Kind::VerbRefused, detail)));
    };
    let mut pieces = backups.begin().await?;
    let pieces = stream::poll_fn(move |context| pieces.poll_recv(context));
    let media_type = [(CONTENT_TYPE, "application/zstd")];
    Ok((media_type, Body::from_stream(pieces)).into_response())
}

impl From<BackupError> for Problem {
    fn from(error: BackupError) -> Self {
        let kind = match &error {
            BackupError::UnderWay => Kind::VerbRefused,
            BackupError::Store(_) => Kind::StoreUnavailable,
            BackupError::Logs(_) => Kind::BrokerUnavailable,
            BackupError::ShuttingDown => Kind::ShuttingDown,
        };
        Self::new(
            kind,
            format!("The backup did not start: {}.", chain(&error)),
        )
    }
}
