//! The listeners of each role: which are reachable without authentication, and which share an
//! address.
//!
//! What must hold: no process has an unauthenticated, reachable listener unless `insecure` allows
//! it. Only loopback addresses count as unreachable: the program does not guess what a network
//! permits.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use waybill_config::ConfigError;
use waybill_http::auth::Auth;
use waybill_http::{Tls, TlsConfig};

use crate::Role;
use crate::config::Config;

/// A listener of a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listens {
    /// The configuration key of its address.
    key: &'static str,
    /// The command-line flag for its address.
    flag: &'static str,
    address: SocketAddr,
    /// How it is protected.
    guard: Guard,
}

/// The protection of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Guard {
    /// It can require tokens, over encrypted connections or not.
    Tokens { encrypted: bool },
    /// None; `way_out` names the alternative to the loopback interface.
    None { way_out: &'static str },
}

impl Listens {
    /// The configuration key of its address, and the flag for it.
    #[must_use]
    pub fn setting(&self) -> String {
        format!("{} ({})", self.key, self.flag)
    }

    /// The configured address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl fmt::Display for Listens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key, flag, address, ..
        } = self;
        write!(f, "{key} ({flag}) is {address}")
    }
}

/// The reachable listeners of a role that require no authentication.
#[must_use]
pub fn exposed(role: Role, config: &Config) -> Vec<Listens> {
    let mut open = reachable(role, config);
    let asks = |guard| matches!(guard, Guard::Tokens { .. }) && config.auth.is_on();
    open.retain(|listener| !asks(listener.guard));
    open
}

/// The reachable listeners of a role that receive tokens unencrypted.
#[must_use]
pub fn in_the_clear(role: Role, config: &Config) -> Vec<Listens> {
    let mut open = reachable(role, config);
    open.retain(|listener| {
        config.auth.is_on() && listener.guard == Guard::Tokens { encrypted: false }
    });
    open
}

/// The listeners of a role that require no token because authentication is off, in one line. `None`
/// if it is on, or if the role has no listener that could require one.
#[must_use]
pub fn open_to_all(role: Role, config: &Config) -> Option<String> {
    if config.auth.is_on() {
        return None;
    }
    let asks = |listener: &Listens| matches!(listener.guard, Guard::Tokens { .. });
    let open: Vec<String> = listeners(role, config)
        .into_iter()
        .filter(asks)
        .map(|listener| format!("{} {}", listener.key, listener.address))
        .collect();
    (!open.is_empty()).then(|| open.join(", "))
}

/// The listeners of a role that other machines can reach.
fn reachable(role: Role, config: &Config) -> Vec<Listens> {
    let mut open = listeners(role, config);
    open.retain(|listener| !is_loopback(listener.address.ip()));
    open
}

/// All listeners of a role.
#[must_use]
pub fn listeners(role: Role, config: &Config) -> Vec<Listens> {
    let listener = |key, flag, address, guard| Listens {
        key,
        flag,
        address,
        guard,
    };
    let asking = |tls: &TlsConfig| Guard::Tokens {
        encrypted: tls.is_on(),
    };
    let http = &config.http;
    let http = listener("http.listen", "--http", http.listen, asking(&http.tls));
    let admin = &config.admin;
    let admin = listener("admin.listen", "--admin", admin.listen, asking(&admin.tls));
    let broker = listener(
        "broker.listen",
        "--broker-listen",
        config.broker.listen,
        Guard::Tokens { encrypted: false },
    );
    let services = listener(
        "services.listen",
        "--services",
        config.services.listen,
        Guard::None {
            way_out: "do not run the simulated services (--no-services)",
        },
    );
    let mut open = vec![admin];
    match role {
        Role::Up {
            services: has_services,
            ..
        } => {
            open.push(http);
            if config.kafka.brokers.is_none() {
                open.push(broker);
            }
            if has_services {
                open.push(services);
            }
        }
        Role::Ingestion => open.push(http),
        Role::Broker => open.push(broker),
        Role::Services => open.push(services),
        Role::Agents | Role::Scheduler | Role::Supervisor => {}
    }
    open
}

/// Checks before the start that a role may listen as configured, that its addresses do not overlap,
/// and that its token, key and certificate files are usable. A failure is a refusal (exit code 2).
///
/// # Errors
///
/// If one of these checks fails.
pub fn check_with_files(role: Role, config: &Config) -> Result<(), ConfigError> {
    check(role, config)?;
    check_distinct(role, config)?;
    check_files(role, config)
}

/// The same for a process that runs every role. The simulated services need no address of their own
/// if they or the brokers run elsewhere, because such a configuration is not a trial.
///
/// # Errors
///
/// As [`check_with_files`].
pub fn check_everything(config: &Config) -> Result<(), ConfigError> {
    check(Role::EVERYTHING, config)?;
    let distinct = Role::Up {
        agents: true,
        services: config.kafka.brokers.is_none() && config.services.address.is_none(),
        samples: 0,
    };
    check_distinct(distinct, config)?;
    check_files(Role::EVERYTHING, config)
}

fn check_files(role: Role, config: &Config) -> Result<(), ConfigError> {
    Auth::load(&config.auth)?;
    Tls::load("admin.tls", &config.admin.tls)?;
    if matches!(role, Role::Up { .. } | Role::Ingestion) {
        Tls::load("http.tls", &config.http.tls)?;
    }
    Ok(())
}

/// Refuses a role with exposed listeners, unless `insecure` is set.
fn check(role: Role, config: &Config) -> Result<(), ConfigError> {
    let exposed = exposed(role, config);
    let Some(first) = exposed.first().filter(|_| !config.insecure) else {
        return Ok(());
    };
    let ways = exposed.iter().map(|listener| match listener.guard {
        Guard::Tokens { .. } => "require tokens (auth.tokensFile, auth.jwt)",
        Guard::None { way_out } => way_out,
    });
    let mut ways: Vec<&str> = ways.collect();
    ways.dedup();
    let also: String = exposed[1..]
        .iter()
        .map(|listener| format!(", and {listener}"))
        .collect();
    Err(ConfigError::invalid(
        format!("{first}{also}:"),
        format!(
            "reachable from other machines without authentication. Listen on a loopback address such as \
             127.0.0.1, or {}, or use --insecure (insecure: true)",
            ways.join(", or ")
        ),
    ))
}

/// Refuses a role with two listeners on one address.
fn check_distinct(role: Role, config: &Config) -> Result<(), ConfigError> {
    let listeners = listeners(role, config);
    for (index, listener) in listeners.iter().enumerate() {
        let mut earlier = listeners[..index].iter();
        if let Some(other) = earlier.find(|other| overlap(other.address, listener.address)) {
            return Err(ConfigError::invalid(
                format!("{listener} and {other}:"),
                "these addresses overlap: give each listener its own",
            ));
        }
    }
    Ok(())
}

/// Whether a listener at one address also occupies the other. Port 0 is any free port; `0.0.0.0` is
/// every address of IPv4, and `::` every address.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let [a, b] = [one, other].map(|address| address.ip().to_canonical());
    let is_any = |ip: IpAddr| ip.is_unspecified();
    let is_same = a == b
        || (is_any(a) && (a.is_ipv6() || b.is_ipv4()))
        || (is_any(b) && (b.is_ipv6() || a.is_ipv4()));
    one.port() != 0 && one.port() == other.port() && is_same
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_unreachable_from_other_machines() {
        for (ip, expected) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("0.0.0.0", false),
            ("::", false),
            ("10.0.0.1", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(is_loopback(ip.parse().unwrap()), expected, "{ip}");
        }
    }

    #[test]
    fn only_the_listeners_of_a_role_are_checked() {
        let mut config = Config::default();
        let everywhere = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
        config.http.listen = everywhere(1);
        config.admin.listen = everywhere(2);
        config.broker.listen = everywhere(3);
        config.services.listen = everywhere(4);
        let up = |services| Role::Up {
            agents: true,
            services,
            samples: 0,
        };
        let ports = |role, config: &Config| -> Vec<u16> {
            let exposed = exposed(role, config);
            exposed.iter().map(|found| found.address.port()).collect()
        };
        for (role, expected) in [
            (up(true), vec![2, 1, 3, 4]),
            (up(false), vec![2, 1, 3]),
            (Role::Ingestion, vec![2, 1]),
            (Role::Broker, vec![2, 3]),
            (Role::Services, vec![2, 4]),
            (Role::Agents, vec![2]),
            (Role::Scheduler, vec![2]),
            (Role::Supervisor, vec![2]),
        ] {
            assert_eq!(ports(role, &config), expected, "{role:?}");
            assert!(check(role, &config).is_err(), "{role:?}");
        }
        config.kafka.brokers = Some(vec!["a:1".to_owned()]);
        assert_eq!(ports(up(false), &config), [2, 1], "no broker is embedded");
        config.auth.tokens_file = Some("tokens.yaml".into());
        assert_eq!(ports(up(true), &config), [4], "the other two ask");
        let clear = |config: &Config| in_the_clear(up(true), config).len();
        assert_eq!(clear(&config), 2);
        config.http.tls.cert_file = Some("cert.pem".into());
        assert_eq!(clear(&config), 1);
        config.insecure = true;
        assert!(check(up(true), &config).is_ok());
        assert_eq!(exposed(up(true), &Config::default()), []);
    }

    #[test]
    fn two_listeners_at_one_address_are_refused_by_both_settings() {
        for (one, other, overlaps) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("0.0.0.0:80", "0.0.0.0:80", true),
            ("0.0.0.0:0", "127.0.0.1:0", false),
            ("0.0.0.0:80", "[::1]:80", false),
            ("0.0.0.0:80", "[::ffff:127.0.0.1]:80", true),
            ("[::]:80", "[::1]:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("[::]:80", "0.0.0.0:81", false),
        ] {
            let [a, b] = [one, other].map(|address| address.parse().unwrap());
            assert_eq!(overlap(a, b), overlaps, "{one} {other}");
            assert_eq!(overlap(b, a), overlaps, "{other} {one}");
        }
        let mut config = Config::default();
        config.services.listen = "0.0.0.0:8080".parse().unwrap();
        let refused = check_distinct(Role::EVERYTHING, &config)
            .unwrap_err()
            .to_string();
        assert_eq!(
            refused,
            "services.listen (--services) is 0.0.0.0:8080 and http.listen (--http) is 127.0.0.1:8080: these addresses \
             overlap: give each listener its own"
        );
        for role in [Role::Services, Role::Ingestion] {
            assert!(check_distinct(role, &config).is_ok(), "it has one of them");
        }
    }

    #[test]
    fn remote_simulated_services_overlap_with_no_listener() {
        let mut config = Config::default();
        config.http.listen = config.services.listen;
        assert!(check_everything(&config).is_err());
        config.services.address = Some("a:1".to_owned());
        assert!(check_everything(&config).is_ok());
        config.services.address = None;
        config.kafka.brokers = Some(vec!["a:1".to_owned()]);
        assert!(check_everything(&config).is_ok());
        assert!(check_with_files(Role::EVERYTHING, &config).is_err());
    }

    #[test]
    fn a_refusal_names_every_listener_and_the_remedies() {
        let mut config = Config::default();
        config.http.listen = "0.0.0.0:80".parse().unwrap();
        config.broker.listen = "[::]:92".parse().unwrap();
        let refused = check(Role::EVERYTHING, &config).unwrap_err().to_string();
        for part in [
            "http.listen (--http) is 0.0.0.0:80, and broker.listen (--broker-listen) is [::]:92: ",
            "loopback",
            "auth.tokensFile",
            "--insecure",
        ] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
}
