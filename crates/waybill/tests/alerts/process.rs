//! `waybill up` as a process with receivers that stop and start: the scheduler's alerts reach
//! people.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::timeout;
use waybill_test_support::world::{PATIENCE, World, delivery};

use crate::http::{Received, Receiver};
use crate::running::{KEY, SECRET};
use crate::smtp::SmtpServer;

/// A world whose `up` sends alerts to a webhook and a mailbox, and retries without limit.
fn world(webhook: SocketAddr, mail: &SmtpServer) -> World {
    World::new(&format!(
        "alerts:
  # Every alert of these tests is to be a message of its own.
  dedupWindow: 1ms
  attemptsMax: 100000
  backoff: 50ms
  backoffMax: 200ms
  receivers:
    pager: {{webhook: {{url: 'http://{webhook}/', secret: {SECRET}}}}}
    on-call: {{email: {{host: {}, port: {}, tls: none, from: waybill@example.com, to: [ops@example.com]}}}}
",
        mail.address.ip(),
        mail.address.port()
    ))
}

/// A free address. The test listens there later.
async fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

async fn receive_on(address: SocketAddr) -> Receiver {
    Receiver::start_on(TcpListener::bind(address).await.unwrap(), [])
}

async fn set_faults(world: &World, service: &str, faults: &Value) {
    let url = world.url("services", &format!("/faults/{service}"));
    let answer = world.client.put(url).json(faults).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
}

/// Sends a delivery for which the drone service refuses both the step and its undo. Returns its ID
/// once it is parked.
async fn park(world: &World, caller_id: &str) -> String {
    set_faults(
        world,
        "drone",
        &json!({"refuseRate": 1, "undoRefuseRate": 1}),
    )
    .await;
    let id = world.deliver(&delivery(caller_id, false)).await;
    world
        .eventually("the delivery is parked", async || {
            world.state(&id).await.as_deref() == Some("CompensationFailed")
        })
        .await;
    id
}

/// The messages, once one of them is about that operation.
async fn told_of(world: &World, receiver: &Receiver, operation: &str) -> Vec<Received> {
    let mut seen = 0;
    loop {
        let received = timeout(PATIENCE, receiver.received(seen + 1)).await;
        let Ok(all) = received else {
            panic!("{operation} is not told of\n{}", world.log_tail());
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

async fn mails(world: &World, server: &SmtpServer, count: usize) -> Vec<crate::smtp::Mail> {
    match timeout(PATIENCE, server.mails(count)).await {
        Ok(mails) => mails,
        Err(_) => panic!("{count} mails do not come\n{}", world.log_tail()),
    }
}

#[tokio::test]
async fn an_operation_that_cannot_be_undone_reaches_the_webhook_signed_and_the_mailbox() {
    let (webhook, mail) = (Receiver::start([]).await, SmtpServer::start().await);
    let mut world = world(webhook.address(), &mail);
    let up = world.up();
    world.ready().await;
    let id = park(&world, "told").await;

    let requests = told_of(&world, &webhook, &id).await;
    assert!(requests[0].is_signed_with(KEY), "{requests:?}");
    let body = requests[0].json();
    let data = &body["data"];
    assert_eq!(data["kind"], "compensation-failed", "{body}");
    assert_eq!(data["callerId"], "told", "{body}");
    assert_eq!(data["step"], "drone", "{body}");
    assert!(!data["advice"].as_str().unwrap().is_empty(), "{body}");

    let mails = mails(&world, &mail, 1).await;
    assert_eq!(mails[0].to, ["ops@example.com"]);
    for part in ["compensation-failed", &id, "told"] {
        assert!(mails[0].text.contains(part), "{part}: {}", mails[0].text);
    }
    assert_eq!((requests.len(), mails.len()), (1, 1));
    assert_eq!(up.terminate(), Some(0), "{}", world.log_tail());
}

#[tokio::test]
async fn a_receiver_that_is_down_holds_up_nothing_and_has_the_alert_once_it_is_back() {
    let (address, mail) = (free_address().await, SmtpServer::start().await);
    let mut world = world(address, &mail);
    let up = world.up();
    world.ready().await;
    let parked = park(&world, "first").await;
    assert!(mails(&world, &mail, 1).await[0].text.contains(&parked));

    // The webhook has received no alert, and everything else continues.
    set_faults(
        &world,
        "drone",
        &json!({"refuseRate": 0, "undoRefuseRate": 0}),
    )
    .await;
    let fine = world.deliver(&delivery("fine", false)).await;
    world.all_reach(&[fine], "Processed").await;
    let second = park(&world, "second").await;
    assert!(mails(&world, &mail, 2).await[1].text.contains(&second));

    let webhook = receive_on(address).await;
    told_of(&world, &webhook, &parked).await;
    told_of(&world, &webhook, &second).await;
    assert_eq!(up.terminate(), Some(0), "{}", world.log_tail());
}

#[tokio::test]
async fn what_a_receiver_has_not_had_outlives_a_stop_and_a_kill() {
    const LISTENERS: [&str; 4] = ["http", "admin", "broker", "services"];
    let (address, mail) = (free_address().await, SmtpServer::start().await);
    let mut world = world(address, &mail);
    let up = world.up();
    world.ready().await;
    let first = park(&world, "first").await;
    mails(&world, &mail, 1).await;
    assert_eq!(up.terminate(), Some(0), "{}", world.log_tail());

    let up = world.again("up", &[], &LISTENERS);
    world.ready().await;
    let second = park(&world, "second").await;
    // A receiver that got the first alert does not get it again after an graceful stop.
    let after_stop = mails(&world, &mail, 2).await;
    assert!(after_stop[1].text.contains(&second), "{after_stop:?}");
    up.kill();

    let up = world.again("up", &[], &LISTENERS);
    let webhook = receive_on(address).await;
    told_of(&world, &webhook, &first).await;
    let all = told_of(&world, &webhook, &second).await;
    let events: Vec<&str> = all
        .iter()
        .map(|request| request.header("webhook-id"))
        .collect();
    assert_eq!(events.len(), 2, "each was had once: {events:?}");
    assert_eq!(up.terminate(), Some(0), "{}", world.log_tail());
}

#[tokio::test]
async fn an_owner_is_notified_once_despite_a_kill_and_the_contact_is_never_shown() {
    const LISTENERS: [&str; 4] = ["http", "admin", "broker", "services"];
    const OWNER: &str = "anna.owner@example.org";
    let mail = SmtpServer::start().await;
    let mut world = World::new(&format!(
        "alerts:
  owners:
    email: {{host: {}, port: {}, tls: none, from: waybill@example.com, domains: [example.org]}}
",
        mail.address.ip(),
        mail.address.port()
    ));
    let up = world.up();
    world.ready().await;
    let with_owner = |caller_id: &str| {
        let mut body = delivery(caller_id, false);
        body["notify"] = json!([format!("mailto:{OWNER}")]);
        body
    };
    let first = world.deliver(&with_owner("first")).await;
    world
        .all_reach(std::slice::from_ref(&first), "Processed")
        .await;
    let told = mails(&world, &mail, 1).await;
    assert_eq!(told[0].to, [OWNER]);
    let sentence = "Subject: Your drone-delivery first is complete.";
    assert!(told[0].text.contains(sentence), "{}", told[0].text);

    // The owner's contact appears nowhere in the output about a failed operation.
    let parked = {
        let faults = json!({"refuseRate": 1, "undoRefuseRate": 1});
        set_faults(&world, "drone", &faults).await;
        let id = world.deliver(&with_owner("parked")).await;
        world
            .eventually("the delivery is parked", async || {
                world.state(&id).await.as_deref() == Some("CompensationFailed")
            })
            .await;
        set_faults(
            &world,
            "drone",
            &json!({"refuseRate": 0, "undoRefuseRate": 0}),
        )
        .await;
        id
    };
    let told = mails(&world, &mail, 2).await;
    let text = told[1].text.replace("\n ", " ");
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
        let answer = world.client.get(world.url("http", &path)).send().await;
        let text = answer.unwrap().text().await.unwrap();
        assert!(text.contains(&parked) || text.contains(&first), "{text}");
        assert!(!text.contains("anna"), "{path}: {text}");
    }
    up.kill();

    let places = || {
        ["alerts", "supervisor"]
            .map(|role| std::fs::read(world.path(&format!("data/{role}/instance-0"))).unwrap())
    };
    let names = places();
    let up = world.again("up", &[], &LISTENERS);
    world.ready().await;
    let last = world.deliver(&with_owner("last")).await;
    world.all_reach(&[last], "Processed").await;
    let is_last = |mail: &crate::smtp::Mail| mail.text.contains("last is done");
    let mut seen = 2;
    let all = loop {
        let all = mails(&world, &mail, seen + 1).await;
        if all.iter().any(is_last) {
            break all;
        }
        seen = all.len();
    };
    assert_eq!(up.terminate(), Some(0), "{}", world.log_tail());
    let id_of = |mail: &crate::smtp::Mail| {
        let mut lines = mail.text.lines();
        let id = lines.find(|line| line.starts_with("Message-ID: "));
        id.expect("a mail has an id").to_owned()
    };
    // An alert sent just before the kill may be sent again, with the same ID.
    let ids: std::collections::BTreeSet<_> = all.iter().map(id_of).collect();
    assert_eq!(ids.len(), 3, "{all:?}");
    assert_eq!(places(), names, "the process finds its names again");
    let log = std::fs::read_to_string(world.path("log.txt")).unwrap();
    assert!(!log.contains("anna"), "{log}");
}
