//! Running receivers, their configuration, and alerts to send.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_alerts::{
    Alert, AlertError, AlertsConfig, EmailConfig, EmailTls, Notifier, ReceiverConfig, SmtpConfig,
    Undeliverable, WebhookConfig, receivers,
};
use waybill_test_support::smtp_server::SmtpServer;
use waybill_test_support::webhook_receiver::{Received, Receiver, SECRET};

/// The time limit of all waits. Only a hang takes longer.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Receivers with their workers.
pub struct Running {
    notifiers: Vec<Notifier>,
    workers: Vec<JoinHandle<()>>,
    pub stop: CancellationToken,
}

impl Running {
    pub fn start<const N: usize>(all: [(&str, ReceiverConfig); N], config: AlertsConfig) -> Self {
        Self::from(AlertsConfig {
            receivers: all.map(|(name, config)| (name.to_owned(), config)).into(),
            ..config
        })
    }

    pub fn from(config: AlertsConfig) -> Self {
        let stop = CancellationToken::new();
        let (notifiers, workers) = receivers(&config)
            .unwrap()
            .into_iter()
            .map(|(notifier, worker)| (notifier, tokio::spawn(worker.run(stop.clone()))))
            .unzip();
        Self {
            notifiers,
            workers,
            stop,
        }
    }

    pub fn notifier(&self, name: &str) -> &Notifier {
        let named = self.notifiers.iter().find(|n| n.name() == name);
        named.expect("a receiver of that name")
    }

    pub async fn deliver(&self, name: &str, alert: &Alert) -> Result<(), Undeliverable> {
        let delivery = self.notifier(name).deliver(alert);
        timeout(PATIENCE, delivery).await.expect("an end in time")
    }

    /// Accepts no more alerts, and waits until all were sent.
    pub async fn finish(self) {
        drop(self.notifiers);
        for worker in self.workers {
            timeout(PATIENCE, worker).await.unwrap().unwrap();
        }
    }

    pub async fn finish_with<F: Future>(self, receipts: Vec<F>) -> Vec<F::Output> {
        self.finish().await;
        join_all(receipts).await
    }

    pub async fn stop(self) {
        self.stop.cancel();
        for worker in self.workers {
            timeout(PATIENCE, worker).await.unwrap().unwrap();
        }
    }
}

pub fn repeats(requests: &[Received]) -> Vec<u64> {
    requests.iter().map(Received::repeats).collect()
}

/// The defaults with short times.
pub fn quick() -> AlertsConfig {
    AlertsConfig {
        backoff: Duration::from_millis(10),
        backoff_max: Duration::from_millis(20),
        ..AlertsConfig::default()
    }
}

pub fn webhook(receiver: &Receiver) -> ReceiverConfig {
    webhook_to(&receiver.url())
}

pub fn webhook_to(url: &str) -> ReceiverConfig {
    ReceiverConfig::Webhook(WebhookConfig {
        url: Some(url.into()),
        secret: Some(SECRET.into()),
        ..WebhookConfig::default()
    })
}

pub fn email(server: &SmtpServer, to: &[&str]) -> ReceiverConfig {
    ReceiverConfig::Email(EmailConfig {
        smtp: smtp(server),
        to: to.iter().map(|&address| address.to_owned()).collect(),
    })
}

/// How the server is reached, without TLS and login.
pub fn smtp(server: &SmtpServer) -> SmtpConfig {
    SmtpConfig {
        host: server.address.ip().to_string(),
        port: Some(server.address.port()),
        tls: EmailTls::None,
        ca_file: None,
        user: None,
        password: None,
        password_file: None,
        from: "Waybill <waybill@example.com>".to_owned(),
    }
}

/// A distinct alert about the step.
pub fn alert(step: &str) -> Alert {
    let event_id = Uuid::new_v4();
    Alert {
        event_id,
        kind: "operation-parked".to_owned(),
        operation: Uuid::new_v4().to_string(),
        caller_id: None,
        workflow: "drone-delivery".to_owned(),
        tenant: "acme".to_owned(),
        step: Some(step.to_owned()),
        error: Some(AlertError {
            code: "no-drone".to_owned(),
            message: "no drone is free".to_owned(),
        }),
        advice: "Resubmit it once drones are back.".to_owned(),
        at: jiff::Timestamp::now(),
    }
}
