//! Redirects that an agent follows.
//!
//! What must hold: no request goes to a host that the configuration does not name, and no
//! credential to another host, or from `https://` to `http://`.

use bytes::Bytes;
use hyper::header::{COOKIE, HeaderName, LOCATION};
use hyper::http::uri::{Parts, Scheme};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use schemars::JsonSchema;
use serde::Deserialize;

use super::LoadError;
use super::plan::CREDENTIAL_HEADERS;

const REDIRECTS_MAX: usize = 10;

/// Which redirects an agent follows. Default: none.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RedirectsConfig {
    /// Maximum number of redirects of one request, from 1 to 10.
    pub max: usize,
    /// Other hosts that a request may be redirected to: `files.example`, or `files.example:8443`.
    /// Requests to the host of `baseUrl` are always allowed. Default: none.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// Where a redirect leads.
#[derive(Debug)]
pub(super) enum Redirect {
    /// To this request, and whether its host is another one than the service's.
    To(Box<Request<Bytes>>, bool),
    /// Nowhere, for this reason.
    Refused(String),
}

impl RedirectsConfig {
    pub(super) fn check(&self) -> Result<(), LoadError> {
        if !(1..=REDIRECTS_MAX).contains(&self.max) {
            return Err(LoadError::invalid("redirects.max", "must be from 1 to 10"));
        }
        let is_malformed = |host: &&String| {
            let authority = host.parse::<hyper::http::uri::Authority>();
            !authority.is_ok_and(|it| !it.as_str().contains('@') && !it.host().is_empty())
        };
        match self.hosts.iter().find(is_malformed) {
            Some(host) => Err(LoadError::invalid(
                "redirects.hosts",
                format!("{host:?} is not a host, or a host and a port"),
            )),
            None => Ok(()),
        }
    }

    /// Where the answer to `request` leads, after `followed` redirects; `None` if it is not a
    /// redirect for this method.
    pub(super) fn next(
        &self,
        service: &Uri,
        request: &Request<Bytes>,
        (status, headers): (StatusCode, &HeaderMap),
        followed: usize,
    ) -> Option<Redirect> {
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        match status {
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {}
            // Services disagree on what these mean for other methods.
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER
                if is_read => {}
            _ => return None,
        }
        let to = headers.get(LOCATION)?.to_str().ok();
        let Some(to) = to.and_then(|to| resolve(request.uri(), to)) else {
            return Some(Redirect::Refused("its Location is not a URL".to_owned()));
        };
        if followed == self.max {
            return Some(Redirect::Refused(format!(
                "there were {followed} redirects before"
            )));
        }
        if request.uri().scheme() == Some(&Scheme::HTTPS) && to.scheme() != Some(&Scheme::HTTPS) {
            return Some(Redirect::Refused("it leads to http://".to_owned()));
        }
        let is_elsewhere = !is_same(service, &to);
        if is_elsewhere && !self.hosts.iter().any(|host| is_host(host, &to)) {
            let host = to.authority().map(|it| it.as_str()).unwrap_or_default();
            return Some(Redirect::Refused(format!(
                "{host} is not among redirects.hosts"
            )));
        }
        let mut next = request.clone();
        *next.uri_mut() = to;
        if is_elsewhere {
            for name in CREDENTIAL_HEADERS {
                next.headers_mut().remove(HeaderName::from_static(name));
            }
            next.headers_mut().remove(COOKIE);
        }
        Some(Redirect::To(Box::new(next), is_elsewhere))
    }
}

/// The absolute form of a `Location`: a URL, or a path on the same host.
fn resolve(from: &Uri, to: &str) -> Option<Uri> {
    // A client does not send the fragment (RFC 9110, section 10.2.2).
    let to = to.split('#').next().unwrap_or_default();
    let uri: Uri = to.parse().ok()?;
    let is_http = [&Scheme::HTTP, &Scheme::HTTPS]
        .iter()
        .any(|scheme| uri.scheme() == Some(scheme));
    if is_http && uri.authority().is_some_and(|it| !it.as_str().contains('@')) {
        return Some(uri);
    }
    if !to.starts_with('/') || to.starts_with("//") {
        return None;
    }
    let mut parts = Parts::default();
    parts.scheme = from.scheme().cloned();
    parts.authority = from.authority().cloned();
    parts.path_and_query = uri.into_parts().path_and_query;
    Uri::from_parts(parts).ok()
}

/// Whether both have the same scheme, host and port.
pub(super) fn is_same(one: &Uri, other: &Uri) -> bool {
    one.scheme() == other.scheme()
        && one.host().map(str::to_ascii_lowercase) == other.host().map(str::to_ascii_lowercase)
        && port(one) == port(other)
}

fn is_host(host: &str, uri: &Uri) -> bool {
    let found = uri.host().unwrap_or_default();
    let with_port = format!("{found}:{}", port(uri));
    let is_default = port(uri) == default_port(uri);
    host.eq_ignore_ascii_case(&with_port) || (is_default && host.eq_ignore_ascii_case(found))
}

fn port(uri: &Uri) -> u16 {
    uri.port_u16().unwrap_or_else(|| default_port(uri))
}

fn default_port(uri: &Uri) -> u16 {
    match uri.scheme() == Some(&Scheme::HTTPS) {
        true => 443,
        false => 80,
    }
}
