//! Which hosts a listener answers for, and which web pages may change something there.
//!
//! Why it exists. A listener that needs no token trusts the network that reaches it. But any web
//! page can reach a web browser on that network. The page can make its own host name resolve to
//! this machine (DNS rebinding) and then read answers, and it can send simple requests anywhere.
//! The browser reveals both: the first by `Host`, the second by `Origin` and `Sec-Fetch-Site`
//! ([Fetch Metadata][1]).
//!
//! What must hold: a request passes only if its host is an IP address, `localhost` or a configured
//! name, and a change passes only if no page of another origin requests it, unless the origin is
//! listed. An origin includes the scheme: the listener's own, or `https` with a configured name,
//! for a proxy that terminates TLS.
//! Clients other than browsers send only `Host` of these headers.
//!
//! [1]: https://www.w3.org/TR/fetch-metadata/

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use hyper::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, Uri};

use crate::Cors;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

const HTTP: &str = "http://";
const HTTPS: &str = "https://";

/// Accepts every name.
const ANY_NAME: &str = "*";

/// The hosts that a listener answers for.
#[derive(Clone, Debug)]
pub struct Hosts(Rule);

#[derive(Clone, Debug)]
enum Rule {
    /// All hosts, and pages of all origins: callers must authenticate.
    Any,
    /// IP addresses, `localhost`, and these names, as [`normal`] makes them.
    Local {
        names: Arc<[String]>,
        has_tls: bool,
        /// Pages of these origins may make changes, too.
        cors: Cors,
    },
}

/// Why a request was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Foreign {
    /// The listener does not answer for the host of the request.
    #[error(
        "unknown host {0:?}: use an IP address or localhost, or list the name in http.hosts \
         (admin.hosts for the admin port)"
    )]
    Host(String),
    /// A web page of another origin requests a change.
    #[error("a web page of another origin ({0}) cannot make changes")]
    Page(String),
}

impl Default for Hosts {
    fn default() -> Self {
        Self::any()
    }
}

impl Hosts {
    /// The hosts of a listener whose callers must authenticate.
    #[must_use]
    pub const fn any() -> Self {
        Self(Rule::Any)
    }

    /// The hosts of a listener without authentication, with or without TLS: IP addresses,
    /// `localhost` and `names`. The name `*` accepts every name, and pages of all origins.
    #[must_use]
    pub fn local(names: &[String], has_tls: bool) -> Self {
        if names.iter().any(|name| name == ANY_NAME) {
            return Self::any();
        }
        let names = names.iter().map(|name| normal(name)).collect();
        Self(Rule::Local {
            names,
            has_tls,
            cors: Cors::default(),
        })
    }

    /// The same hosts. Pages of the origins that `origins` lists may make changes, like those of
    /// the listener's own origin.
    #[must_use]
    pub fn with_origins(self, origins: &Cors) -> Self {
        match self.0 {
            Rule::Any => self,
            Rule::Local { names, has_tls, .. } => Self(Rule::Local {
                names,
                has_tls,
                cors: origins.clone(),
            }),
        }
    }

    /// Checks whether a request may pass.
    ///
    /// # Errors
    ///
    /// If its host is not one of these, or if a web page of another origin requests a change.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Foreign> {
        let Rule::Local {
            names,
            has_tls,
            cors,
        } = &self.0
        else {
            return Ok(());
        };
        let mut hosts = headers.get_all(HOST).iter().map(HeaderValue::to_str);
        let named = hosts.next().and_then(Result::ok);
        if let Some(another) = hosts.next() {
            return Err(Foreign::Host(another.unwrap_or_default().to_owned()));
        }
        let target = uri.authority().map(Authority::as_str);
        let Some(own) = target.or(named) else {
            return Err(Foreign::Host(String::new()));
        };
        for host in [target, named].into_iter().flatten() {
            if !is_local(host_of(host), names) {
                return Err(Foreign::Host(host.to_owned()));
            }
        }
        if method == Method::GET || method == Method::HEAD || method == Method::OPTIONS {
            return Ok(());
        }
        let schemes: &[&str] = match has_tls {
            true => &[HTTPS],
            // A proxy in front may terminate TLS.
            false if names.contains(&normal(host_of(own))) => &[HTTP, HTTPS],
            false => &[HTTP],
        };
        let is_own = |origin: &str| is_of(origin, own, schemes);
        let is_same_site = |site: &str| site == "same-origin" || site == "none";
        let mut origins = headers.get_all(ORIGIN).iter().map(HeaderValue::to_str);
        if let (Some(Ok(only)), None) = (origins.next(), origins.next())
            && cors.lists(only)
        {
            return Ok(());
        }
        all(headers, &ORIGIN, is_own)?;
        all(headers, &SEC_FETCH_SITE, is_same_site)
    }
}

/// Whether a web page may have sent a request: browsers name its origin, at least with every
/// change.
#[must_use]
pub fn is_from_page(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE)
}

/// Checks that `is_good` accepts every value of a header.
fn all(
    headers: &HeaderMap,
    name: &HeaderName,
    is_good: impl Fn(&str) -> bool,
) -> Result<(), Foreign> {
    for value in headers.get_all(name) {
        let value = value.to_str().unwrap_or("not text");
        if !is_good(value) {
            return Err(Foreign::Page(value.to_owned()));
        }
    }
    Ok(())
}

/// Whether an origin, such as `http://localhost:8080`, is that of a host and port, with one of
/// `schemes`.
fn is_of(origin: &str, own: &str, schemes: &[&str]) -> bool {
    let mut hosts = schemes
        .iter()
        .filter_map(|scheme| origin.strip_prefix(scheme));
    hosts.any(|host| host.eq_ignore_ascii_case(own))
}

fn is_local(host: &str, names: &[String]) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']');
        return address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    let host = normal(host);
    host.parse::<IpAddr>().is_ok() || host == "localhost" || names.contains(&host)
}

/// A host without its port.
fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// The normal form of a host, for comparison: lower case and no trailing dot; for an IP address its
/// usual form, without brackets.
fn normal(name: &str) -> String {
    let name = name.strip_suffix('.').unwrap_or(name);
    let bracketed = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    match bracketed.unwrap_or(name).parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(hosts: &Hosts, method: Method, headers: &[(&str, &str)]) -> Result<(), Foreign> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, value.parse().unwrap());
        }
        hosts.check(&method, &Uri::from_static("/v1/operations"), &map)
    }

    #[test]
    fn only_addresses_localhost_and_configured_names_are_served() {
        let hosts = Hosts::local(&["Waybill.example".to_owned()], false);
        let get = |host: &str| checked(&hosts, Method::GET, &[("host", host)]);
        for good in [
            "127.0.0.1:8080",
            "10.1.2.3",
            "[::1]:8080",
            "[::1]",
            "localhost",
            "LOCALHOST:8080",
            "localhost.:8080",
            "waybill.example:8080",
        ] {
            assert_eq!(get(good), Ok(()), "{good}");
        }
        for bad in [
            "attacker.example:8080",
            "localhost.attacker.example",
            "127.0.0.1.attacker.example",
            "waybill.example.attacker.example",
            "[::1",
            "[localhost]",
            "",
            "localhost:80:80",
            "localhost..",
        ] {
            assert_eq!(get(bad), Err(Foreign::Host(bad.to_owned())), "{bad}");
        }
        assert!(checked(&hosts, Method::GET, &[]).is_err(), "no host");
        let any = Hosts::local(&["*".to_owned()], false);
        let attacker = [("host", "attacker.example")];
        assert_eq!(checked(&any, Method::POST, &attacker), Ok(()));
    }

    #[test]
    fn the_request_target_is_checked_like_the_host() {
        let hosts = Hosts::local(&[], false);
        let check = |uri: &'static str, host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            hosts.check(&Method::GET, &Uri::from_static(uri), &headers)
        };
        assert!(check("http://localhost/", "localhost").is_ok());
        assert!(check("http://attacker.example/", "localhost").is_err());
        assert!(check("http://localhost/", "attacker.example").is_err());
    }

    #[test]
    fn pages_of_other_origins_may_change_nothing() {
        let hosts = Hosts::local(&[], false);
        let with = |method: Method, header: (&str, &str)| {
            checked(&hosts, method, &[("host", "localhost:8080"), header])
        };
        for own in [
            ("origin", "http://localhost:8080"),
            ("origin", "http://LOCALHOST:8080"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
            ("accept", "*/*"),
        ] {
            assert_eq!(with(Method::POST, own), Ok(()), "{own:?}");
        }
        for foreign in [
            ("origin", "http://attacker.example"),
            ("origin", "http://localhost:8081"),
            ("origin", "http://localhost"),
            ("origin", "https://localhost:8080"),
            ("origin", "ftp://localhost:8080"),
            ("origin", "localhost:8080"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "CROSS-SITE"),
        ] {
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                let refused = Err(Foreign::Page(foreign.1.to_owned()));
                assert_eq!(with(method, foreign), refused, "{foreign:?}");
            }
            assert_eq!(with(Method::GET, foreign), Ok(()), "{foreign:?}");
        }
        let host = ("host", "localhost:8080");
        let own = ("origin", "http://localhost:8080");
        let two = [host, own, ("origin", "http://attacker.example")];
        assert!(checked(&hosts, Method::POST, &two).is_err(), "each counts");
        let two = [host, ("host", "attacker.example")];
        assert!(checked(&hosts, Method::GET, &two).is_err(), "two hosts");
    }

    #[test]
    fn pages_of_listed_origins_may_make_changes_on_hosts_that_the_listener_answers_for() {
        let listed = Cors::new(&["https://console.example".to_owned()]);
        let hosts = Hosts::local(&[], false).with_origins(&listed);
        let page = ("origin", "https://console.example");
        let site = ("sec-fetch-site", "cross-site");
        let post = |headers: &[(&str, &str)]| checked(&hosts, Method::POST, headers);
        let host = ("host", "localhost:8080");
        assert_eq!(post(&[host, page, site]), Ok(()));
        for refused in [
            &[host, ("origin", "https://other.example"), site][..],
            &[host, ("origin", "http://console.example"), site],
            &[host, page, ("origin", "https://other.example")],
            &[host, page, page, site],
            &[host, site],
            &[("host", "console.example"), page, site],
        ] {
            assert!(post(refused).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn a_page_has_the_scheme_of_the_listener_or_of_a_proxy_before_a_configured_name() {
        let names = ["Waybill.example", "10.0.0.9", "fd00::1", "[FD00:0::2]"].map(str::to_owned);
        let change = |has_tls: bool, scheme: &str, host: &str| {
            let origin = format!("{scheme}://{host}");
            let headers = [("host", host), ("origin", &origin)];
            checked(&Hosts::local(&names, has_tls), Method::POST, &headers)
        };
        for host in ["localhost:8080", "10.1.2.3", "[::1]:8080"] {
            assert_eq!(change(false, "http", host), Ok(()), "{host}");
            assert!(change(false, "https", host).is_err(), "{host}");
        }
        for host in [
            "waybill.example",
            "WAYBILL.example.:8080",
            "10.0.0.9",
            "[fd00::1]:8443",
            "[fd00:0::1]",
            "[fd00::2]",
        ] {
            assert_eq!(change(false, "http", host), Ok(()), "{host}");
            assert_eq!(change(false, "https", host), Ok(()), "{host}");
        }
        for host in ["localhost:8443", "10.1.2.3", "waybill.example"] {
            assert_eq!(change(true, "https", host), Ok(()), "{host}");
            assert!(change(true, "http", host).is_err(), "{host}");
        }
    }
}
