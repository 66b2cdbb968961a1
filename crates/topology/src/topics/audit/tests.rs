use std::time::Duration;

use waybill_engine::{
    PartitionId, ShardingScheme, StepDefinition, Workflow, WorkflowDefinition, Workflows,
};
use waybill_kafka::PartitionState;
use waybill_messages::Topics;
use waybill_units::ByteSize;

use super::super::needed;
use super::*;
use crate::{EmbeddedTopics, KafkaConfig};

const REQUESTS: &str = "waybill.operation-requests.v1";
const RECOVERIES: &str = "waybill.recovery.v1";
const NOTICES: &str = "waybill.owner-notices.v1";

/// Four partitions of one shard each, on the embedded broker.
fn embedded() -> TopologySettings {
    TopologySettings {
        scheme: ShardingScheme {
            partitions: 4,
            shards_per_partition: 1,
        },
        kafka: KafkaConfig::default(),
        embedded: EmbeddedTopics {
            listen: ([127, 0, 0, 1], 9092).into(),
            segment_bytes: ByteSize::mib(64),
            requests_disk_bytes_max: ByteSize::gib(8),
            recoveries_disk_bytes_max: ByteSize::mib(256),
        },
        operations_retention: Duration::from_secs(7 * 24 * 60 * 60),
    }
}

/// The same on three brokers.
fn on_kafka() -> TopologySettings {
    let mut topology = embedded();
    topology.kafka.brokers = Some(vec!["a:1".to_owned(), "b:2".to_owned()]);
    topology.kafka.replication_factor = 3;
    topology
}

fn workflows() -> Workflows {
    let step = |name: &str| StepDefinition::new(name, name);
    let definition = WorkflowDefinition::new("cake", 1, vec![step("baker"), step("courier")]);
    Workflows::new(vec![Workflow::try_from(definition).unwrap()]).unwrap()
}

fn all(topology: &TopologySettings, broker: BrokerKind) -> Vec<Needed> {
    needed(topology, &workflows(), broker)
}

/// The topics as created.
fn as_made(needed: &[Needed]) -> BTreeMap<String, Found> {
    let found = needed.iter().map(|topic| {
        let brokers: Vec<i32> = (1..=i32::from(topic.spec.replication)).collect();
        let partitions = (0..topic.spec.partitions).map(|partition| PartitionState {
            partition: PartitionId(partition),
            leader: Some(1),
            replicas: brokers.clone(),
            in_sync: brokers.clone(),
        });
        let found = Found {
            partitions: partitions.collect(),
            settings: Some(topic.spec.config.iter().cloned().collect()),
        };
        (topic.spec.name.clone(), found)
    });
    found.collect()
}

/// The findings after one topic was changed.
fn findings(topic: &str, change: impl FnOnce(&mut Found)) -> Vec<Finding> {
    let topology = on_kafka();
    let needed = all(&topology, BrokerKind::Kafka);
    let mut found = as_made(&needed);
    change(found.get_mut(topic).unwrap());
    audit(&topology, BrokerKind::Kafka, &needed, &found)
}

/// The only finding after one setting was changed.
fn with_setting(topic: &str, key: &str, value: &str) -> Option<Finding> {
    let mut findings = findings(topic, |found| {
        let settings = found.settings.as_mut().unwrap();
        settings.insert(key.to_owned(), value.to_owned());
    });
    assert!(findings.len() < 2, "{findings:?}");
    findings.pop()
}

#[test]
fn topics_with_their_required_settings_pass_the_audit() {
    for broker in [BrokerKind::Kafka, BrokerKind::Embedded] {
        for replication in [1, 2, 3, 5] {
            let mut topology = on_kafka();
            topology.kafka.replication_factor = replication;
            let needed = all(&topology, broker);
            let findings = audit(&topology, broker, &needed, &as_made(&needed));
            assert_eq!(findings, [], "{broker:?} {replication}");
        }
    }
}

#[test]
fn a_missing_topic_is_reported_with_the_command_that_creates_it() {
    let topology = on_kafka();
    let needed = all(&topology, BrokerKind::Kafka);
    let mut found = as_made(&needed);
    found.remove(REQUESTS);
    let findings = audit(&topology, BrokerKind::Kafka, &needed, &found);
    let expected = Finding {
        topic: REQUESTS.to_owned(),
        key: "exists",
        found: "no".to_owned(),
        expected: "a topic of 4 partitions and replication factor 3".to_owned(),
        fix: "waybill topics create".to_owned(),
        weight: Weight::Harm,
    };
    assert_eq!(findings, [expected]);
}

#[test]
fn a_wrong_number_of_partitions_is_reported_with_its_fix() {
    let steps = "waybill.courier.requests.v1";
    let doubled = |found: &mut Found| found.partitions.extend(found.partitions.clone());
    let less = |found: &mut Found| found.partitions.truncate(3);
    let one = |found: &mut Found| found.partitions.truncate(1);
    type Change<'a> = &'a dyn Fn(&mut Found);
    let found: [(&str, Change<'_>, &str); 5] = [
        (REQUESTS, &one, ": waybill topics grow 4"),
        (REQUESTS, &doubled, ": waybill topics grow 8"),
        (
            REQUESTS,
            &less,
            ": set `partitions` to 3: its value applies only to new topics",
        ),
        (
            steps,
            &one,
            ": kafka-topics.sh --bootstrap-server a:1,b:2 --alter --topic waybill.courier.requests.v1 --partitions 2",
        ),
        (
            steps,
            &doubled,
            ": delete the topic and create it again with 2 partitions: its step requests are \
             repeated (or set `kafka.stepPartitions` to 4, if the topics of all agents have 4 \
             partitions)",
        ),
    ];
    for (topic, change, fix) in found {
        let findings = findings(topic, change);
        let [finding] = &findings[..] else {
            panic!("{findings:?}")
        };
        assert_eq!((finding.key, finding.weight), ("partitions", Weight::Harm));
        let message = finding.to_string();
        assert!(message.ends_with(fix), "{message}");
    }
}

#[test]
fn each_setting_that_a_guarantee_depends_on_is_checked() {
    use Weight::{Harm, Warning};
    let day = 24 * 60 * 60 * 1000_u64;
    for (topic, key, bad, weight) in [
        (REQUESTS, "cleanup.policy", "compact".to_owned(), Harm),
        (
            REQUESTS,
            "cleanup.policy",
            "compact,delete".to_owned(),
            Harm,
        ),
        // Shorter than configured, as long as rows are kept, and unlimited.
        (REQUESTS, "retention.ms", (2 * day).to_string(), Warning),
        (REQUESTS, "retention.ms", "3599999".to_owned(), Harm),
        (
            "waybill.recovery.v1",
            "retention.ms",
            "60000".to_owned(),
            Harm,
        ),
        (REQUESTS, "retention.ms", (7 * day).to_string(), Harm),
        (REQUESTS, "retention.ms", "-1".to_owned(), Harm),
        (REQUESTS, "retention.bytes", "1000000".to_owned(), Warning),
        (REQUESTS, "max.message.bytes", "1048588".to_owned(), Warning),
        (REQUESTS, "min.insync.replicas", "1".to_owned(), Warning),
        (REQUESTS, "min.insync.replicas", "3".to_owned(), Warning),
        (
            REQUESTS,
            "unclean.leader.election.enable",
            "true".to_owned(),
            Warning,
        ),
        (
            REQUESTS,
            "message.timestamp.type",
            "CreateTime".to_owned(),
            Warning,
        ),
        (REQUESTS, "compression.type", "producer".to_owned(), Harm),
        (REQUESTS, "compression.type", "zstd".to_owned(), Harm),
        (NOTICES, "retention.ms", (8 * day).to_string(), Warning),
    ] {
        let finding = with_setting(topic, key, &bad);
        let finding = finding.unwrap_or_else(|| panic!("{key}={bad} is not found"));
        assert_eq!((finding.key, finding.weight), (key, weight), "{bad}");
        assert_eq!(finding.found, bad);
    }
    for (topic, key, good) in [
        (REQUESTS, "retention.ms", (7 * day - 1).to_string()),
        (REQUESTS, "max.message.bytes", "2000000".to_owned()),
        (
            "waybill.operation-status.v1",
            "retention.ms",
            "-1".to_owned(),
        ),
        (
            "waybill.operation-status.v1",
            "retention.bytes",
            "1000000".to_owned(),
        ),
    ] {
        assert_eq!(with_setting(topic, key, &good), None, "{key}={good}");
    }
}

#[test]
fn the_fix_of_a_setting_sets_the_value_of_a_new_topic() {
    let finding = with_setting(REQUESTS, "min.insync.replicas", "1").unwrap();
    assert_eq!(finding.expected, "2");
    assert_eq!(
        finding.fix,
        "kafka-configs.sh --bootstrap-server a:1,b:2 --alter --entity-type topics \
         --entity-name waybill.operation-requests.v1 --add-config min.insync.replicas=2"
    );
    let finding = with_setting(REQUESTS, "unclean.leader.election.enable", "true").unwrap();
    assert!(
        finding
            .fix
            .ends_with("unclean.leader.election.enable=false"),
        "{finding}"
    );
}

#[test]
fn lost_copies_and_leaders_are_found_with_their_partitions() {
    let findings = findings(REQUESTS, |found| {
        found.partitions[0].replicas.truncate(2);
        found.partitions[0].in_sync.truncate(2);
        found.partitions[1].leader = None;
        found.partitions[3].in_sync.truncate(1);
    });
    let reported: Vec<_> = findings
        .iter()
        .map(|finding| (finding.key, finding.found.as_str(), finding.weight))
        .collect();
    assert_eq!(
        reported,
        [
            ("replication.factor", "2", Weight::Warning),
            ("leader", "none for partitions 1", Weight::Warning),
            (
                "in-sync replicas",
                "incomplete for partitions 3",
                Weight::Warning
            ),
        ]
    );
}

#[test]
fn hidden_settings_are_a_finding_of_their_own() {
    let findings = findings(REQUESTS, |found| found.settings = None);
    let [finding] = &findings[..] else {
        panic!("{findings:?}")
    };
    assert_eq!((finding.key, finding.weight), ("settings", Weight::Warning));
    assert!(
        finding.fix.contains("--operation DescribeConfigs"),
        "{finding}"
    );
}

#[test]
fn bounds_of_the_embedded_broker_are_compared_with_its_disk() {
    let topology = embedded();
    let needed = all(&topology, BrokerKind::Embedded);
    let three_days = "259200000";
    for (topic, key, bad, weight) in [
        (REQUESTS, "flush.messages", "1000", Weight::Warning),
        (NOTICES, "flush.messages", "1000", Weight::Warning),
        (REQUESTS, "waybill.disk.bytes.max", "-1", Weight::Warning),
        (RECOVERIES, "waybill.disk.bytes.max", "-1", Weight::Warning),
        (REQUESTS, "retention.ms", three_days, Weight::Warning),
        (RECOVERIES, "retention.ms", three_days, Weight::Warning),
        (REQUESTS, "retention.ms", "1000", Weight::Harm),
        (RECOVERIES, "retention.bytes", "536870912", Weight::Warning),
    ] {
        let mut found = as_made(&needed);
        let settings = found.get_mut(topic).unwrap().settings.as_mut().unwrap();
        settings.insert(key.to_owned(), bad.to_owned());
        let findings = audit(&topology, BrokerKind::Embedded, &needed, &found);
        let reported: Vec<_> = findings
            .iter()
            .map(|finding| (finding.topic.as_str(), finding.key, finding.weight))
            .collect();
        assert_eq!(reported, [(topic, key, weight)]);
    }
}

/// A setting on the embedded broker of each topic with this name ending.
fn embedded_setting(ends_with: &str, key: &str) -> Vec<Option<String>> {
    let needed = all(&embedded(), BrokerKind::Embedded);
    let topics = needed
        .iter()
        .filter(|topic| topic.spec.name.ends_with(ends_with));
    let setting = |topic: &Needed| {
        let setting = topic.spec.config.iter().find(|(name, _)| name == key);
        setting.map(|(_, value)| value.clone())
    };
    topics.map(setting).collect()
}

#[test]
fn the_embedded_broker_removes_requests_and_recoveries_by_checkpoint_only() {
    for topic in [REQUESTS, "waybill.high-priority-requests.v1", RECOVERIES] {
        for key in ["retention.ms", "retention.bytes"] {
            let setting = embedded_setting(topic, key);
            assert_eq!(setting[0].as_deref(), Some("-1"), "{topic} {key}");
        }
        let bound = embedded_setting(topic, "waybill.disk.bytes.max");
        assert!(bound[0].is_some(), "{topic} is bounded");
    }
}

#[test]
fn the_embedded_broker_syncs_all_that_the_checkpoint_relies_on() {
    let needed = all(&embedded(), BrokerKind::Embedded);
    let not_synced: Vec<&str> = needed
        .iter()
        .filter(|topic| {
            let setting = ("flush.messages".to_owned(), "1".to_owned());
            !topic.spec.config.contains(&setting)
        })
        .map(|topic| topic.spec.name.as_str())
        .collect();
    assert_eq!(
        not_synced,
        [
            "waybill.step-replies.v1",
            "waybill.operation-status.v1",
            "waybill.baker.requests.v1",
            "waybill.courier.requests.v1",
        ]
    );
}

#[test]
fn a_dead_letter_topic_needs_at_least_as_many_partitions_as_its_source() {
    let mut topology = on_kafka();
    topology.kafka.step_partitions = 8;
    let needed = all(&topology, BrokerKind::Kafka);
    let dead_letters = "waybill.courier.requests.v1.dlq";
    let judged = |partitions: usize| {
        let mut found = as_made(&needed);
        let dead_letters = &mut found.get_mut(dead_letters).unwrap().partitions;
        assert_eq!(dead_letters.len(), 8, "as many as their source");
        let one = dead_letters[0].clone();
        dead_letters.resize(partitions, one);
        audit(&topology, BrokerKind::Kafka, &needed, &found)
    };
    assert_eq!(judged(9), []);
    let findings = judged(4);
    let [finding] = &findings[..] else {
        panic!("{findings:?}")
    };
    assert_eq!((finding.key, finding.weight), ("partitions", Weight::Harm));
    let fix = format!("--alter --topic {dead_letters} --partitions 8");
    assert!(finding.fix.ends_with(&fix), "{finding}");
}

#[test]
fn more_replicas_and_in_sync_replicas_than_configured_are_accepted() {
    let mut topology = on_kafka();
    topology.kafka.replication_factor = 1;
    let needed = all(&topology, BrokerKind::Kafka);
    let mut found = as_made(&needed);
    for found in found.values_mut() {
        for state in &mut found.partitions {
            state.replicas = vec![1, 2, 3];
            state.in_sync = vec![1, 2, 3];
        }
        let settings = found.settings.as_mut().unwrap();
        settings.insert("min.insync.replicas".to_owned(), "2".to_owned());
    }
    assert_eq!(audit(&topology, BrokerKind::Kafka, &needed, &found), []);
}

#[test]
fn topics_have_the_partition_count_of_operations_or_their_own() {
    let topology = on_kafka();
    let needed = all(&topology, BrokerKind::Kafka);
    let number_of = |topic: &str| {
        let mut found = as_made(&needed);
        let partitions = &mut found.get_mut(topic).unwrap().partitions;
        let one = partitions[0].clone();
        partitions.resize(24, one);
        let findings = audit(&topology, BrokerKind::Kafka, &needed, &found);
        let [finding] = &findings[..] else {
            panic!("{findings:?}")
        };
        finding.number_of_operations(&needed)
    };
    assert_eq!(number_of(REQUESTS), Some(24));
    assert_eq!(number_of("waybill.courier.requests.v1"), None);
}

/// Growth needs room below the disk limit for two segments of each new partition.
#[test]
fn two_partitions_can_become_sixty_four_below_the_default_bounds() {
    let mut topology = embedded();
    topology.scheme.partitions = 2;
    let needed = all(&topology, BrokerKind::Embedded);
    for topic in [REQUESTS, RECOVERIES] {
        let topic = needed.iter().find(|needed| needed.spec.name == topic);
        let settings = &topic.unwrap().spec.config;
        let number = |key: &str| -> u64 {
            let (_, value) = settings.iter().find(|(name, _)| name == key).unwrap();
            value.parse().unwrap()
        };
        assert!(
            number("segment.bytes") * 64 <= number(DISK_BOUND) / 2,
            "{settings:?}"
        );
    }
}

#[test]
fn a_dead_letter_topic_accepts_records_as_large_as_its_source() {
    let topology = on_kafka();
    for broker in [BrokerKind::Kafka, BrokerKind::Embedded] {
        let needed = all(&topology, broker);
        let bytes_max = |topic: &str| {
            let found = needed.iter().find(|needed| needed.spec.name == topic);
            let mut settings = found.unwrap().spec.config.iter();
            let setting = settings.find(|(key, _)| key == "max.message.bytes");
            setting.unwrap().1.parse::<u64>().unwrap()
        };
        let mut dead_letters = 0;
        for topic in &needed {
            if let Some(source) = Topics::source_of_dead_letter(&topic.spec.name) {
                // There is room for the headers with the reason.
                assert!(bytes_max(&topic.spec.name) >= bytes_max(source) + 64 * 1024);
                dead_letters += 1;
            }
        }
        assert!(dead_letters > 7);
    }
}
