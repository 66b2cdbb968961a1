//! Alerts as e-mails.

use std::path::Path;

use waybill_alerts::{
    AlertsConfig, EmailConfig, EmailTls, ReceiverConfig, SmtpConfig, Undeliverable,
};
use waybill_test_support::certificate::Certificate;
use waybill_test_support::smtp_server::SmtpServer;

use crate::running::{Running, alert, email, quick, smtp};

#[tokio::test]
async fn a_mail_reaches_every_address_after_a_login() {
    let server = SmtpServer::start().await;
    let to = ["Ops <ops@example.com>", "ada@example.com"];
    let ReceiverConfig::Email(mut config) = email(&server, &to) else {
        unreachable!();
    };
    config.smtp.user = Some("waybill".to_owned());
    config.smtp.password = Some("hunter2".into());
    let running = Running::start([("mail", ReceiverConfig::Email(config))], quick());
    let alert = alert("drone");
    assert_eq!(running.deliver("mail", &alert).await, Ok(()));

    let mails = server.mails(2).await;
    let to: Vec<_> = mails.iter().map(|mail| mail.to.clone()).collect();
    assert_eq!(to, [["ops@example.com"], ["ada@example.com"]]);
    // "\0waybill\0hunter2" in base64 (RFC 4616).
    let login = "PLAIN AHdheWJpbGwAaHVudGVyMg==";
    for mail in mails {
        assert_eq!(mail.from, "waybill@example.com");
        assert_eq!(mail.login.as_deref(), Some(login));
        for line in [
            "Subject: [Waybill] operation-parked: drone-delivery, step drone: no-drone".to_owned(),
            "To: Ops <ops@example.com>, ada@example.com".to_owned(),
            format!("Message-ID: <{}@example.com>", alert.event_id),
            format!("What to do: {}", alert.advice),
            format!("Operation: {}", alert.operation),
        ] {
            let text = mail.text.replace("\n ", " ");
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}

#[tokio::test]
async fn a_retry_writes_only_to_the_remaining_recipients() {
    let busy = vec!["451 later", "450 later still"];
    let server = SmtpServer::that_answers([("ada@example.com", busy)]).await;
    let to = ["ops@example.com", "ada@example.com", "eve@example.com"];
    let running = Running::start([("mail", email(&server, &to))], quick());
    assert_eq!(running.deliver("mail", &alert("drone")).await, Ok(()));
    let mails = server.mails(3).await;
    let to: Vec<_> = mails.iter().flat_map(|mail| mail.to.clone()).collect();
    assert_eq!(
        to,
        ["ops@example.com", "eve@example.com", "ada@example.com"]
    );
}

#[tokio::test]
async fn a_refused_address_does_not_affect_other_addresses() {
    let gone = vec!["550 no such mailbox"; 2];
    let server = SmtpServer::that_answers([("old@example.com", gone)]).await;
    let both = email(&server, &["old@example.com", "ops@example.com"]);
    let old = email(&server, &["old@example.com"]);
    let running = Running::start([("both", both), ("old", old)], quick());
    assert_eq!(running.deliver("both", &alert("drone")).await, Ok(()));
    assert_eq!(server.mails(1).await[0].to, ["ops@example.com"]);

    let error = running.deliver("old", &alert("drone")).await.unwrap_err();
    let Undeliverable::Refused { cause } = &error else {
        panic!("{error:?}");
    };
    assert!(cause.contains("no such mailbox"), "{cause}");
    assert_eq!(server.seen().mails.len(), 1);
}

#[tokio::test]
async fn a_login_that_is_refused_is_not_repeated_and_nothing_is_sent() {
    let server = SmtpServer::that_refuses_logins().await;
    let ReceiverConfig::Email(mut config) = email(&server, &["ops@example.com"]) else {
        unreachable!();
    };
    config.smtp.user = Some("waybill".to_owned());
    config.smtp.password = Some("hunter2".into());
    let running = Running::start([("mail", ReceiverConfig::Email(config))], quick());
    let error = running.deliver("mail", &alert("drone")).await.unwrap_err();
    assert!(matches!(error, Undeliverable::Refused { .. }), "{error:?}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    assert!(!server.seen().commands.contains(&"MAIL".to_owned()));
    assert_eq!(server.seen().connections, 1);
}

#[tokio::test]
async fn nothing_is_sent_without_the_required_tls() {
    for tls in [EmailTls::Starttls, EmailTls::Tls] {
        let server = SmtpServer::start().await;
        let ReceiverConfig::Email(mut config) = email(&server, &["ops@example.com"]) else {
            unreachable!();
        };
        config.smtp.tls = tls;
        config.smtp.user = Some("waybill".to_owned());
        config.smtp.password = Some("hunter2".into());
        let bounded = AlertsConfig {
            attempts_max: 2,
            ..quick()
        };
        let running = Running::start([("mail", ReceiverConfig::Email(config))], bounded);
        let error = running.deliver("mail", &alert("drone")).await.unwrap_err();
        let given_up = matches!(error, Undeliverable::GivenUp { attempts: 2, .. });
        assert!(given_up, "{tls:?}: {error:?}");
        let seen = server.seen();
        let commands: Vec<_> = seen.commands.iter().map(String::as_str).collect();
        let secrets = ["AUTH", "MAIL", "RCPT", "DATA"];
        assert!(
            !commands.iter().any(|c| secrets.contains(c)),
            "{tls:?}: {commands:?}"
        );
        assert_eq!(seen.connections, 2, "{tls:?}");
    }
}

#[tokio::test]
async fn login_and_mail_are_sent_only_to_a_trusted_tls_server() {
    let certificate = Certificate::new();
    let trusted = certificate.file();
    let other = Certificate::new().file();
    for tls in [EmailTls::Starttls, EmailTls::Tls] {
        let server = match tls {
            EmailTls::Starttls => SmtpServer::with_starttls(certificate.acceptor()).await,
            EmailTls::Tls => SmtpServer::with_tls(certificate.acceptor()).await,
            EmailTls::None => unreachable!(),
        };
        let receiver = |ca_file: &Path| {
            ReceiverConfig::Email(EmailConfig {
                smtp: SmtpConfig {
                    host: "localhost".to_owned(),
                    port: Some(server.address.port()),
                    tls,
                    ca_file: Some(ca_file.to_owned()),
                    user: Some("waybill".to_owned()),
                    password: Some("hunter2".into()),
                    ..smtp(&server)
                },
                to: vec!["ops@example.com".to_owned()],
            })
        };
        let all = [
            ("trusting", receiver(trusted.path())),
            ("wary", receiver(other.path())),
        ];
        let config = AlertsConfig {
            attempts_max: 1,
            ..quick()
        };
        let running = Running::start(all, config);
        let alert = alert("drone");
        let error = running.deliver("wary", &alert).await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
        let seen = server.seen();
        assert!(seen.mails.is_empty() && !seen.commands.contains(&"AUTH".to_owned()));

        assert_eq!(running.deliver("trusting", &alert).await, Ok(()));
        let [mail] = &server.mails(1).await[..] else {
            panic!("{:?}", server.seen());
        };
        assert!(
            mail.is_encrypted && mail.login.is_some(),
            "{tls:?}: {mail:?}"
        );
    }
}
