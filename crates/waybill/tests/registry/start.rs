//! What roles need from the registry at their start, and the commands that prepare it.

use serde_json::{Value, json};
use waybill_messages::RecordKind;
use waybill_test_support::process::Process;
use waybill_test_support::registry::Stub;
use waybill_test_support::setup::{Setup, delivery};

use crate::{schema_of, waybill, with_registry};

const SUBJECT: &str = "waybill.step-replies.v1-value";

/// A schema that cannot read data of any other schema.
const OTHER: &str =
    r#"{"type": "record", "name": "Other", "fields": [{"name": "a", "type": "long"}]}"#;

/// Starts `up` and waits only for its admin address.
fn begin(setup: &mut Setup) -> Process {
    setup.start("up", &FREE, &["admin"])
}

/// Makes `up` listen only on free ports.
const FREE: [&str; 6] = [
    "--http",
    "127.0.0.1:0",
    "--broker-listen",
    "127.0.0.1:0",
    "--services",
    "127.0.0.1:0",
];

/// Waits until the process has ended, and returns its exit code.
async fn end(setup: &Setup, mut process: Process) -> Option<i32> {
    let mut code = None;
    setup
        .eventually("the process ends", async || {
            let ended = process.child.try_wait().unwrap();
            code = ended.and_then(|status| status.code());
            ended.is_some()
        })
        .await;
    code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_waits_for_an_unavailable_registry_and_readiness_reports_it() {
    let stub = Stub::start().await;
    stub.goes_away();
    let mut setup = Setup::new(&with_registry(&stub, ""));
    let up = begin(&mut setup);
    let readyz = setup.url("admin", "/readyz");
    let expected = format!("schemas of the registry at {}", stub.url());
    setup
        .eventually("readiness names the registry", async || {
            match setup.client.get(&readyz).send().await {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    let text = answer.text().await.unwrap();
                    status == 503 && text.contains(&expected)
                }
                Err(_) => false,
            }
        })
        .await;
    stub.is_back();
    setup.ready().await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_waits_for_the_registry_stops_on_request() {
    let stub = Stub::start().await;
    stub.goes_away();
    let mut setup = Setup::new(&with_registry(&stub, ""));
    let up = begin(&mut setup);
    setup
        .eventually("the registry gets a request", async || {
            !stub.asked().is_empty()
        })
        .await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incompatible_schema_ends_the_start_and_the_commands_with_the_registrys_reason() {
    let stub = Stub::start().await;
    stub.give(SUBJECT, OTHER);
    let mut setup = Setup::new(&with_registry(&stub, ""));
    let up = begin(&mut setup);
    assert_eq!(end(&setup, up).await, Some(1));
    let log = setup.log_tail();
    assert!(
        log.contains(SUBJECT) && log.contains("incompatible with an earlier schema"),
        "{log}"
    );

    for command in ["check", "register"] {
        let output = waybill(&setup.path("waybill.yaml"), &["schemas", command]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(SUBJECT), "{text}");
    }
    // If one subject is refused, none is added.
    assert_eq!(stub.versions(SUBJECT).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_auto_register_a_start_names_the_command_that_helps() {
    let stub = Stub::start().await;
    let mut setup = Setup::new(&with_registry(&stub, "autoRegister: false"));
    let file = setup.path("waybill.yaml");
    let up = begin(&mut setup);
    assert_eq!(end(&setup, up).await, Some(1));
    let log = setup.log_tail();
    assert!(log.contains("waybill schemas register"), "{log}");

    let lines = |command: &str| {
        let output = waybill(&file, &["schemas", command]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let missing = lines("check");
    assert!(
        missing
            .lines()
            .all(|line| line.ends_with(": not registered")),
        "{missing}"
    );
    assert!(stub.versions(SUBJECT).is_empty());
    let json = |command: &str| -> Vec<Value> {
        let output = waybill(&file, &["schemas", command, "--output", "json"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let view =
        |id: Value, now: bool| json!({ "subject": SUBJECT, "schema": id, "registeredNow": now });
    assert!(json("check").contains(&view(Value::Null, false)));
    let registered = lines("register");
    let [id] = stub.versions(SUBJECT)[..] else {
        panic!("{registered}")
    };
    assert!(registered.contains(&format!("{SUBJECT}: registered, schema {id}\n")));
    let there = lines("check");
    assert!(
        there.contains(&format!("{SUBJECT}: schema {id}\n")),
        "{there}"
    );
    assert_eq!(lines("register"), there);
    assert_eq!(json("check").len(), there.lines().count());
    assert!(json("check").contains(&view(id.into(), false)));

    let up = setup.up();
    setup.ready().await;
    let delivered = setup.deliver(&delivery("registered", false)).await;
    setup.all_reach(&[delivered], "Processed").await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_current_schema_is_registered_after_an_older_one() {
    let stub = Stub::start().await;
    let schema = schema_of(RecordKind::StepReply);
    let mut older: serde_json::Value = serde_json::from_str(schema.json).unwrap();
    let fields = older["fields"].as_array_mut().unwrap();
    fields.retain(|field| field["name"] != "nonce");
    stub.give(SUBJECT, &older.to_string());
    let mut setup = Setup::new(&with_registry(&stub, ""));
    let up = begin(&mut setup);
    setup.ready().await;
    assert_eq!(stub.versions(SUBJECT).len(), 2);
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}
