//! Brokers that are there and refuse every record, as they do when too few copies are in sync.

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigSource, OwnedResourceSpecifier, ResourceSpecifier,
};
use rdkafka::client::DefaultClientContext;

use crate::cluster::{Cluster, all_end_without_a_person, deliver_while};
use crate::world::delivery;

const ROUND: usize = 200;
/// Longer than a request is waited for, and than a lease.
const REFUSING: Duration = Duration::from_secs(12);
const IN_SYNC: &str = "min.insync.replicas";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_that_refuse_every_record_for_a_while_cost_no_delivery() {
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let ingestion = cluster.ingestion(&services, "");
    let schedulers = [cluster.scheduler("0-1", ""), cluster.scheduler("2-3", "")];
    let others = [cluster.supervisor(""), cluster.agents(&services, "")];
    for member in schedulers.iter().chain(&others) {
        member.world.ready().await;
    }
    let worlds = [ingestion.world.clone()];
    let topics = Topics::of(&cluster).await;
    let handle = tokio::runtime::Handle::current();
    let refuse = || {
        tokio::task::block_in_place(|| {
            handle.block_on(async {
                topics.need_in_sync("2").await;
                let url = worlds[0].url("http", "/api/deliveryrequests");
                let body = delivery("refused", false);
                let answer = worlds[0].client.post(url).json(&body).send().await;
                let status = answer.expect("ingestion answers").status().as_u16();
                assert!(matches!(status, 503 | 504), "{status}");
                tokio::time::sleep(REFUSING).await;
                topics.need_in_sync("1").await;
            });
        });
    };
    let mut ids = deliver_while(&worlds, "refused", ROUND, refuse).await;
    ids.push(worlds[0].deliver(&delivery("refused", false)).await);
    all_end_without_a_person(&worlds[0], &ids).await;
    drop((services, ingestion, schedulers, others));
    cluster.remove().await;
}

/// Topics with the settings that they were made with.
struct Topics {
    admin: AdminClient<DefaultClientContext>,
    settings: Vec<(String, HashMap<String, String>)>,
}

impl Topics {
    /// Those of requests, steps, replies and recoveries.
    async fn of(cluster: &Cluster) -> Self {
        let admin: AdminClient<DefaultClientContext> = cluster.kafka_client();
        let of = |name: &str| format!("{}.{name}.v1", cluster.name);
        let agents = ["account", "package", "third-party", "drone", "delivery"];
        let names = ["operation-requests", "step-replies", "recovery"].map(of);
        let names = names.into_iter();
        let names = names.chain(agents.map(|agent| of(&format!("{agent}.requests"))));
        let names: Vec<String> = names.collect();
        let asked: Vec<_> = names
            .iter()
            .map(|name| ResourceSpecifier::Topic(name))
            .collect();
        let told = admin.describe_configs(&asked, &AdminOptions::new()).await;
        let settings = told.expect("the broker answers").into_iter().map(|topic| {
            let topic = topic.expect("the topic is there");
            let OwnedResourceSpecifier::Topic(name) = topic.specifier else {
                panic!("{:?} is no topic", topic.specifier);
            };
            let entries = topic.entries.into_iter();
            let own = entries.filter(|entry| entry.source == ConfigSource::DynamicTopic);
            let own = own.filter_map(|entry| Some((entry.name, entry.value?)));
            (name, own.collect())
        });
        let settings = settings.collect();
        Self { admin, settings }
    }

    /// Has them need so many copies in sync for each record. There is one.
    async fn need_in_sync(&self, copies: &str) {
        let altered = self.settings.iter().map(|(name, own)| {
            let altered = AlterConfig::new(ResourceSpecifier::Topic(name));
            let own = own.iter().filter(|(key, _)| *key != IN_SYNC);
            let altered = own.fold(altered, |altered, (key, value)| altered.set(key, value));
            altered.set(IN_SYNC, copies)
        });
        let altered: Vec<AlterConfig<'_>> = altered.collect();
        let answers = self
            .admin
            .alter_configs(&altered, &AdminOptions::new())
            .await;
        for answer in answers.expect("the broker answers") {
            answer.expect("the setting is taken");
        }
    }
}
