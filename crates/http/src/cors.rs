//! Which web pages of other origins may use a listener: cross-origin resource sharing.
//!
//! What must hold: only listed origins get permission, by exact comparison, and never to send
//! cookies; a preflight request gets an answer without a token and reads nothing.
//!
//! [`Hosts`](crate::Hosts) still checks every request. A listed origin may also make changes where
//! callers need no token.

use std::sync::Arc;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderValue, ORIGIN, VARY,
};
use hyper::{HeaderMap, Method};

/// The setting for all origins.
pub const ANY_ORIGIN: &str = "*";

/// The most origins of a listener.
pub const ORIGINS_MAX: usize = 100;

const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PATCH, DELETE");
/// The headers of requests that a page may set.
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, idempotency-key, if-none-match, last-event-id, traceparent, \
     waybill-operator, x-request-id",
);
/// The headers of answers that a page may read.
const ANSWER_HEADERS: HeaderValue =
    HeaderValue::from_static("allow, etag, location, retry-after, www-authenticate, x-request-id");
/// How long a browser may remember an answer to a preflight request, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The origins whose pages may use a listener; none by default.
#[derive(Clone, Debug, Default)]
pub struct Cors(Origins);

#[derive(Clone, Debug, Default)]
enum Origins {
    #[default]
    None,
    Any,
    Listed(Arc<[HeaderValue]>),
}

/// Why a text is not an origin.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadOrigin {
    /// It is not an origin, or is a list of them.
    #[error(
        "{0:?} is not an origin: it must be http:// or https://, a host in lower case and, unless it is the \
         default, a port, for example https://console.example.org:8443"
    )]
    Malformed(String),
    /// Browsers leave out the default port.
    #[error("{0:?} must omit its port, because browsers omit the default port of the scheme")]
    DefaultPort(String),
}

/// Checks an origin, or `*`.
///
/// # Errors
///
/// If no browser would send this text as the origin of a page.
pub fn check_origin(text: &str) -> Result<(), BadOrigin> {
    if text == ANY_ORIGIN {
        return Ok(());
    }
    let malformed = || BadOrigin::Malformed(text.to_owned());
    let (rest, default_port) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (rest, 80),
        (_, Some(rest)) => (rest, 443),
        (None, None) => return Err(malformed()),
    };
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !rest.ends_with(']') => (host, Some(port)),
        _ => (rest, None),
    };
    let is_good = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'_')
    };
    let is_host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_good),
    };
    if !is_host {
        return Err(malformed());
    }
    let Some(port) = port else {
        return Ok(());
    };
    match port.parse::<u16>() {
        Ok(number) if number == default_port => Err(BadOrigin::DefaultPort(text.to_owned())),
        Ok(number) if number != 0 && number.to_string() == port => Ok(()),
        _ => Err(malformed()),
    }
}

impl Cors {
    /// Permission for the pages of these origins, which [`check_origin`] accepts.
    #[must_use]
    pub fn new(origins: &[String]) -> Self {
        if origins.iter().any(|origin| origin == ANY_ORIGIN) {
            return Self(Origins::Any);
        }
        let values = origins
            .iter()
            .filter_map(|origin| HeaderValue::from_str(origin).ok());
        let values: Arc<[_]> = values.collect();
        Self(match values.is_empty() {
            true => Origins::None,
            false => Origins::Listed(values),
        })
    }

    /// The value of `Access-Control-Allow-Origin` for a request; `None` without permission.
    #[must_use]
    pub fn permitted(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if matches!(self.0, Origins::None) {
            return None;
        }
        let mut given = headers.get_all(ORIGIN).iter();
        let (Some(origin), None) = (given.next(), given.next()) else {
            return None;
        };
        match &self.0 {
            Origins::None => None,
            Origins::Any => Some(HeaderValue::from_static(ANY_ORIGIN)),
            Origins::Listed(listed) => listed.iter().find(|it| *it == origin).cloned(),
        }
    }

    /// Whether the list has exactly this origin; `*` does not count.
    pub(crate) fn lists(&self, origin: &str) -> bool {
        match &self.0 {
            Origins::None | Origins::Any => false,
            Origins::Listed(listed) => listed.iter().any(|it| it == origin),
        }
    }

    /// Whether a request is a permitted preflight request.
    #[must_use]
    pub fn is_preflight(&self, method: &Method, headers: &HeaderMap) -> bool {
        method == Method::OPTIONS
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            && self.permitted(headers).is_some()
    }

    /// Adds the permission of the page to an answer, and `Vary` if the answer depends on the
    /// origin.
    pub fn mark(&self, permitted: Option<HeaderValue>, answer: &mut HeaderMap) {
        if matches!(self.0, Origins::None) {
            return;
        }
        if matches!(self.0, Origins::Listed(_)) {
            answer.append(VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(origin) = permitted {
            answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, ANSWER_HEADERS);
        }
    }

    /// Adds the permitted methods and headers to the answer to a preflight request.
    pub fn answer_preflight(answer: &mut HeaderMap) {
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS);
        answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(origins: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for origin in origins {
            headers.append(ORIGIN, origin.parse().unwrap());
        }
        headers
    }

    fn cors(origins: &[&str]) -> Cors {
        let origins: Vec<_> = origins.iter().map(|origin| origin.to_string()).collect();
        Cors::new(&origins)
    }

    #[test]
    fn only_listed_origins_get_permission() {
        let listed = cors(&["https://a.example", "http://localhost:5173"]);
        let permitted = |cors: &Cors, given: &[&str]| cors.permitted(&headers(given));
        for good in ["https://a.example", "http://localhost:5173"] {
            assert_eq!(permitted(&listed, &[good]).unwrap(), good);
        }
        for bad in [
            &[][..],
            &["https://b.example"],
            &["http://a.example"],
            &["https://a.example:443"],
            &["https://A.example"],
            &["https://a.example.evil"],
            &["https://xa.example"],
            &["null"],
            &["*"],
            &["https://a.example", "https://a.example"],
        ] {
            assert_eq!(permitted(&listed, bad), None, "{bad:?}");
        }
        assert_eq!(permitted(&cors(&[]), &["https://a.example"]), None);
        assert_eq!(
            permitted(&cors(&["*"]), &["https://b.example"]).unwrap(),
            "*"
        );
        assert_eq!(permitted(&cors(&["*"]), &[]), None);
    }

    #[test]
    fn an_answer_names_the_origin_and_that_it_depends_on_it_but_never_cookies() {
        let listed = cors(&["https://a.example"]);
        let marked = |given: &[&str]| {
            let mut answer = HeaderMap::new();
            listed.mark(listed.permitted(&headers(given)), &mut answer);
            answer
        };
        let permitted = marked(&["https://a.example"]);
        assert_eq!(permitted[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(permitted[VARY], "Origin");
        assert!(!permitted.contains_key("access-control-allow-credentials"));
        for other in [marked(&["https://b.example"]), marked(&[])] {
            assert_eq!(other[VARY], "Origin");
            assert_eq!(other.len(), 1);
        }
        let mut answer = HeaderMap::new();
        cors(&[]).mark(None, &mut answer);
        assert!(answer.is_empty());
    }

    #[test]
    fn only_what_a_browser_sends_as_an_origin_can_be_listed() {
        for good in [
            "*",
            "https://console.example.org",
            "http://localhost:5173",
            "http://127.0.0.1:8080",
            "https://[::1]:8443",
            "https://[fd00::1]",
            "http://a:443",
        ] {
            assert_eq!(check_origin(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "null",
            "console.example.org",
            "https://",
            "https://console.example.org/",
            "https://console.example.org/app",
            "https://Console.example.org",
            "https://*.example.org",
            "https://a.example,https://b.example",
            "https://user@a.example",
            "https://a.example:",
            "https://a.example:0",
            "https://a.example:08443",
            "https://a.example:70000",
            "https://[::1",
            "https://[a]",
            "ftp://a.example",
            "HTTPS://a.example",
        ] {
            let malformed = Err(BadOrigin::Malformed(bad.to_owned()));
            assert_eq!(check_origin(bad), malformed, "{bad}");
        }
        for bad in ["https://a.example:443", "http://a.example:80"] {
            let port = Err(BadOrigin::DefaultPort(bad.to_owned()));
            assert_eq!(check_origin(bad), port);
        }
    }
}
