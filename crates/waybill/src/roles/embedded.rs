//! Starts the embedded broker and the simulated services.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::oneshot;
use waybill_broker::{Broker, Logins, Logs, StartError};
use waybill_drone_delivery::services::{LedgerError, Services, StartError as ServicesError};
use waybill_messages::Topics;
use waybill_node::admin::Admin;
use waybill_node::broker_access::{BrokerLogins, OwnLogins};
use waybill_node::broker_metrics::BrokerMetrics;
use waybill_node::config::Config;
use waybill_node::data_dir;
use waybill_node::shutdown::{Running, Stage};
use waybill_node::telemetry::announce;
use waybill_telemetry::health::LowDisk;

use super::agents::Reached;

/// The embedded broker, for other parts of its process.
pub(super) struct EmbeddedBroker {
    /// Where the roles of this process connect.
    pub(super) own_address: SocketAddr,
    /// The source of a backup of its logs.
    pub(super) logs: Logs,
    logins: Arc<OwnLogins>,
}

impl EmbeddedBroker {
    /// The configuration with this process's login.
    pub(super) fn with_login(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.kafka.log_in("waybill", self.logins.token());
        config
    }
}

/// Starts the embedded broker.
pub(super) async fn broker(
    config: &Config,
    low_disk: &LowDisk,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<EmbeddedBroker> {
    let logins = admin.auth().authenticator().map(|authenticator| {
        let topics = Topics::new(&config.kafka.topic_prefix);
        let logins = BrokerLogins::new(Arc::clone(authenticator), topics, config.agents_group());
        Arc::new(logins) as Arc<dyn Logins>
    });
    let own_logins = Arc::new(OwnLogins::new());
    let mut settings = config
        .broker
        .settings(data_dir::of_broker(&config.data_dir));
    settings.low_on_disk = low_disk.flag();
    settings.logins = logins;
    settings.own_logins = Some(Arc::clone(&own_logins) as Arc<dyn Logins>);
    let broker = Broker::start(settings)
        .await
        .map_err(|error| broker_not_started(config, error))?;
    let (address, own_address, logs) = (broker.address(), broker.own_address(), broker.logs());
    // After a failure the broker serves the other partitions until its stage of the stop: without
    // it, every part that stops before would wait for answers until its time-out.
    let (failure_sender, mut failure_receiver) = oneshot::channel();
    running.spawn(Stage::Broker, "broker", |stop| async move {
        tokio::select! {
            () = stop.cancelled() => {}
            failure = broker.failed() => {
                // The watch has ended if the process stops already.
                _ = failure_sender.send(failure);
                stop.cancelled().await;
            }
            never = BrokerMetrics::registered().show(|| broker.stats()) => match never {},
        }
        broker.shutdown().await;
        Ok(())
    });
    running.spawn(Stage::Broker, "watch over the broker", |stop| async move {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            Ok(failure) = &mut failure_receiver => anyhow::bail!(failure),
        }
    });
    announce("broker", address);
    Ok(EmbeddedBroker {
        own_address,
        logs,
        logins: own_logins,
    })
}

/// The error for a broker that did not start, with the flag for another address.
fn broker_not_started(config: &Config, error: StartError) -> anyhow::Error {
    let dir = config.data_dir.display();
    let hint = match &error {
        StartError::Locked { .. } => return in_use(&dir),
        StartError::Listen { .. } => " (--broker-listen; another Waybill may run)".to_owned(),
        StartError::DataDir { .. } => " (--data-dir)".to_owned(),
        StartError::Damaged {
            topic, partition, ..
        } => format!(
            "; to see what a repair would drop, run: waybill broker repair --data-dir {dir} --topic {topic} --partition \
             {partition}"
        ),
        StartError::Open { .. } => String::new(),
    };
    anyhow::Error::from(error).context(format!("cannot start the embedded broker{hint}"))
}

/// The error for a data directory, or a directory in it, that another process uses.
pub(super) fn in_use(path: &dyn fmt::Display) -> anyhow::Error {
    anyhow::anyhow!(
        "another process uses the data directory {path}: stop that process, or give another directory (--data-dir)"
    )
}

/// The error for services that did not start, with the flag for another address.
fn services_not_started(error: ServicesError) -> anyhow::Error {
    let hint = match &error {
        ServicesError::Listen { .. } => " (--services; another Waybill may run)",
        ServicesError::Ledger(LedgerError::InUse { path }) => {
            let dir = path.parent().unwrap_or(path);
            return in_use(&dir.display());
        }
        _ => "",
    };
    anyhow::Error::from(error).context(format!("cannot start the services{hint}"))
}

/// Starts the simulated services and returns how to reach them.
pub(super) async fn services(config: &Config, running: &Running) -> anyhow::Result<Reached> {
    let settings = config.services.settings(config.data_dir.join("services"));
    let mut services = Services::start(settings)
        .await
        .map_err(services_not_started)?;
    let (address, caller) = (services.address(), services.caller());
    running.spawn(Stage::Services, "services", |stop| async move {
        tokio::select! {
            () = stop.cancelled() => {}
            ended = services.ended() => {
                ended.context("the services' listener failed")?;
                anyhow::bail!("the services' listener ended");
            }
        }
        services.shutdown().await;
        Ok(())
    });
    announce("services", address);
    Ok(Reached {
        address: address.to_string(),
        caller: Some(caller),
    })
}

#[cfg(test)]
mod tests {
    use waybill_broker::Damage;

    use std::path::PathBuf;

    use super::*;

    #[test]
    fn an_address_or_directory_in_use_is_reported_with_its_flag() {
        let listen = |source| StartError::Listen {
            address: ([127, 0, 0, 1], 9092).into(),
            source,
        };
        let config = Config {
            data_dir: PathBuf::from("d"),
            ..Config::default()
        };
        let taken = std::io::ErrorKind::AddrInUse.into();
        let error = format!("{:#}", broker_not_started(&config, listen(taken)));
        assert!(
            error.starts_with("cannot start the embedded broker (--broker-listen; "),
            "{error}"
        );
        assert!(error.contains("cannot listen on 127.0.0.1:9092"), "{error}");
        let path = PathBuf::from("d/broker");
        let error = broker_not_started(&config, StartError::Locked { path }).to_string();
        assert_eq!(
            error,
            "another process uses the data directory d: stop that process, or give another directory (--data-dir)"
        );
        let damaged = StartError::Damaged {
            topic: "t".to_owned(),
            partition: 3,
            damage: Damage::Short {
                path: PathBuf::from("d/broker/logs/t/3/0.log"),
                position: 7,
                offset: 20,
                synced_end: 30,
            },
        };
        let error = format!("{:#}", broker_not_started(&config, damaged));
        for named in [
            "waybill broker repair --data-dir d --topic t --partition 3",
            "0.log ends at byte 7, before offset 20",
        ] {
            assert!(error.contains(named), "{named}: {error}");
        }
        let error = services_not_started(ServicesError::Listen {
            address: ([127, 0, 0, 1], 8082).into(),
            source: std::io::ErrorKind::AddrInUse.into(),
        });
        assert!(error.to_string().contains("(--services; "), "{error}");
    }
}
