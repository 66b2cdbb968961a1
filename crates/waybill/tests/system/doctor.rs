//! `waybill doctor`, `waybill explain lag`, `waybill ready` and `waybill log` on a running and on a
//! stopped system.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::{Value, json};
use waybill_test_support::process::{without_disk_warning, without_variables};
use waybill_test_support::setup::{Setup, delivery};

const DELIVERIES: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_lag_names_what_holds_checkpoints_and_what_operations_wait_for() {
    // Prevents a hand-off during the test.
    let config = "partitions: 2\nscheduler: { handOffAfter: 10m }\n";
    let mut setup = Setup::of_either_kind(config);
    let _up = setup.up();
    setup.ready().await;
    setup.put_faults("drone", &json!({ "hangRate": 1 })).await;
    let bodies = (0..DELIVERIES).map(|index| delivery(&format!("held-{index}"), false));
    let ids: BTreeSet<String> = setup.deliver_each(bodies).await.into_iter().collect();

    setup
        .eventually(
            "every operation holds its checkpoint at the drone",
            async || {
                let lines = json_lines(&run(&setup, &["explain", "lag", "--operations", "12"]));
                let holders = lines.iter().filter_map(|line| line["heldBy"].as_array());
                let at_the_drone = holders.flatten().filter(|holder| {
                    let why = holder["why"].as_str().unwrap_or_default();
                    why.starts_with("step drone, attempt ")
                });
                let held = at_the_drone.filter_map(|holder| holder["operation"].as_str());
                held.map(str::to_owned).collect::<BTreeSet<_>>() == ids
            },
        )
        .await;

    let first = ids.first().expect("there are some");
    let findings = json_lines(&run(&setup, &["doctor", first]));
    let message = |what: &str| {
        let mut of_it = findings.iter().filter(|finding| finding["what"] == what);
        of_it.next().and_then(|finding| finding["message"].as_str())
    };
    assert_eq!(
        message("operation"),
        Some(format!("{first}: Processing").as_str())
    );
    assert_eq!(message("missing"), Some("drone, delivery"));
    assert!(
        message("has it").is_some_and(|who| who.contains("owned by")),
        "{findings:?}"
    );
    let unknown = run(&setup, &["doctor", "nobody-knows-it"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_passes_a_healthy_system_and_finds_faults() {
    let mut setup = Setup::of_either_kind("partitions: 2\n");
    let up = setup.up();
    setup.ready().await;
    let well = run(&setup, &["doctor"]);
    assert_eq!(well.status.code(), Some(0), "{well:?}");
    let whats: BTreeSet<String> = json_lines(&well)
        .iter()
        .filter_map(|finding| finding["what"].as_str().map(str::to_owned))
        .collect();
    for what in [
        "configuration",
        "brokers",
        "topics",
        "lag",
        "dead letters",
        "leases",
        "process",
        "api",
    ] {
        assert!(whats.contains(what), "{what} of {whats:?}");
    }
    assert_eq!(whats.contains("clocks"), setup.is_on_servers());

    let shard = setup.url("admin", "/schedulers/1");
    let stop = setup.client.put(shard).json(&json!({ "running": false }));
    stop.send().await.expect("it stops");
    let stopped = run(&setup, &["doctor"]);
    assert_eq!(bad(&stopped), ["leases"]);
    let expected = "shard 1 is stopped, as requested";
    assert!(
        String::from_utf8_lossy(&stopped.stdout).contains(expected),
        "{stopped:?}"
    );
    let shard = setup.url("admin", "/schedulers/1");
    let start = setup.client.put(shard).json(&json!({ "running": true }));
    start.send().await.expect("it begins");
    setup
        .eventually("the installation is healthy again", async || {
            run(&setup, &["doctor"]).status.code() == Some(0)
        })
        .await;

    setup.put_faults("drone", &json!({ "errorRate": 1 })).await;
    let bodies = (0..DELIVERIES).map(|index| delivery(&format!("failing-{index}"), false));
    setup.deliver_each(bodies).await;
    setup
        .eventually(
            "doctor reports the breaker of the failing service",
            async || {
                let output = run(&setup, &["doctor"]);
                let mut findings = json_lines(&output).into_iter();
                findings.any(|finding| finding["what"] == "breakers" && finding["verdict"] == "bad")
            },
        )
        .await;
    up.kill();
    if setup.is_on_servers() {
        // Its leases are in the store, and expire.
        setup
            .eventually("its leases have run out", async || {
                let findings = json_lines(&run(&setup, &["doctor"]));
                let leases = findings
                    .iter()
                    .filter(|finding| finding["what"] == "leases");
                leases.filter(|finding| finding["verdict"] == "bad").count() == 2
            })
            .await;
    } else {
        let bad = bad(&run(&setup, &["doctor"]));
        assert_eq!(bad, ["brokers", "leases", "process", "api"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_and_verify_do_not_judge_a_process_by_another_configuration() {
    let mut setup = Setup::of_either_kind("partitions: 2\n");
    let file = setup.path("misspelt.yaml");
    std::fs::write(&file, MISSPELT).expect("the directory is writable");
    let configured = std::fs::read_to_string(setup.path("waybill.yaml")).unwrap_or_default();
    let yaml = format!(
        "{configured}\nworkflows: {{ builtIn: false, files: [{}] }}\n",
        file.display()
    );
    std::fs::write(setup.path("waybill.yaml"), yaml).expect("the directory is writable");
    // The built-in agents would wait for their topics.
    let listeners = ["http", "admin", "broker", "services"];
    let _up = setup.start("up", &["--no-agents"], &listeners);
    setup.ready().await;
    let shown = setup.client.get(setup.url("admin", "/process"));
    let shown = shown.send().await.expect("it answers");
    let shown: Value = shown.json().await.expect("it is JSON");
    let data = setup.path("data");
    assert_eq!(shown["role"], "up");
    assert_eq!(shown["dataDir"], data.to_str().expect("it is text"));
    assert_eq!(
        shown["workflows"],
        json!([{ "name": "misspelt", "version": 1 }])
    );
    assert_eq!(shown["agents"], json!(["chrage"]));

    // As if the command lacked the process's --config.
    std::fs::write(setup.path("waybill.yaml"), configured).expect("the directory is writable");
    let output = run(&setup, &["doctor"]);
    assert_eq!(bad(&output), ["configuration"]);
    let findings = json_lines(&output);
    let message = findings[0]["message"].as_str().unwrap_or_default();
    let expected = format!(
        "this configuration differs from that of the process at http://{}: pass that process's --config, or restart \
         the process if its files have changed (workflows only there: misspelt version 1; workflows only here: \
         drone-delivery version 1)",
        setup.address("admin")
    );
    assert_eq!(message, expected);
    for dependent in ["topics", "agents", "lag", "dead letters"] {
        let is_about = |finding: &Value| finding["what"] == dependent;
        assert!(!findings.iter().any(is_about), "{findings:?}");
    }
    assert!(findings.iter().any(|finding| finding["what"] == "leases"));
    let verified = plain(&setup, &["topics", "verify"]);
    assert_eq!(verified.status.code(), Some(1), "{verified:?}");
    let message = String::from_utf8_lossy(&verified.stderr);
    assert!(message.contains(&expected), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_logs_that_parked_operations_lack_their_workflow() {
    let mut setup = Setup::of_either_kind("partitions: 2\n");
    let up = setup.up();
    setup.ready().await;
    setup.put_faults("drone", &json!({ "refuseRate": 1 })).await;
    let refused = json!({ "undoRefuseRate": 1 });
    setup.put_faults("package", &refused).await;
    let bodies = (0..4).map(|index| delivery(&format!("left-{index}"), false));
    let ids = setup.deliver_each(bodies).await;
    setup.all_reach(&ids, "CompensationFailed").await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());

    let file = setup.path("other.yaml");
    std::fs::write(&file, MISSPELT).expect("the directory is writable");
    let configured = std::fs::read_to_string(setup.path("waybill.yaml")).unwrap_or_default();
    let files = format!("{{ builtIn: false, files: [{}] }}", file.display());
    let yaml = format!("{configured}\nworkflows: {files}\n");
    std::fs::write(setup.path("waybill.yaml"), yaml).expect("the directory is writable");
    let _up = setup.again("up", &[], &["http", "admin", "broker", "services"]);
    let said = || {
        let log = std::fs::read_to_string(setup.path("log.txt")).unwrap_or_default();
        let lines = log.lines().map(str::to_owned);
        let lines = lines.filter(|line| line.contains("a parked operation cannot continue"));
        lines.collect::<Vec<_>>()
    };
    setup
        .eventually("the log names the workflow", async || !said().is_empty())
        .await;
    let parked = async || setup.metric("waybill_parked_operations", "").await;
    setup
        .eventually("all are counted", async || parked().await >= 4.0)
        .await;
    let said = said();
    assert_eq!(said.len(), 1, "{said:#?}");
    let named = r#"workflow="drone-delivery" version=1"#;
    let is_named = said[0].contains(named) || said[0].contains(&named.replace('"', ""));
    assert!(is_named, "{said:#?}");
}

/// A workflow with a misspelt agent.
const MISSPELT: &str = "
name: misspelt
version: 1
steps:
  - name: pay
    agent: chrage
    kind: pure
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_start_and_doctor_name_an_agent_without_a_process() {
    let mut setup = Setup::of_either_kind("");
    let file = setup.path("misspelt.yaml");
    std::fs::write(&file, MISSPELT).expect("the directory is writable");
    let yaml = format!(
        "partitions: 2\nworkflows: {{ files: [{}] }}\n",
        file.display()
    );
    std::fs::write(setup.path("waybill.yaml"), yaml).expect("the directory is writable");
    let mut check = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut check);
    check
        .args(["config", "check"])
        .arg(setup.path("waybill.yaml"));
    let checked = check.output().expect("the program was built");
    assert_eq!(checked.status.code(), Some(0), "it may run elsewhere");
    assert_eq!(
        without_disk_warning(&String::from_utf8_lossy(&checked.stdout)),
        "ok; agents not in any file: chrage\n"
    );

    let _up = setup.up();
    setup.ready().await;
    let log = std::fs::read_to_string(setup.path("log.txt")).unwrap_or_default();
    let warnings: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("a workflow names an agent that is neither built in"))
        .collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("chrage"), "{warnings:?}");

    let of_agents = || {
        let output = run(&setup, &["doctor"]);
        let findings = json_lines(&output).into_iter();
        findings
            .filter(|finding| finding["what"] == "agents")
            .collect::<Vec<_>>()
    };
    let topic = setup.topic("chrage.requests");
    setup
        .eventually("the agents have divided the work", async || {
            of_agents()
                == [json!({
                    "what": "agents", "verdict": "note",
                    "message": format!(
                        "no consumer reads {topic}, and no requests wait there: no process runs the agent chrage, or \
                         its client does not use the partition.assignment.strategy cooperative-sticky of the group {}",
                        setup.topic("chrage.requests").replace(".chrage.requests.v1", "-agents"),
                    ),
                })]
        })
        .await;
    let body = json!({ "workflow": "misspelt", "id": "unpaid", "input": {} });
    let url = setup.url("http", "/v1/operations");
    let answer = setup.client.post(url).json(&body).send().await;
    assert!(answer.is_ok_and(|answer| answer.status().is_success()));
    setup
        .eventually("its request waits", async || {
            let found = of_agents();
            let message = found[0]["message"].as_str().unwrap_or_default();
            let waits = format!("no consumer reads {topic}, and requests wait there (1): ");
            found.len() == 1 && found[0]["verdict"] == "bad" && message.starts_with(&waits)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_reports_its_readiness_and_changes_its_log_filter_on_request() {
    let mut setup = Setup::of_either_kind("partitions: 2\n");
    let up = setup.up();
    let ready = plain(&setup, &["ready", "--wait", "60s"]);
    assert_eq!(ready.status.code(), Some(0), "{ready:?}");
    let ready = plain(&setup, &["ready", "--output", "json"]);
    assert_eq!(
        json_lines(&ready),
        [json!({ "ready": true, "warnings": [], "waitsFor": [], "why": null })]
    );

    let detail = "DEBUG waybill";
    let log = || std::fs::read_to_string(setup.path("log.txt")).unwrap_or_default();
    assert!(!log().contains(detail));
    let message = |output: &Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert_eq!(message(&plain(&setup, &["log"])), "info");
    let changed = plain(&setup, &["log", "info,waybill=debug"]);
    assert_eq!(message(&changed), "info,waybill=debug", "{changed:?}");
    let refused = plain(&setup, &["log", "bananas"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(message(&plain(&setup, &["log"])), "info,waybill=debug");

    // For example, the stop of each part is logged as such a detail.
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
    assert!(log().contains(detail), "{}", log());
    let gone = plain(&setup, &["ready", "--output", "json"]);
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
    let [gone] = &json_lines(&gone)[..] else {
        panic!("{gone:?}")
    };
    assert_eq!(gone["ready"], false);
    let why = gone["why"].as_str().unwrap();
    assert!(why.contains("/readyz does not answer: "), "{why}");
}

/// The bad findings. Asserts that the exit code matches.
pub(crate) fn bad(output: &Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let findings = json_lines(output);
    let bad = findings
        .iter()
        .filter(|finding| finding["verdict"] == "bad");
    bad.filter_map(|finding| finding["what"].as_str().map(str::to_owned))
        .collect()
}

pub(crate) fn json_lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(serde_json::from_str);
    lines
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Runs a command that prints JSON to its end.
pub(crate) fn run(setup: &Setup, arguments: &[&str]) -> Output {
    plain(setup, &[arguments, &["--output", "json"]].concat())
}

/// Runs a command to its end.
fn plain(setup: &Setup, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command);
    command.envs(setup.env.iter().cloned());
    command.args(arguments);
    command.arg("--config").arg(setup.path("waybill.yaml"));
    for (flag, name) in [("--admin", "admin"), ("--http", "http")] {
        command.arg(flag).arg(setup.address(name).to_string());
    }
    if !setup.is_on_servers() {
        command
            .arg("--broker-listen")
            .arg(setup.address("broker").to_string());
    }
    command.output().expect("the program was built")
}
