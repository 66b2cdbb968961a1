//! Checks that all listen addresses of a role can be bound, before anything else is created, and
//! reports all failures together.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpSocket;
use waybill_node::Role;
use waybill_node::config::Config;
use waybill_node::exposure::listeners;

/// Refuses a role if one of its addresses cannot be bound. The configuration was already checked
/// for duplicates.
///
/// # Errors
///
/// The addresses that cannot be bound, each with its setting.
pub(super) fn check(role: Role, config: &Config) -> anyhow::Result<()> {
    let (mut in_use, mut refused) = (Vec::new(), Vec::new());
    for listener in listeners(role, config) {
        match bind(listener.address()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                in_use.push(format!("{} {}", listener.setting(), listener.address()));
            }
            Err(error) => refused.push(format!("{listener}: {error}{}", hint(&error))),
        }
    }
    let mut problems = Vec::new();
    if !in_use.is_empty() {
        problems.push(format!(
            "these addresses are in use, perhaps by another Waybill: {}: stop that process, or choose other ports",
            in_use.join(", ")
        ));
    }
    if !refused.is_empty() {
        problems.push(format!(
            "cannot listen on these addresses: {}",
            refused.join("; ")
        ));
    }
    anyhow::ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

/// The usual cause of an error, as the end of its message.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (ports below 1024 need a privilege, such as CAP_NET_BIND_SERVICE)"
        }
        io::ErrorKind::AddrNotAvailable => " (no interface of this machine has that address)",
        _ => "",
    }
}

/// Binds an address as a listener would, and releases it. It accepts no connections in the
/// meantime.
fn bind(address: SocketAddr) -> io::Result<()> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // Recently closed connections do not block the address.
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn every_address_in_use_is_named_with_its_setting() {
        let taken = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [http, broker] = taken.each_ref().map(|it| it.local_addr().unwrap());
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config::default();
        (config.http.listen, config.broker.listen) = (http, broker);
        (config.admin.listen, config.services.listen) = (free, free);
        let up = Role::Up {
            agents: true,
            services: true,
            samples: 0,
        };
        let error = check(up, &config).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "these addresses are in use, perhaps by another Waybill: http.listen (--http) {http}, broker.listen \
                 (--broker-listen) {broker}: stop that process, or choose other ports"
            )
        );
        assert!(check(Role::Services, &config).is_ok(), "it has neither");

        drop(taken);
        assert!(check(up, &config).is_ok());
    }

    #[tokio::test]
    async fn an_address_of_no_interface_is_not_reported_as_in_use() {
        let mut config = Config::default();
        config.services.listen = SocketAddr::from(([192, 0, 2, 1], 0));
        config.admin.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let refused = check(Role::Services, &config).unwrap_err().to_string();
        let expected = "(no interface of this machine has that address)";
        assert!(refused.ends_with(expected), "{refused}");
    }

    #[test]
    fn other_errors_have_a_hint_at_their_usual_cause() {
        for (kind, expected) in [
            (io::ErrorKind::PermissionDenied, "ports below 1024"),
            (io::ErrorKind::AddrNotAvailable, "no interface"),
            (io::ErrorKind::OutOfMemory, ""),
        ] {
            let hint = hint(&kind.into());
            assert!(hint.contains(expected), "{kind}: {hint}");
        }
    }
}
