//! Refused starts, and `waybill store`.

use std::process::{Output, Stdio};

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use serde_json::Value;
use waybill_test_support::setup::PATIENCE;

use crate::PARTITIONS;
use crate::cluster::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_with_foreign_partitions_are_refused_with_the_command_that_fixes_them() {
    let Some(mut cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    cluster.grows_soon();
    // Creates topics with the configured settings.
    let mut scheduler = cluster.scheduler("all", "");
    scheduler.setup.ready().await;
    scheduler.terminate();
    let wanted = (PARTITIONS * 2) as usize;
    let topic = format!("{}.operation-requests.v1", cluster.name);
    let admin: AdminClient<DefaultClientContext> = cluster.kafka_client();
    let more = [NewPartitions::new(&topic, wanted)];
    let added = admin.create_partitions(&more, &AdminOptions::new()).await;
    assert_eq!(added.expect("the broker answers"), [Ok(topic.clone())]);
    // The broker answers before its metadata has them.
    scheduler
        .setup
        .eventually("the broker lists the new partitions", async || {
            let metadata = admin.inner().fetch_metadata(Some(&topic), PATIENCE);
            let metadata = metadata.expect("the broker answers");
            metadata.topics()[0].partitions().len() == wanted
        })
        .await;
    for role in ["scheduler", "ingestion", "supervisor"] {
        let refused = cluster.run(&[role, "--http", "127.0.0.1:0"]);
        assert!(!refused.status.success(), "{role}: {refused:?}");
        let message = text(&refused);
        let what = format!("has {wanted} partitions, not {PARTITIONS}");
        let fix = format!("waybill topics grow {wanted}");
        assert!(
            message.contains(&what) && message.contains(&fix),
            "{role}: {message}"
        );
    }

    let mut repartition = cluster.command(&["topics", "grow", &wanted.to_string()]);
    let mut repartition = repartition.spawn().expect("the program was built");
    scheduler
        .setup
        .eventually("more are announced", async || {
            let shown = cluster.run(&["shards", "show", "--output", "json"]);
            let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
            shown["generation"].as_u64() > Some(0)
        })
        .await;
    scheduler.start_again();
    scheduler.setup.ready().await;
    let status = repartition.wait().expect("the child can be waited for");
    assert!(status.success(), "{status}");
    drop(scheduler);
    cluster.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmigrated_store_is_refused_and_two_processes_can_migrate_it() {
    let Some(cluster) = Cluster::new_or_skip().await else {
        return;
    };
    let refused = cluster.run(&["store", "check", "--output", "json"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let view: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(view["schemaVersion"], Value::Null, "{view}");
    let fatal = view["problems"].as_array().unwrap();
    assert!(
        fatal.iter().any(|problem| problem["fatal"] == true),
        "{view}"
    );
    for arguments in [
        &["store", "check"][..],
        &["scheduler"],
        &["ingestion", "--http", "127.0.0.1:0"],
        &["supervisor"],
    ] {
        let refused = cluster.run(arguments);
        assert!(!refused.status.success(), "{arguments:?}: {refused:?}");
        let message = text(&refused);
        assert!(
            message.contains("run `waybill store migrate`"),
            "{arguments:?}: {message}"
        );
    }

    let both = [(), ()].map(|()| {
        let mut command = cluster.command(&["store", "migrate"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program was built")
    });
    for process in both {
        let output = process
            .wait_with_output()
            .expect("the child can be waited for");
        assert_migrated(&cluster, &output);
    }
    assert_migrated(&cluster, &cluster.run(&["store", "migrate"]));

    let checked = cluster.run(&["store", "check", "--output", "json"]);
    let view: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(view["keyspace"], cluster.name.as_str());
    assert_eq!(view["schemaVersion"], view["schemaVersionNeeded"]);
    assert_eq!(view["problems"][0]["fatal"], false, "{view}");
    let checked = cluster.run(&["store", "check"]);
    let message = text(&checked);
    assert!(checked.status.success(), "{message}");
    let keyspace = format!("keyspace: {} (", cluster.name);
    for line in [
        "server: ",
        "datacentre: ",
        "commit log: synced ",
        &keyspace,
        "schema: ",
        "warning: each row is stored 1 times",
    ] {
        assert!(
            message.lines().any(|message| message.starts_with(line)),
            "{line:?}: {message}"
        );
    }
    cluster.remove().await;
}

fn assert_migrated(cluster: &Cluster, output: &Output) {
    assert!(output.status.success(), "{output:?}");
    let message = text(output);
    let ok = format!("ok: keyspace {} is usable\n", cluster.name);
    assert!(message.contains(&ok), "{message}");
}

/// The whole output of a process.
fn text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    both.concat()
}
