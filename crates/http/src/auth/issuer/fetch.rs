//! Fetches the keys of an issuer over HTTP.
//!
//! What must hold: a response is bounded in size and in time, and no redirect is followed, because
//! it could lead to an address that is not trusted.

use std::time::Duration;

use reqwest::header::ACCEPT;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode, Url};

use super::address::{KeysAddress, MetadataError, keys_url};
use crate::auth::JwtConfig;
use waybill_tls::reread::{FILE_BYTES_MAX, FileRefused, Reread};

const CA_FILE: &str = "auth.jwt.caFile";

/// Why keys could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(in crate::auth) enum FetchError {
    /// There is no response, or it ends early.
    #[error("{url} cannot be read")]
    Unreachable {
        url: Url,
        #[source]
        cause: reqwest::Error,
    },
    /// The response is not 200.
    #[error("{url} answered {status}{}", of_redirect(.status))]
    Status { url: Url, status: StatusCode },
    /// The response is too large.
    #[error("{url} answered more than {FILE_BYTES_MAX} bytes")]
    TooLarge { url: Url },
    /// The metadata is refused.
    #[error("{url} is refused")]
    Metadata {
        url: Url,
        #[source]
        cause: MetadataError,
    },
}

fn of_redirect(status: &StatusCode) -> &'static str {
    match status.is_redirection() {
        true => ", and redirects are not followed",
        false => "",
    }
}

/// Fetches keys. The certificates that it trusts are read again when they change.
#[derive(Debug)]
pub(in crate::auth) enum Fetcher {
    /// Trusts the system's certificates.
    System(Client),
    /// Trusts those of a file as well.
    File(Reread<Client>),
}

/// A set of keys, and where it is from.
#[derive(PartialEq, Eq)]
pub(in crate::auth) struct KeySet {
    pub(super) url: Url,
    pub(super) text: Vec<u8>,
}

impl Fetcher {
    pub(super) fn new(config: &JwtConfig) -> Result<Self, FileRefused> {
        let timeout = config.request_timeout;
        let Some(path) = config.ca_file.clone() else {
            let client = client(timeout, Vec::new());
            let refused = |problem| FileRefused {
                key: "auth.jwt".into(),
                problem,
            };
            return client.map(Self::System).map_err(refused);
        };
        let name = path.display().to_string();
        let read = move |texts: &[Vec<u8>]| {
            let certificates = Certificate::from_pem_bundle(&texts[0]);
            let certificates = certificates.ok().filter(|found| !found.is_empty());
            let certificates =
                certificates.ok_or_else(|| format!("{name} contains no certificate (PEM)"))?;
            client(timeout, certificates)
        };
        Reread::open(CA_FILE, vec![path], read).map(Self::File)
    }

    /// Reads the certificates again if they have changed. Blocks.
    pub(super) fn reload(&self) {
        if let Self::File(client) = self {
            client.reload();
        }
    }

    fn client(&self) -> Client {
        match self {
            Self::System(client) => client.clone(),
            Self::File(client) => Client::clone(&client.get()),
        }
    }

    /// Fetches the keys.
    pub(super) async fn fetch(&self, address: &KeysAddress) -> Result<KeySet, FetchError> {
        let client = self.client();
        let url = match address {
            KeysAddress::Keys(url) => url.clone(),
            KeysAddress::Metadata { issuer, url } => {
                let metadata = get(&client, url).await?;
                keys_url(issuer, &metadata).map_err(|cause| FetchError::Metadata {
                    url: url.clone(),
                    cause,
                })?
            }
        };
        let text = get(&client, &url).await?;
        Ok(KeySet { url, text })
    }
}

fn client(timeout: Duration, certificates: Vec<Certificate>) -> Result<Client, String> {
    Client::builder()
        .user_agent(concat!("waybill/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .no_proxy()
        .timeout(timeout)
        .tls_certs_merge(certificates)
        .build()
        .map_err(|error| waybill_telemetry::chain(&error))
}

/// The body of a resource.
async fn get(client: &Client, url: &Url) -> Result<Vec<u8>, FetchError> {
    let unreachable = |cause: reqwest::Error| FetchError::Unreachable {
        url: url.clone(),
        cause: cause.without_url(),
    };
    let request = client.get(url.clone()).header(ACCEPT, "application/json");
    let mut response = request.send().await.map_err(unreachable)?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status {
            url: url.clone(),
            status: response.status(),
        });
    }
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(unreachable)? {
        if (body.len() + part.len()) as u64 > FILE_BYTES_MAX {
            return Err(FetchError::TooLarge { url: url.clone() });
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}
