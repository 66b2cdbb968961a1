//! The topics: what each of them needs, made before anything reads or writes them, and held against
//! what is found.
//!
//! [`needed`] is the one table of it. Roles make what is missing when they start, and refuse to start
//! where what stands there would do harm; `waybill topics` does the same by hand.
//!
//! What must hold: a topic that exists is never changed here, and none comes into being with settings
//! that are not in the table.

mod audit;
mod describe;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use waybill_engine::Workflows;
use waybill_kafka::{Admin, AdminError, ErrorCode, KafkaSettings, TopicSpec};
use waybill_messages::{DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX, Topics};

pub use audit::{Finding, RETENTION_MS_MIN, SETTINGS_THAT_MATTER, Weight, audit};
pub use describe::{Found, describe};

use crate::TopologySettings;

/// The key that says over how many partitions operations are spread.
const PARTITIONS_KEY: &str = "partitions";
/// How long a broker may take to come up.
const BROKER_PATIENCE: Duration = Duration::from_secs(60);
/// How long a topic that was made may be unknown to the broker that is asked.
const TOPIC_PATIENCE: Duration = Duration::from_secs(30);
/// For how long a topic that is there and says nothing of itself may have come into being just now.
const KIND_PATIENCE: Duration = Duration::from_secs(2);
/// How long after it was unknown a topic is asked for again.
const TOPIC_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Segments of topics whose records are derived and soon forgotten.
const STEP_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Segments of recoveries at most. They are few and small, and their topic's bound has to hold a segment for each
/// partition that is added later.
const RECOVERY_SEGMENT_BYTES_MAX: u64 = 1024 * 1024;
/// The smallest segment that a topic with a bound on disk is given.
const SEGMENT_BYTES_MIN: u64 = 64 * 1024;
/// Into how many segments each partition's part of the bound on disk is cut, so that space is given back.
const SEGMENTS: u64 = 4;

/// The least bound on disk of a topic of requests, or of recoveries: one whose segments, each of which may lie there
/// as the last of its partition, leave room for others.
pub fn disk_bytes_min(partitions: u32) -> u64 {
    SEGMENTS * SEGMENT_BYTES_MIN * u64::from(partitions)
}
/// What a partition of step requests or replies keeps on the embedded broker. Far more than can be
/// in flight.
const STEP_PARTITION_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// What a partition of status records, failed operations, alerts or dead letters keeps on it.
const RESULT_PARTITION_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// How long the topics that hold personal data alone keep it at most.
const CONTACTS_RETENTION_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How a topic says that a bound is none.
pub const UNBOUNDED: &str = "-1";

/// After how many records a topic is synced. With 1, all that is acknowledged is.
pub const FLUSH: &str = "flush.messages";

/// Whose time a record has: its sender's, or that of the broker that appended it.
pub const TIMESTAMPS: &str = "message.timestamp.type";
const LOG_APPEND_TIME: &str = "LogAppendTime";

/// How batches are kept. The embedded broker keeps all of them uncompressed.
pub const COMPRESSION: &str = "compression.type";
const UNCOMPRESSED: &str = "uncompressed";

/// The bound of a topic's size on disk, which no broker but the embedded one has.
pub const DISK_BOUND: &str = "waybill.disk.bytes.max";
/// Whether a topic refuses records while the disk is low: of the embedded broker, too.
pub const REFUSE_ON_LOW_DISK: &str = "waybill.disk.low.refuse";

/// Which broker it is, as far as the topics differ by that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BrokerKind {
    /// The embedded one: a single machine's disk makes records durable, and is bounded.
    Embedded,
    /// Apache Kafka, or what speaks like it: copies make records durable.
    Kafka,
}

/// What a topic carries. What its settings may be follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// What was accepted.
    Requests,
    /// What supervisors and operators ask for.
    Recoveries,
    /// Step requests and replies, which can be derived again.
    Steps,
    /// Each change of an operation's state. Its row says the same.
    Statuses,
    /// Failed operations and alerts, which nothing else tells of.
    Results,
    /// Who is notified of it: personal data.
    Notices,
    /// Records that could not be read.
    DeadLetters,
    /// Notices that could not be read: personal data, too.
    DeadNotices,
}

/// A topic that Waybill needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needed {
    /// What it holds.
    pub kind: Kind,
    /// Its name, partitions and settings.
    pub spec: TopicSpec,
    /// The key that says how many partitions it has.
    partitions_key: &'static str,
}

/// What became of a topic that is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was missing, and was made.
    Made,
    /// It stood there already.
    Existed,
}

/// Creates what is missing, and looks whether what is there would do harm. Operation topics `may_have` other
/// numbers of partitions than the configured one. `is_alone` whoever has its store to itself. Returns which broker
/// it is.
pub async fn create(
    topology: &TopologySettings,
    kafka: &KafkaSettings,
    workflows: &Workflows,
    may_have: &[u32],
    is_alone: bool,
) -> anyhow::Result<BrokerKind> {
    let admin = Admin::new(kafka, "waybill-admin")?;
    admin.wait_ready(BROKER_PATIENCE).await?;
    let broker = broker_kind(&admin, topology).await?;
    let needed = needed(topology, workflows, broker);
    make(&admin, topology, &needed).await?;
    let found = describe_all(&admin, &needed)
        .await
        .map_err(|error| explained(error, topology))?;
    let mut findings = audit(topology, broker, &needed, &found);
    let number = |finding: &Finding| finding.number_of_operations(&needed);
    findings.retain(|finding| !number(finding).is_some_and(|has| may_have.contains(&has)));
    for finding in &mut findings {
        // Nobody but this process has an embedded store, so nobody else could mend what stops it.
        if is_alone
            && number(finding).is_some_and(|has| has.is_multiple_of(topology.scheme.partitions))
        {
            finding.weight = Weight::Warning;
        }
    }
    refuse_harm(&findings).map_err(|harm| match topology.kafka.brokers {
        Some(_) => harm,
        None => harm.context("the embedded broker stops with this process; `waybill broker` starts it alone, for the repair"),
    })?;
    Ok(broker)
}

/// Looks whether the step requests of `agents` are in topics that keep batches compressed. Passes over topics that do
/// not exist yet, and over those whose settings the broker does not show to this user.
///
/// # Errors
///
/// If there is such a topic, or the brokers cannot be asked.
pub async fn check_step_requests(
    topology: &TopologySettings,
    kafka: &KafkaSettings,
    agents: &[&str],
) -> anyhow::Result<()> {
    let names = Topics::new(&topology.kafka.topic_prefix);
    // Which broker it is does not matter: the embedded one keeps nothing compressed.
    let needed: Vec<Needed> = agents
        .iter()
        .map(|agent| of_steps(topology, &names.step_requests(agent), BrokerKind::Kafka))
        .collect();
    let admin = Admin::new(kafka, "waybill-admin")?;
    admin.wait_ready(BROKER_PATIENCE).await?;
    let found = describe(&admin, &needed)
        .await
        .map_err(|error| explained(error, topology))?;
    let mut findings = audit(topology, BrokerKind::Kafka, &needed, &found);
    findings.retain(|finding| finding.key == COMPRESSION);
    refuse_harm(&findings)
}

/// Logs the findings that are warnings.
///
/// # Errors
///
/// If any are harm: these, a line each.
fn refuse_harm(findings: &[Finding]) -> anyhow::Result<()> {
    let (harm, warnings): (Vec<_>, Vec<_>) = findings
        .iter()
        .partition(|finding| finding.weight == Weight::Harm);
    for finding in warnings {
        tracing::warn!(
            topic = finding.topic,
            key = finding.key,
            found = finding.found,
            expected = finding.expected,
            fix = finding.fix,
            "a topic differs from its required configuration"
        );
    }
    let harm: Vec<String> = harm.iter().map(ToString::to_string).collect();
    anyhow::ensure!(harm.is_empty(), "{}", harm.join("\n"));
    Ok(())
}

/// Looks at topics that were all there, or made, a moment ago: a broker may answer that has not heard of
/// them yet.
async fn describe_all(
    admin: &Admin,
    needed: &[Needed],
) -> Result<BTreeMap<String, Found>, AdminError> {
    let deadline = Instant::now() + TOPIC_PATIENCE;
    loop {
        let found = describe(admin, needed).await?;
        if found.len() == needed.len() || Instant::now() >= deadline {
            return Ok(found);
        }
        tokio::time::sleep(TOPIC_AGAIN_AFTER).await;
    }
}

/// Which broker it is. Asks it, unless the configuration says: the embedded broker of another process
/// is reached like any other.
pub async fn broker_kind(admin: &Admin, topology: &TopologySettings) -> anyhow::Result<BrokerKind> {
    if topology.kafka.brokers.is_none() {
        return Ok(BrokerKind::Embedded);
    }
    let names = Topics::new(&topology.kafka.topic_prefix);
    let deadline = Instant::now() + KIND_PATIENCE;
    loop {
        let told = kind_told(admin, names.requests(), topology.scheme.partitions).await;
        match told.map_err(|error| explained(error, topology))? {
            Some(kind) => return Ok(kind),
            // Not for us to see.
            None if Instant::now() >= deadline => return Ok(BrokerKind::Kafka),
            None => tokio::time::sleep(TOPIC_AGAIN_AFTER).await,
        }
    }
}

/// What the broker says of itself by the topic of requests; `None` where that topic came into being between
/// two questions, or where it is there and not for us to see.
async fn kind_told(
    admin: &Admin,
    requests: &str,
    partitions: u32,
) -> Result<Option<BrokerKind>, AdminError> {
    let kind = |is_embedded| match is_embedded {
        true => BrokerKind::Embedded,
        false => BrokerKind::Kafka,
    };
    let settings = admin.topic_settings(&[requests]).await?;
    if let Some(settings) = settings.get(requests) {
        return Ok(Some(kind(settings.contains_key(DISK_BOUND))));
    }
    // Would it be made with this setting?
    let mut spec = TopicSpec::new(requests, partitions);
    spec.config.push((DISK_BOUND.to_owned(), "-1".to_owned()));
    match admin.try_topics(&[spec]).await {
        Ok(would_be_made) if would_be_made.is_empty() => Ok(None),
        Ok(_) => Ok(Some(kind(true))),
        Err(AdminError::Topic { .. }) => Ok(Some(kind(false))),
        Err(error) => Err(error),
    }
}

/// Makes what is missing, and says what became of each topic, in their order. May be repeated, and two
/// may do it at once.
pub async fn make(
    admin: &Admin,
    topology: &TopologySettings,
    needed: &[Needed],
) -> anyhow::Result<Vec<Outcome>> {
    // Only what is missing is asked for, so that who may make no topics can run where they stand.
    let missing = missing(admin, topology, needed).await?;
    let specs: Vec<TopicSpec> = missing.iter().map(|topic| topic.spec.clone()).collect();
    let made = admin
        .create_topics(&specs)
        .await
        .map_err(|error| explained(error, topology))
        .context("the topics cannot be made")?;
    for topic in &missing {
        let name = &topic.spec.name;
        anyhow::ensure!(
            admin.wait_for_topic(name, TOPIC_PATIENCE).await?.is_some(),
            "topic {name} was made, and the broker does not know it"
        );
    }
    let outcome = |topic: &Needed| match made.contains(&topic.spec.name) {
        true => Outcome::Made,
        false => Outcome::Existed,
    };
    Ok(needed.iter().map(outcome).collect())
}

/// Those that are not there.
pub async fn missing<'a>(
    admin: &Admin,
    topology: &TopologySettings,
    needed: &'a [Needed],
) -> anyhow::Result<Vec<&'a Needed>> {
    let mut missing = Vec::new();
    for topic in needed {
        let partitions = admin.topic_partitions(&topic.spec.name).await;
        if partitions
            .map_err(|error| explained(error, topology))?
            .is_none()
        {
            missing.push(topic);
        }
    }
    Ok(missing)
}

const FORBIDDEN: [ErrorCode; 2] = [
    ErrorCode::TopicAuthorizationFailed,
    ErrorCode::ClusterAuthorizationFailed,
];

/// Whether the brokers refused for lack of rights.
#[must_use]
pub fn is_forbidden(error: &anyhow::Error) -> bool {
    let of_brokers = error.chain().find_map(|cause| cause.downcast_ref());
    let code = of_brokers.and_then(code_of);
    code.is_some_and(|code| FORBIDDEN.contains(&code))
}

fn code_of(error: &AdminError) -> Option<ErrorCode> {
    match error {
        AdminError::Topic { code, .. } => Some(*code),
        AdminError::Request { source, .. } => source.rdkafka_error_code(),
        AdminError::NotReady { .. } | AdminError::Refused { .. } | AdminError::Stopped => None,
    }
}

/// An error of the brokers, with what to do about it where that is known.
pub fn explained(error: AdminError, topology: &TopologySettings) -> anyhow::Error {
    let advice = match code_of(&error) {
        Some(code) if FORBIDDEN.contains(&code) => match &topology.kafka.brokers {
            Some(_) => {
                "the brokers do not allow this to the user of kafka.properties; docs/cluster.md names the rights that are \
                 needed"
            }
            None => {
                "the embedded broker does not allow this with this token; docs/security.md names the scopes that are needed"
            }
        }
        .to_owned(),
        Some(ErrorCode::PolicyViolation) => {
            "a policy of the brokers forbids this; let somebody make the topics who may, as \
             `waybill topics create --dry-run` shows them"
                .to_owned()
        }
        Some(ErrorCode::InvalidPartitions) if topology.kafka.brokers.is_none() => {
            "the embedded broker may not have so many partitions in all its topics: raise broker.partitionsMax".to_owned()
        }
        Some(ErrorCode::InvalidReplicationFactor) => format!(
            "kafka.replicationFactor is {}, and must not exceed the number of brokers",
            topology.kafka.replication_factor
        ),
        Some(_) | None => return error.into(),
    };
    anyhow::Error::new(error).context(advice)
}

/// What each topic needs.
pub fn needed(
    topology: &TopologySettings,
    workflows: &Workflows,
    broker: BrokerKind,
) -> Vec<Needed> {
    let names = Topics::new(&topology.kafka.topic_prefix);
    let of = |name: &str, kind: Kind| needs(topology, name, kind, broker);
    let dead_letters = |name: &str| of(&Topics::dead_letter(name), Kind::DeadLetters);
    let dead_notices = Topics::dead_letter(names.owner_notices());
    let mut needed = vec![
        of(names.requests(), Kind::Requests),
        of(names.high_priority_requests(), Kind::Requests),
        of(names.step_replies(), Kind::Steps),
        of(names.recovery(), Kind::Recoveries),
        of(names.operation_status(), Kind::Statuses),
        of(names.failed_operations(), Kind::Results),
        of(names.operator_alerts(), Kind::Results),
        of(names.owner_notices(), Kind::Notices),
        dead_letters(names.requests()),
        dead_letters(names.high_priority_requests()),
        dead_letters(names.step_replies()),
        dead_letters(names.recovery()),
        dead_letters(names.failed_operations()),
        dead_letters(names.operator_alerts()),
        of(&dead_notices, Kind::DeadNotices),
    ];
    for agent in workflows.agents() {
        let topic = names.step_requests(&agent);
        // A dead letter goes to the partition of the record that it keeps.
        let dead_letters = needs(
            topology,
            &Topics::dead_letter(&topic),
            Kind::DeadLetters,
            broker,
        );
        needed.push(with_step_partitions(topology, dead_letters));
        needed.push(of_steps(topology, &topic, broker));
    }
    needed
}

/// What a topic needs that has as many partitions as operations are spread over.
fn needs(topology: &TopologySettings, name: &str, kind: Kind, broker: BrokerKind) -> Needed {
    Needed {
        kind,
        spec: TopicSpec {
            name: name.to_owned(),
            partitions: topology.scheme.partitions,
            replication: topology.kafka.replication_factor,
            config: settings(topology, kind, broker)
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        },
        partitions_key: PARTITIONS_KEY,
    }
}

/// What a topic of step requests needs.
fn of_steps(topology: &TopologySettings, name: &str, broker: BrokerKind) -> Needed {
    with_step_partitions(topology, needs(topology, name, Kind::Steps, broker))
}

/// The same with as many partitions as topics of step requests have.
fn with_step_partitions(topology: &TopologySettings, mut topic: Needed) -> Needed {
    topic.spec.partitions = topology.kafka.step_partitions;
    topic.partitions_key = "kafka.stepPartitions";
    topic
}

/// How many partitions the topics take on the embedded broker, with those of the agents of these workflows.
pub fn partitions_needed(topology: &TopologySettings, workflows: &Workflows) -> usize {
    let needed = needed(topology, workflows, BrokerKind::Embedded);
    let partitions = needed.iter().map(|topic| topic.spec.partitions as usize);
    partitions.sum()
}

/// What all topics of the embedded broker together may take on disk, in bytes: the bound of each topic of requests, and
/// of all others what retention leaves of each partition, with the file that is being written.
pub fn disk_bytes_max(topology: &TopologySettings, workflows: &Workflows) -> u64 {
    let needed = needed(topology, workflows, BrokerKind::Embedded);
    let of = |topic: &Needed| {
        let setting = |name: &str| {
            let settings = &topic.spec.config;
            let found = settings.iter().find(|(key, _)| key == name);
            found.and_then(|(_, value)| value.parse::<u64>().ok())
        };
        setting(DISK_BOUND).unwrap_or_else(|| {
            let segment =
                setting("segment.bytes").unwrap_or(topology.embedded.segment_bytes.as_u64());
            let kept = setting("retention.bytes").unwrap_or(0);
            kept.saturating_add(segment)
                .saturating_mul(topic.spec.partitions.into())
        })
    };
    needed.iter().map(of).fold(0, u64::saturating_add)
}

/// The names of the topics that have as many partitions as operations are spread over.
pub fn names_with_partitions_of_operations(
    topology: &TopologySettings,
    workflows: &Workflows,
) -> Vec<String> {
    let needed = needed(topology, workflows, BrokerKind::Kafka).into_iter();
    let of_operations = needed.filter(|topic| topic.partitions_key == PARTITIONS_KEY);
    of_operations.map(|topic| topic.spec.name).collect()
}

/// The settings that a topic is made with.
fn settings(
    topology: &TopologySettings,
    kind: Kind,
    broker: BrokerKind,
) -> Vec<(&'static str, String)> {
    let kafka = &topology.kafka;
    let contacts_retention = kafka.results_retention.min(CONTACTS_RETENTION_MAX);
    let (retention, bytes_max) = match kind {
        // What an operator asks for is answered once it is there: as durable as a request.
        Kind::Requests | Kind::Recoveries => (kafka.requests_retention, RECORD_BYTES_MAX),
        Kind::Steps => (kafka.steps_retention, RECORD_BYTES_MAX),
        Kind::Statuses | Kind::Results => (kafka.results_retention, RECORD_BYTES_MAX),
        Kind::Notices => (contacts_retention, RECORD_BYTES_MAX),
        Kind::DeadLetters => (kafka.results_retention, DEAD_LETTER_BYTES_MAX),
        Kind::DeadNotices => (contacts_retention, DEAD_LETTER_BYTES_MAX),
    };
    let retention = match (broker, kind) {
        // Deleted by checkpoint alone (`trim.rs`).
        (BrokerKind::Embedded, Kind::Requests | Kind::Recoveries) => UNBOUNDED.to_owned(),
        _ => retention.as_millis().to_string(),
    };
    let mut settings = vec![
        ("cleanup.policy", "delete".to_owned()),
        ("retention.ms", retention),
        ("max.message.bytes", bytes_max.to_string()),
    ];
    if kind == Kind::Steps {
        settings.push(("segment.bytes", STEP_SEGMENT_BYTES.to_string()));
    }
    match broker {
        BrokerKind::Kafka => on_kafka(&mut settings, kind, kafka.replication_factor),
        BrokerKind::Embedded => on_the_embedded_broker(&mut settings, kind, topology),
    }
    settings
}

/// Replication makes an acknowledged record durable.
fn on_kafka(settings: &mut Vec<(&'static str, String)>, kind: Kind, replication: u16) {
    // With three copies one may be away, and what is acknowledged still lies on two.
    let in_sync = match replication {
        ..=2 => 1,
        factor => factor - 1,
    };
    settings.push(("min.insync.replicas", in_sync.to_string()));
    // A record's age counts from its arrival, by the broker's clock: no sender's clock makes retention take it too early,
    // or has it refused as one from the future.
    settings.push((TIMESTAMPS, LOG_APPEND_TIME.to_owned()));
    // Whatever a sender compresses, its batches are within max.message.bytes when they are read: a small one cannot take
    // all memory of its consumers.
    settings.push((COMPRESSION, UNCOMPRESSED.to_owned()));
    match kind {
        // Whatever the brokers' default is: what was accepted does not go for want of space.
        Kind::Requests | Kind::Recoveries => {
            settings.push(("retention.bytes", UNBOUNDED.to_owned()))
        }
        Kind::Steps
        | Kind::Statuses
        | Kind::Results
        | Kind::Notices
        | Kind::DeadLetters
        | Kind::DeadNotices => {}
    }
}

/// One machine's disk makes an acknowledged record durable: what the checkpoint relies on is synced. Requests and
/// recoveries have a bound on disk at which they are refused; nothing but the checkpoint removes them. Everything
/// else is bounded by deleting the oldest.
fn on_the_embedded_broker(
    settings: &mut Vec<(&'static str, String)>,
    kind: Kind,
    topology: &TopologySettings,
) {
    let is_synced = match kind {
        Kind::Requests
        | Kind::Recoveries
        | Kind::Results
        | Kind::Notices
        | Kind::DeadLetters
        | Kind::DeadNotices => true,
        // Steps can be derived again, and a status says what the row says.
        Kind::Steps | Kind::Statuses => false,
    };
    if is_synced {
        settings.push((FLUSH, "1".to_owned()));
    }
    let segment_bytes = topology.embedded.segment_bytes.as_u64();
    let bounded = |settings: &mut Vec<_>, bound: u64, segment_max: u64| {
        // Space is given back by whole segments: a few of them must fit below the bound.
        let segment = bound / (SEGMENTS * u64::from(topology.scheme.partitions));
        let segment = segment.clamp(SEGMENT_BYTES_MIN, segment_max.max(SEGMENT_BYTES_MIN));
        settings.push(("retention.bytes", UNBOUNDED.to_owned()));
        settings.push((DISK_BOUND, bound.to_string()));
        settings.push(("segment.bytes", segment.to_string()));
    };
    match kind {
        Kind::Requests => {
            let bound = topology.embedded.requests_disk_bytes_max.as_u64();
            bounded(settings, bound, segment_bytes);
            // What was accepted goes on while the disk is low, and needs recoveries for it.
            settings.push((REFUSE_ON_LOW_DISK, "true".to_owned()));
        }
        Kind::Recoveries => {
            let bound = topology.embedded.recoveries_disk_bytes_max.as_u64();
            bounded(
                settings,
                bound,
                segment_bytes.min(RECOVERY_SEGMENT_BYTES_MAX),
            );
        }
        Kind::Steps => {
            settings.push(("retention.bytes", STEP_PARTITION_BYTES_MAX.to_string()));
        }
        Kind::Statuses | Kind::Results | Kind::Notices | Kind::DeadLetters | Kind::DeadNotices => {
            settings.push(("retention.bytes", RESULT_PARTITION_BYTES_MAX.to_string()));
        }
    }
}
