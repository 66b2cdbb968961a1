//! Three brokers with three copies of everything, which are killed one after the other.

use std::path::Path;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use waybill_test_support::ports::free_address;
use waybill_test_support::setup::PATIENCE;

use crate::cluster::{Cluster, deliver_while};
use crate::is_remote;
use crate::servers::{Kind, Server};

const BROKERS: usize = 3;
/// Deliveries during each kill. A multiple of five, because one in five is remote.
const ROUND: usize = 400;
/// The pause before the brokers are asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn any_leading_broker_of_three_may_be_killed_without_losing_a_delivery() {
    let Some(mut cluster) = Cluster::new_or_skip().await else {
        return;
    };
    if std::env::var_os("WAYBILL_TEST_THREE_BROKERS").is_none() {
        println!("SKIPPED: three brokers, each killed: `make test-brokers` runs it");
        return;
    }
    let mut brokers = start_all(cluster.dir());
    let addresses: Vec<&str> = brokers
        .iter()
        .map(|broker| broker.address.as_str())
        .collect();
    cluster.brokers = addresses.join(",");
    cluster.copies = 3;
    cluster.migrate();
    let services = cluster.services("");
    let members = [
        cluster.scheduler("0-1", ""),
        cluster.scheduler("2-3", ""),
        cluster.supervisor(""),
        cluster.agents(&services, ""),
        cluster.agents(&services, ""),
    ];
    let ingestion = cluster.ingestion(&services, "");
    for member in &members {
        member.setup.ready().await;
    }

    let consumer: BaseConsumer = cluster.kafka_client();
    let setups = [ingestion.setup.clone()];
    let mut ids = Vec::new();
    for round in 0..BROKERS {
        all_in_sync(&consumer, &cluster).await;
        let leader = leader_of_the_first(&consumer, &cluster);
        println!("measured: round {round}: broker {leader} leads partition 0 and is killed");
        let broker = &mut brokers[leader - 1];
        let kill = || broker.kill();
        ids.extend(deliver_while(&setups, &format!("round-{round}"), ROUND, kill).await);
        setups[0].all_reach(&ids, "Processed").await;
        brokers[leader - 1].start_again();
    }
    setups[0]
        .assert_one_effect_per_step(&ids, |index| is_remote(index % ROUND))
        .await;
    for member in &members {
        member.setup.ready().await;
    }
    drop((services, members, ingestion));
}

/// Starts all brokers at the same time, because no broker becomes ready alone.
fn start_all(dir: &Path) -> Vec<Server> {
    let ports: Vec<u16> = (0..BROKERS).map(|_| free_address().port()).collect();
    let voters = (1..)
        .zip(&ports)
        .map(|(node, port)| format!("{node}@127.0.0.1:{port}"));
    let voters = voters.collect::<Vec<_>>().join(",");
    let starting = (1..).zip(&ports).map(|(node, port)| {
        let flags = [
            "--node",
            &format!("{node}"),
            "--controller-port",
            &format!("{port}"),
            "--voters",
            &voters,
        ];
        let kind = Kind::Kafka(flags.map(str::to_owned).into());
        let dir = dir.join(format!("broker-{node}"));
        std::thread::spawn(move || Server::start(kind, &dir))
    });
    let starting: Vec<_> = starting.collect();
    let started = starting.into_iter().map(|broker| broker.join());
    started
        .map(|broker| broker.expect("a broker starts"))
        .collect()
}

/// The number of the broker that leads the first partition of the requests.
fn leader_of_the_first(consumer: &BaseConsumer, cluster: &Cluster) -> usize {
    let topic = format!("{}.operation-requests.v1", cluster.name);
    let metadata = consumer.fetch_metadata(Some(&topic), PATIENCE);
    let metadata = metadata.expect("the brokers answer");
    let partitions = metadata.topics()[0].partitions();
    let first = partitions.iter().find(|partition| partition.id() == 0);
    usize::try_from(first.expect("it has a first partition").leader()).expect("it has a leader")
}

/// Waits until every copy of every partition of the cluster's topics is in sync.
async fn all_in_sync(consumer: &BaseConsumer, cluster: &Cluster) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let metadata = consumer.fetch_metadata(None, PATIENCE);
        let behind = metadata.map(|metadata| {
            let topics = metadata.topics().iter();
            let own = topics.filter(|topic| topic.name().contains(&cluster.name));
            let partitions = own.flat_map(|topic| topic.partitions());
            partitions
                .filter(|partition| partition.isr().len() < BROKERS)
                .count()
        });
        if behind.as_ref().is_ok_and(|behind| *behind == 0) {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "not in sync: {behind:?}"
        );
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}
