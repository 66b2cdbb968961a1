//! The client of a process's admin port.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use waybill_http::problem::ProblemDetails;

use crate::access::{AccessArgs, Silence};

/// The maximum time for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The process refused the request.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refused {
    /// Whether the page is not available, as while a process starts or stops.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(
            self.status,
            StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE
        )
    }

    /// Whether the process does not have the page (404).
    pub(crate) fn is_unknown(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// Whether the token lacks the permission (403).
    pub(crate) fn is_forbidden(&self) -> bool {
        self.status == StatusCode::FORBIDDEN
    }
}

/// The admin port does not answer.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Unreachable {
    message: String,
}

impl Unreachable {
    pub(crate) fn new(url: &str, why: &str) -> Self {
        let hint = "name the admin port of `up` with --admin or --admin-url";
        Self {
            message: format!("{url} does not answer ({why}): {hint}"),
        }
    }
}

/// Extends the error for an unreachable admin port with a hint that `--scylla` names a cluster.
pub(crate) fn or_of_a_cluster(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<Unreachable>() {
        Ok(Unreachable { message }) => {
            let message = format!("{message}, or a cluster with --scylla");
            Unreachable { message }.into()
        }
        Err(other) => other,
    }
}

/// A client for the admin port. `patience` limits the wait for a whole answer.
///
/// # Errors
///
/// If the token or a certificate cannot be read.
pub(crate) fn client(access: &AccessArgs, patience: Duration) -> anyhow::Result<Client> {
    let client = Client::builder()
        .timeout(patience)
        .redirect(Policy::none())
        .no_proxy();
    Ok(access.apply(client)?.build()?)
}

/// A client for a long answer. `patience` limits the wait for each piece of it.
///
/// # Errors
///
/// If the token or a certificate cannot be read.
pub(crate) fn streaming_client(access: &AccessArgs, patience: Duration) -> anyhow::Result<Client> {
    let client = Client::builder()
        .connect_timeout(PATIENCE)
        .read_timeout(patience)
        .redirect(Policy::none())
        .no_proxy();
    Ok(access.apply(client)?.build()?)
}

/// Sends a request to `url` and decodes the answer.
///
/// # Errors
///
/// If the process does not answer, refuses the request, or sends an unexpected answer.
pub(crate) async fn answered<T: DeserializeOwned>(
    url: &str,
    request: RequestBuilder,
) -> anyhow::Result<T> {
    let answer = accepted(url, request).await?;
    let body = answer.bytes().await?;
    serde_json::from_slice(&body).with_context(|| format!("unexpected response from {url}"))
}

/// Sends a request to `url` and returns the answer, if the process accepts the request.
///
/// # Errors
///
/// If the process does not answer, or refuses the request.
pub(crate) async fn accepted(url: &str, request: RequestBuilder) -> anyhow::Result<Response> {
    let answer = request.send().await;
    let answer = answer.map_err(|error| match Silence::of(&error) {
        Silence::Unreachable(why) => anyhow::Error::from(Unreachable::new(url, &why)),
        Silence::Distrusted(why) => anyhow::anyhow!("{url} answers, but {why}"),
    })?;
    let status = answer.status();
    if !status.is_success() {
        let body = answer.bytes().await?;
        let problem = ProblemDetails::read(&body);
        let of_field = problem.errors.first().map(|field| &*field.detail);
        let of_field = of_field.filter(|detail| !detail.is_empty());
        let detail = of_field.or(problem.explanation());
        let hint = match status {
            StatusCode::UNAUTHORIZED => " (--token-file)",
            _ => "",
        };
        let detail = detail.unwrap_or("no detail");
        return Err(Refused {
            status,
            message: format!("{url} answers {status}: {detail}{hint}"),
        }
        .into());
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_suggested_only_if_the_admin_port_is_unreachable() {
        let alone =
            "u does not answer (refused): name the admin port of `up` with --admin or --admin-url";
        let unreachable = || Unreachable::new("u", "refused");
        assert_eq!(unreachable().to_string(), alone);
        let hinted = or_of_a_cluster(unreachable().into());
        let expected = format!("{alone}, or a cluster with --scylla");
        assert_eq!(hinted.to_string(), expected);
        assert!(hinted.is::<Unreachable>());
        let other = or_of_a_cluster(anyhow::anyhow!("u answers 404"));
        assert_eq!(other.to_string(), "u answers 404");
    }
}
