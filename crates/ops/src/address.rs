//! The address of the API or of an admin port.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use reqwest::Url;
use waybill_node::config::Config;

/// The address of the API or of an admin port: the URL without a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ApiAddress {
    url: String,
    /// The setting of the listener, if the address comes from the configuration and not from a
    /// flag.
    setting: Option<&'static str>,
}

impl ApiAddress {
    /// The given address of the API, or else the configured one.
    pub(crate) fn of_configuration(named: Option<&Self>, config: &Config) -> Result<Self, String> {
        let http = &config.http;
        match named {
            Some(address) => Ok(address.clone()),
            None => {
                Self::of_listener(http.listen, http.tls.is_on(), "--http").map(|address| Self {
                    setting: Some("http.listen (--http)"),
                    ..address
                })
            }
        }
    }

    /// Where the API's address comes from, and which flag overrides it.
    pub(crate) fn origin(&self) -> String {
        match self.setting {
            Some(setting) => {
                format!("The address comes from {setting}; --api URL overrides it")
            }
            None => "The address comes from --api".to_owned(),
        }
    }

    /// The address of a configured listener, which `flag` sets. An unspecified IP address becomes
    /// loopback.
    pub(crate) fn of_listener(
        listener: SocketAddr,
        is_encrypted: bool,
        flag: &str,
    ) -> Result<Self, String> {
        if listener.port() == 0 {
            return Err(format!(
                "the API chooses the port of {listener} when it starts: give the address that it \
                 printed then, with {flag}"
            ));
        }
        let ip = match listener.ip() {
            ip if !ip.is_unspecified() => ip,
            ip if ip.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
            _ => Ipv6Addr::LOCALHOST.into(),
        };
        let address = SocketAddr::new(ip, listener.port());
        let scheme = if is_encrypted { "https" } else { "http" };
        Ok(Self {
            url: format!("{scheme}://{address}"),
            setting: None,
        })
    }
}

impl FromStr for ApiAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Url::parse(text).map_err(|_| "expected a URL such as https://host:8080")?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("expected a URL that begins with http:// or https://");
        }
        // The error for an unreachable API shows the address.
        if !url.username().is_empty() || url.password().is_some() {
            return Err("expected a URL without a user name and password");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("expected a URL without a query or a fragment");
        }
        Ok(Self {
            url: url.as_str().trim_end_matches('/').to_owned(),
            setting: None,
        })
    }
}

impl fmt::Display for ApiAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(text: &str) -> Result<String, String> {
        ApiAddress::of_listener(text.parse().unwrap(), false, "--http")
            .map(|address| address.to_string())
    }

    #[test]
    fn an_api_on_all_addresses_is_called_on_loopback() {
        assert_eq!(listener("0.0.0.0:81").unwrap(), "http://127.0.0.1:81");
        assert_eq!(listener("[::]:81").unwrap(), "http://[::1]:81");
        assert_eq!(listener("10.1.2.3:81").unwrap(), "http://10.1.2.3:81");
        let encrypted = ApiAddress::of_listener("[::1]:81".parse().unwrap(), true, "--admin");
        assert_eq!(encrypted.unwrap().to_string(), "https://[::1]:81");
        assert!(listener("127.0.0.1:0").unwrap_err().contains("--http"));
    }

    #[test]
    fn an_address_names_its_source() {
        let origin = |named: Option<&str>| {
            let named = named.map(|url| url.parse().unwrap());
            let address = ApiAddress::of_configuration(named.as_ref(), &Config::default());
            address.unwrap().origin()
        };
        assert_eq!(
            origin(None),
            "The address comes from http.listen (--http); --api URL overrides it"
        );
        assert_eq!(origin(Some("http://h")), "The address comes from --api");
    }

    #[test]
    fn an_address_may_have_a_path_but_no_query_and_no_secret() {
        let read = |text: &str| text.parse().map(|address: ApiAddress| address.to_string());
        assert_eq!(read("https://h/").unwrap(), "https://h");
        assert_eq!(read("http://h:81/way/").unwrap(), "http://h:81/way");
        for bad in [
            "h:81",
            "ftp://h",
            "http://a:b@h",
            "http://h?x=1",
            "http://h#x",
            "",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
