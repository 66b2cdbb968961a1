//! Asking the process that has an embedded store, on its admin port.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use reqwest::{Client, RequestBuilder};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::Config;

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The URL of a page on the admin port.
pub(super) fn url(config: &Config, path: &str) -> String {
    format!("http://{}{path}", reached_at(config.admin.listen))
}

/// Where a listener is reached: on this machine, if it listens on all addresses.
pub(super) fn reached_at(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        ip if !ip.is_unspecified() => ip,
        ip if ip.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
        _ => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listener.port())
}

/// A client for it.
pub(super) fn client() -> anyhow::Result<Client> {
    Ok(Client::builder().timeout(PATIENCE).build()?)
}

/// What it answers to a request to `url`.
///
/// # Errors
///
/// If it does not answer, refuses it, or answers something else.
pub(super) async fn answered<T: DeserializeOwned>(
    url: &str,
    request: RequestBuilder,
) -> anyhow::Result<T> {
    let answer = request.send().await.with_context(|| {
        format!(
            "{url} does not answer: name the admin port of `up` with --admin, or a cluster with --scylla"
        )
    })?;
    let status = answer.status();
    let body = answer.bytes().await?;
    if !status.is_success() {
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let of_field = problem["errors"][0]["detail"].as_str();
        let detail = of_field.or(problem["detail"].as_str());
        anyhow::bail!("{url} answers {status}: {}", detail.unwrap_or("no detail"));
    }
    serde_json::from_slice(&body).with_context(|| format!("{url} answers something else"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_this_machine() {
        let mut config = Config::default();
        for (listen, expected) in [
            ("127.0.0.1:8081", "http://127.0.0.1:8081/readyz"),
            ("0.0.0.0:9", "http://127.0.0.1:9/readyz"),
            ("[::]:9", "http://[::1]:9/readyz"),
            ("10.1.2.3:9", "http://10.1.2.3:9/readyz"),
        ] {
            config.admin.listen = listen.parse().unwrap();
            assert_eq!(url(&config, "/readyz"), expected);
        }
    }
}
