//! `waybill doctor` and `waybill explain lag`: what they say of a system at work, and of one that stands still.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::world::process::without_test_variables;
use crate::world::{World, delivery};

const DELIVERIES: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_holds_the_checkpoints_is_named_and_what_an_operation_waits_for() {
    // Who lingers is not handed off meanwhile.
    let config = "partitions: 2\nscheduler: { handOffAfter: 10m }\n";
    let mut world = World::of_either_kind(config);
    let _up = world.up();
    world.ready().await;
    world.put_faults("drone", &json!({ "hangRate": 1 })).await;
    let bodies = (0..DELIVERIES).map(|index| delivery(&format!("held-{index}"), false));
    let ids: BTreeSet<String> = world.deliver_each(bodies).await.into_iter().collect();

    world
        .eventually(
            "every operation holds its checkpoint at the drone",
            async || {
                let lines = json_lines(&run(&world, &["explain", "lag", "--operations", "12"]));
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
    let findings = json_lines(&run(&world, &["doctor", first]));
    let said = |what: &str| {
        let mut of_it = findings.iter().filter(|finding| finding["what"] == what);
        of_it.next().and_then(|finding| finding["said"].as_str())
    };
    assert_eq!(
        said("operation"),
        Some(format!("{first}: Processing").as_str())
    );
    assert_eq!(said("missing"), Some("drone, delivery"));
    assert!(
        said("has it").is_some_and(|who| who.contains("owned by")),
        "{findings:?}"
    );
    let unknown = run(&world, &["doctor", "nobody-knows-it"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doctor_finds_nothing_bad_of_a_system_that_is_well_and_what_is_bad_of_another() {
    let mut world = World::of_either_kind("partitions: 2\n");
    let up = world.up();
    world.ready().await;
    let well = run(&world, &["doctor"]);
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
        "leases",
        "process",
        "api",
    ] {
        assert!(whats.contains(what), "{what} of {whats:?}");
    }
    assert_eq!(whats.contains("clocks"), world.is_on_servers());

    let reader = world.url("admin", "/schedulers/1");
    let stop = world.client.put(reader).json(&json!({ "running": false }));
    stop.send().await.expect("it stops");
    let stopped = bad(&run(&world, &["doctor"]));
    assert_eq!(stopped, ["leases"]);
    up.kill();
    let dead = bad(&run(&world, &["doctor"]));
    assert!(dead.contains(&"api".to_owned()), "{dead:?}");
    assert!(dead.contains(&"leases".to_owned()), "{dead:?}");
}

/// What is bad. The command says so with its exit code.
fn bad(output: &Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let findings = json_lines(output);
    let bad = findings
        .iter()
        .filter(|finding| finding["verdict"] == "bad");
    bad.filter_map(|finding| finding["what"].as_str().map(str::to_owned))
        .collect()
}

fn json_lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(serde_json::from_str);
    lines
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Runs a command that writes JSON to its end.
fn run(world: &World, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_test_variables(&mut command);
    command.envs(world.env.iter().cloned());
    command.args(arguments).args(["--output", "json"]);
    command.arg("--config").arg(world.path("waybill.yaml"));
    for (flag, name) in [("--admin", "admin"), ("--http", "http")] {
        command.arg(flag).arg(world.address(name).to_string());
    }
    if !world.is_on_servers() {
        command
            .arg("--broker-listen")
            .arg(world.address("broker").to_string());
    }
    command.output().expect("the program was built")
}
