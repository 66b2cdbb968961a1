//! Waits for the brokers: briefly if nothing listens, and with a hint if a login is missing.

use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use waybill_kafka::{Admin, AdminError, SPEAKS_HTTP};
use waybill_node::config::Config;
use waybill_telemetry::chain;

/// How long an address may take to accept or refuse a connection. An address that does neither may
/// be slow.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// How often refusing addresses are tried, and the pause between tries. Brokers may be starting.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);

/// Waits until a broker answers.
///
/// # Errors
///
/// If no broker answered in time, or every address refused connections, which takes at most a
/// second.
pub(crate) async fn wait_ready(
    admin: &Admin,
    config: &Config,
    patience: Duration,
) -> anyhow::Result<()> {
    let presence = presence(&config.kafka_settings_of_commands().brokers).await;
    if let Presence::Nobody(refusals) = &presence {
        anyhow::bail!("no broker answered at {}", refusals.join("; "));
    }
    let is_there = presence == Presence::Somebody;
    let answered = admin.wait_ready(patience).await;
    answered.map_err(|error| match hint(config, &error, is_there) {
        Some(hint) => anyhow::anyhow!("{}; {hint}", chain(&error)),
        None => error.into(),
    })
}

/// Whether anything listens at the brokers' addresses.
#[derive(PartialEq, Eq, Debug)]
enum Presence {
    /// At least one address accepts connections.
    Somebody,
    /// Every address refuses connections; with each refusal.
    Nobody(Vec<String>),
    /// At least one address does not answer or cannot be resolved.
    Unknown,
}

/// Connects to the comma-separated addresses.
async fn presence(brokers: &str) -> Presence {
    let mut tries = 1;
    loop {
        match presence_within(brokers).await {
            Presence::Nobody(_) if tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            found => return found,
        }
    }
}

async fn presence_within(brokers: &str) -> Presence {
    let mut tried: FuturesUnordered<_> = brokers.split(',').map(connect).collect();
    let mut refusals = Vec::new();
    let mut are_all_refusals = true;
    while let Some((address, answer)) = tried.next().await {
        match answer {
            Ok(()) => return Presence::Somebody,
            Err(error) => {
                are_all_refusals &= error.kind() == io::ErrorKind::ConnectionRefused;
                refusals.push(format!("{address}: {error}"));
            }
        }
    }
    refusals.sort();
    match are_all_refusals {
        true => Presence::Nobody(refusals),
        false => Presence::Unknown,
    }
}

async fn connect(address: &str) -> (&str, io::Result<()>) {
    let connected = tokio::time::timeout(CONNECT_PATIENCE, TcpStream::connect(address)).await;
    let answer = connected.map_err(io::Error::from).flatten();
    (address, answer.map(drop))
}

/// Flags that may help. `is_there`: an address accepted a connection.
fn hint(config: &Config, error: &AdminError, is_there: bool) -> Option<&'static str> {
    let is_embedded = config.kafka.brokers.is_none();
    match error {
        AdminError::NotReady { .. } if !is_there || config.kafka.has_login() => None,
        AdminError::NotReady { .. } if is_embedded => Some(
            "no login was sent, because authentication is off in this configuration: if the broker requires it, name \
             the broker's configuration (--config) and a token (--token-file)",
        ),
        AdminError::NotReady { .. } => Some(
            "no login was sent: if the broker requires one, name a configuration that has it in kafka.properties \
             (--config); --token-file is for the embedded broker only",
        ),
        AdminError::Refused { reason, .. } if reason == SPEAKS_HTTP => Some(
            "the address is from --brokers (kafka.brokers), or else from --broker-listen (broker.listen)",
        ),
        AdminError::Refused { .. } if is_embedded && config.auth.is_on() => Some(
            "a token was sent, because authentication is on in this configuration: check that it is the broker's \
             configuration (--config), and that the token is valid there (--token-file)",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::net::TcpSocket;

    use super::*;

    /// An address that refuses connections: the socket is bound and does not listen.
    fn held() -> (TcpSocket, String) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        (socket, address)
    }

    #[tokio::test]
    async fn brokers_are_absent_only_if_every_address_refuses_and_each_refusal_is_shown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap().to_string();
        let ((_one, one), (_other, other)) = (held(), held());
        assert_eq!(presence_within(&there).await, Presence::Somebody);
        assert_eq!(
            presence_within(&format!("{one},{there}")).await,
            Presence::Somebody
        );
        let Presence::Nobody(refusals) = presence(&format!("{one},{other}")).await else {
            panic!("nobody listens")
        };
        assert_eq!(refusals.len(), 2, "{refusals:?}");
        for address in [&one, &other] {
            let refusal = refusals
                .iter()
                .find(|refusal| refusal.starts_with(&format!("{address}: ")));
            assert!(
                refusal.is_some_and(|refusal| refusal.contains("refused")),
                "{refusals:?}"
            );
        }
        let unknown = format!("{one},an-address-without-a-port");
        assert_eq!(presence_within(&unknown).await, Presence::Unknown);
    }

    #[test]
    fn hints_for_refused_connections_name_the_flags() {
        let not_ready = AdminError::NotReady {
            brokers: "a:1".to_owned(),
            waited: Duration::from_secs(1),
            reason: None,
            source: None,
        };
        let refused = AdminError::Refused {
            brokers: "a:1".to_owned(),
            reason: "no".to_owned(),
        };
        let (plain, mut guarded, mut elsewhere) =
            (Config::default(), Config::default(), Config::default());
        guarded.auth.tokens_file = Some("tokens.yaml".into());
        guarded.kafka.log_in("waybill-cli", &"wb_x".into());
        elsewhere.kafka.brokers = Some(vec!["a:1".to_owned()]);
        let flags = |config, error, is_there| {
            let hint = hint(config, error, is_there).unwrap_or_default();
            ["--config", "--token-file", "kafka.properties"].map(|flag| hint.contains(flag))
        };
        assert_eq!(flags(&plain, &not_ready, true), [true, true, false]);
        assert_eq!(flags(&elsewhere, &not_ready, true), [true, true, true]);
        assert_eq!(flags(&guarded, &refused, true), [true, true, false]);
        for (config, error, is_there) in [
            (&plain, &not_ready, false),
            (&guarded, &not_ready, true),
            (&plain, &refused, true),
            (&elsewhere, &refused, true),
        ] {
            assert_eq!(flags(config, error, is_there), [false; 3]);
        }
    }
}
