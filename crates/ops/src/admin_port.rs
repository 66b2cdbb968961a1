//! The client of a process's admin port.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::access::{AccessArgs, Silence};

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// It refuses what it is asked.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub(crate) struct Refused {
    status: StatusCode,
    said: String,
}

impl Refused {
    /// Whether the page is not available, as while a process starts or stops.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(
            self.status,
            StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE
        )
    }

    /// Whether somebody else may have it done.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.status == StatusCode::FORBIDDEN
    }
}

/// Nobody answers.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub(crate) struct Away {
    said: String,
}

impl Away {
    pub(crate) fn new(url: &str, why: &str) -> Self {
        let hint = "name the admin port of `up` with --admin or --admin-url";
        Self {
            said: format!("{url} does not answer ({why}): {hint}"),
        }
    }
}

/// The same error with the hint of whoever could ask a cluster as well, where nobody answers.
pub(crate) fn or_of_a_cluster(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<Away>() {
        Ok(Away { said }) => {
            let said = format!("{said}, or a cluster with --scylla");
            Away { said }.into()
        }
        Err(other) => other,
    }
}

/// A client for it.
///
/// # Errors
///
/// If what it needs to get in cannot be read.
pub(crate) fn client(access: &AccessArgs) -> anyhow::Result<Client> {
    let client = Client::builder()
        .timeout(PATIENCE)
        .redirect(Policy::none())
        .no_proxy();
    Ok(access.apply(client)?.build()?)
}

/// A client for an answer that goes on for long: each piece of it may take so long.
///
/// # Errors
///
/// If what it needs to get in cannot be read.
pub(crate) fn streaming_client(access: &AccessArgs, patience: Duration) -> anyhow::Result<Client> {
    let client = Client::builder()
        .connect_timeout(PATIENCE)
        .read_timeout(patience)
        .redirect(Policy::none())
        .no_proxy();
    Ok(access.apply(client)?.build()?)
}

/// What it answers to a request to `url`.
///
/// # Errors
///
/// If it does not answer, refuses it, or answers something else.
pub(crate) async fn answered<T: DeserializeOwned>(
    url: &str,
    request: RequestBuilder,
) -> anyhow::Result<T> {
    let answer = accepted(url, request).await?;
    let body = answer.bytes().await?;
    serde_json::from_slice(&body).with_context(|| format!("{url} answers something else"))
}

/// Its answer to a request to `url`, which it does not refuse.
///
/// # Errors
///
/// If it does not answer, or refuses it.
pub(crate) async fn accepted(url: &str, request: RequestBuilder) -> anyhow::Result<Response> {
    let answer = request.send().await;
    let answer = answer.map_err(|error| match Silence::of(&error) {
        Silence::Away(why) => anyhow::Error::from(Away::new(url, &why)),
        Silence::Distrusted(why) => anyhow::anyhow!("{url} answers, but {why}"),
    })?;
    let status = answer.status();
    if !status.is_success() {
        let body = answer.bytes().await?;
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let of_field = problem["errors"][0]["detail"].as_str();
        let detail = of_field.or(problem["detail"].as_str());
        let hint = match status {
            StatusCode::UNAUTHORIZED => " (--token-file)",
            _ => "",
        };
        let detail = detail.unwrap_or("no detail");
        return Err(Refused {
            status,
            said: format!("{url} answers {status}: {detail}{hint}"),
        }
        .into());
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_named_only_where_nobody_answers_and_one_could_be_asked() {
        let alone =
            "u does not answer (refused): name the admin port of `up` with --admin or --admin-url";
        let away = || Away::new("u", "refused");
        assert_eq!(away().to_string(), alone);
        let hinted = or_of_a_cluster(away().into());
        let expected = format!("{alone}, or a cluster with --scylla");
        assert_eq!(hinted.to_string(), expected);
        assert!(hinted.is::<Away>());
        let other = or_of_a_cluster(anyhow::anyhow!("u answers 404"));
        assert_eq!(other.to_string(), "u answers 404");
    }
}
