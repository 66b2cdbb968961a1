//! `waybill up` as a process with receivers that stop and start: the scheduler's alerts reach
//! people.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::timeout;
use waybill_test_support::ports::free_address;
use waybill_test_support::setup::{PATIENCE, Setup, delivery};
use waybill_test_support::smtp_server::{Mail, SmtpServer};
use waybill_test_support::webhook_receiver::{KEY, Received, Receiver, SECRET};

/// A setup whose `up` sends alerts to a webhook and a mailbox, and retries without limit.
fn setup(webhook: SocketAddr, mail: &SmtpServer) -> Setup {
    Setup::new(&format!(
        "alerts:
  # Every alert of these tests is to be its own message.
  dedupWindow: 1ms
  attemptsMax: 100000
  backoff: 50ms
  backoffMax: 200ms
  receivers:
    pager: {{webhook: {{url: 'http://{webhook}/', secret: {SECRET}}}}}
    on-call: {{email: {{smtp: {{host: {}, port: {}, tls: none, from: waybill@example.com}}, to: [ops@example.com]}}}}
",
        mail.address.ip(),
        mail.address.port()
    ))
}

async fn receive_on(address: SocketAddr) -> Receiver {
    Receiver::start_on(TcpListener::bind(address).await.unwrap(), [])
}

async fn set_faults(setup: &Setup, service: &str, faults: &Value) {
    let url = setup.url("services", &format!("/faults/{service}"));
    let answer = setup.client.put(url).json(faults).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
}

/// Sends a delivery for which the drone service refuses both the step and its undo. Returns its ID
/// once it is parked.
async fn park(setup: &Setup, caller_id: &str) -> String {
    set_faults(
        setup,
        "drone",
        &json!({"refuseRate": 1, "undoRefuseRate": 1}),
    )
    .await;
    let id = setup.deliver(&delivery(caller_id, false)).await;
    setup
        .eventually("the delivery is parked", async || {
            setup.state(&id).await.as_deref() == Some("CompensationFailed")
        })
        .await;
    id
}

/// The messages, once one of them is about that operation.
async fn alerts_of(setup: &Setup, receiver: &Receiver, operation: &str) -> Vec<Received> {
    let mut seen = 0;
    loop {
        let received = timeout(PATIENCE, receiver.received(seen + 1)).await;
        let Ok(all) = received else {
            panic!(
                "the receiver got no alert of {operation}\n{}",
                setup.log_tail()
            );
        };
        if all
            .iter()
            .any(|request| request.json()["data"]["operation"] == operation)
        {
            return all;
        }
        seen = all.len();
    }
}

async fn mails(setup: &Setup, server: &SmtpServer, count: usize) -> Vec<Mail> {
    match timeout(PATIENCE, server.mails(count)).await {
        Ok(mails) => mails,
        Err(_) => panic!("{count} mails do not come\n{}", setup.log_tail()),
    }
}

#[tokio::test]
async fn an_operation_that_cannot_be_undone_reaches_the_webhook_signed_and_the_mailbox() {
    let (webhook, mail) = (Receiver::start([]).await, SmtpServer::start().await);
    let mut setup = setup(webhook.address(), &mail);
    let up = setup.up();
    setup.ready().await;
    let id = park(&setup, "parked-delivery").await;

    let requests = alerts_of(&setup, &webhook, &id).await;
    assert!(requests[0].is_signed_with(KEY), "{requests:?}");
    let body = requests[0].json();
    let data = &body["data"];
    assert_eq!(data["kind"], "compensation-failed", "{body}");
    assert_eq!(data["callerId"], "parked-delivery", "{body}");
    assert_eq!(data["step"], "drone", "{body}");
    assert!(!data["advice"].as_str().unwrap().is_empty(), "{body}");

    let mails = mails(&setup, &mail, 1).await;
    assert_eq!(mails[0].to, ["ops@example.com"]);
    for part in ["compensation-failed", &id, "parked-delivery"] {
        assert!(mails[0].text.contains(part), "{part}: {}", mails[0].text);
    }
    assert_eq!((requests.len(), mails.len()), (1, 1));
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test]
async fn a_receiver_gets_the_alert_after_its_outage_and_delays_nothing() {
    let (address, mail) = (free_address(), SmtpServer::start().await);
    let mut setup = setup(address, &mail);
    let up = setup.up();
    setup.ready().await;
    let parked = park(&setup, "first").await;
    assert!(mails(&setup, &mail, 1).await[0].text.contains(&parked));

    // The webhook has received no alert, and everything else continues.
    set_faults(
        &setup,
        "drone",
        &json!({"refuseRate": 0, "undoRefuseRate": 0}),
    )
    .await;
    let fine = setup.deliver(&delivery("fine", false)).await;
    setup.all_reach(&[fine], "Processed").await;
    let second = park(&setup, "second").await;
    assert!(mails(&setup, &mail, 2).await[1].text.contains(&second));

    let webhook = receive_on(address).await;
    alerts_of(&setup, &webhook, &parked).await;
    alerts_of(&setup, &webhook, &second).await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test]
async fn undelivered_alerts_survive_a_stop_and_a_kill() {
    const LISTENERS: [&str; 4] = ["http", "admin", "broker", "services"];
    let (address, mail) = (free_address(), SmtpServer::start().await);
    let mut setup = setup(address, &mail);
    let up = setup.up();
    setup.ready().await;
    let first = park(&setup, "first").await;
    mails(&setup, &mail, 1).await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());

    let up = setup.again("up", &[], &LISTENERS);
    setup.ready().await;
    let second = park(&setup, "second").await;
    // A receiver that got the first alert does not get it again after a graceful stop.
    let after_stop = mails(&setup, &mail, 2).await;
    assert!(after_stop[1].text.contains(&second), "{after_stop:?}");
    up.kill();

    let up = setup.again("up", &[], &LISTENERS);
    let webhook = receive_on(address).await;
    alerts_of(&setup, &webhook, &first).await;
    let all = alerts_of(&setup, &webhook, &second).await;
    let events: Vec<&str> = all
        .iter()
        .map(|request| request.header("webhook-id"))
        .collect();
    assert_eq!(events.len(), 2, "each was had once: {events:?}");
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test]
async fn an_owner_is_notified_once_despite_a_kill_and_the_contact_is_never_shown() {
    const LISTENERS: [&str; 4] = ["http", "admin", "broker", "services"];
    const OWNER: &str = "anna.owner@example.org";
    let mail = SmtpServer::start().await;
    let mut setup = Setup::new(&format!(
        "alerts:
  owners:
    email: {{smtp: {{host: {}, port: {}, tls: none, from: waybill@example.com}}, domains: [example.org]}}
",
        mail.address.ip(),
        mail.address.port()
    ));
    let up = setup.up();
    setup.ready().await;
    let with_owner = |caller_id: &str| {
        let mut body = delivery(caller_id, false);
        body["notify"] = json!([format!("mailto:{OWNER}")]);
        body
    };
    let first = setup.deliver(&with_owner("first")).await;
    setup
        .all_reach(std::slice::from_ref(&first), "Processed")
        .await;
    let sent_mails = mails(&setup, &mail, 1).await;
    assert_eq!(sent_mails[0].to, [OWNER]);
    let sentence = "Subject: Your drone-delivery first is complete.";
    assert!(
        sent_mails[0].text.contains(sentence),
        "{}",
        sent_mails[0].text
    );

    // The owner's contact appears nowhere in the output about a failed operation.
    let parked = {
        let faults = json!({"refuseRate": 1, "undoRefuseRate": 1});
        set_faults(&setup, "drone", &faults).await;
        let id = setup.deliver(&with_owner("parked")).await;
        setup
            .eventually("the delivery is parked", async || {
                setup.state(&id).await.as_deref() == Some("CompensationFailed")
            })
            .await;
        set_faults(
            &setup,
            "drone",
            &json!({"refuseRate": 0, "undoRefuseRate": 0}),
        )
        .await;
        id
    };
    let sent_mails = mails(&setup, &mail, 2).await;
    let text = sent_mails[1].text.replace("\n ", " ");
    assert!(
        text.contains("parked is delayed, and a person will look into it"),
        "{text}"
    );
    for path in [
        format!("/api/deliveryrequests/{first}"),
        format!("/api/deliveryrequests/{parked}"),
        format!("/v1/operations/{parked}"),
        "/v1/operations?state=CompensationFailed".to_owned(),
    ] {
        let answer = setup.client.get(setup.url("http", &path)).send().await;
        let text = answer.unwrap().text().await.unwrap();
        assert!(text.contains(&parked) || text.contains(&first), "{text}");
        assert!(!text.contains("anna"), "{path}: {text}");
    }
    up.kill();

    let places = || {
        ["alerts", "supervisor"]
            .map(|role| std::fs::read(setup.path(&format!("data/{role}/instance-0"))).unwrap())
    };
    let names = places();
    let up = setup.again("up", &[], &LISTENERS);
    setup.ready().await;
    let last = setup.deliver(&with_owner("last")).await;
    setup.all_reach(&[last], "Processed").await;
    let is_last = |mail: &Mail| mail.text.contains("last is complete");
    let mut seen = 2;
    let all = loop {
        let all = mails(&setup, &mail, seen + 1).await;
        if all.iter().any(is_last) {
            break all;
        }
        seen = all.len();
    };
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
    let id_of = |mail: &Mail| {
        let mut lines = mail.text.lines();
        let id = lines.find(|line| line.starts_with("Message-ID: "));
        id.expect("a mail has an id").to_owned()
    };
    // An alert sent just before the kill may be sent again, with the same ID.
    let ids: std::collections::BTreeSet<_> = all.iter().map(id_of).collect();
    assert_eq!(ids.len(), 3, "{all:?}");
    assert_eq!(places(), names, "the process finds its names again");
    let log = std::fs::read_to_string(setup.path("log.txt")).unwrap();
    assert!(!log.contains("anna"), "{log}");
}
