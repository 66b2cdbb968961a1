//! The topics: their required settings, their creation before anything uses them, and their audit.
//!
//! [`needed`] is the one table of topics. Roles create missing topics at start, and refuse to start
//! if an existing one is harmful. `waybill topics` does the same by hand.
//!
//! What must hold: this module never changes an existing topic, and never creates one with settings
//! that are not in the table.

mod audit;
mod compression;
mod describe;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use waybill_engine::Workflows;
use waybill_kafka::{Admin, AdminError, ErrorCode, KafkaSettings, TopicSpec};
use waybill_messages::{DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX, Topics};

pub use audit::{Finding, RETENTION_MS_MIN, SETTINGS_THAT_MATTER, Weight, audit};
pub use compression::CompressionCheck;
pub use describe::{Found, describe};

use crate::TopologySettings;

/// The finding's key for the number of partitions over which operations are spread.
const PARTITIONS_KEY: &str = "partitions";
/// The maximum time for a broker to start.
const BROKER_PATIENCE: Duration = Duration::from_secs(60);
/// How long the broker may take to know a topic after its creation.
const TOPIC_PATIENCE: Duration = Duration::from_secs(30);
/// How long a topic without visible settings may count as just created.
const KIND_PATIENCE: Duration = Duration::from_secs(2);
/// The pause before an unknown topic is requested again.
const TOPIC_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The segment size of topics with derived, short-lived records.
const STEP_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// The maximum segment size of recoveries. They are few and small, and the topic's disk limit must
/// have room for a segment of each partition that is added later.
const RECOVERY_SEGMENT_BYTES_MAX: u64 = 1024 * 1024;
/// The minimum segment size of a topic with a disk limit.
const SEGMENT_BYTES_MIN: u64 = 64 * 1024;
/// The number of segments in a partition's part of the disk limit, so that space can be freed.
const SEGMENTS: u64 = 4;

/// The minimum disk limit of a topic of requests or recoveries, in bytes. Each partition keeps its
/// last segment, and there must be room for others.
pub fn disk_bytes_min(partitions: u32) -> u64 {
    SEGMENTS * SEGMENT_BYTES_MIN * u64::from(partitions)
}
/// How much a partition of step requests or replies keeps on the embedded broker: far more than can
/// be in flight.
const STEP_PARTITION_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// The same for a partition of status records, failed operations, alerts or dead letters.
const RESULT_PARTITION_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// The maximum retention of topics that hold nothing but personal data.
const CONTACTS_RETENTION_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The value of a setting without a limit.
pub const UNBOUNDED: &str = "-1";

/// The number of records after which a topic is synced. With 1, every acknowledged record is
/// synced.
pub const FLUSH: &str = "flush.messages";

/// Whether the sender or the appending broker sets a record's timestamp.
pub const TIMESTAMPS: &str = "message.timestamp.type";
const LOG_APPEND_TIME: &str = "LogAppendTime";

/// How batches are compressed on disk. The embedded broker keeps all of them uncompressed.
pub const COMPRESSION: &str = "compression.type";
const UNCOMPRESSED: &str = "uncompressed";

/// The limit of a topic's size on disk. Only the embedded broker has this setting.
pub const DISK_BOUND: &str = "waybill.disk.bytes.max";
/// Whether a topic refuses records while disk space is low. Only the embedded broker has this
/// setting.
pub const REFUSE_ON_LOW_DISK: &str = "waybill.disk.low.refuse";

/// The kind of broker, which determines some settings of topics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BrokerKind {
    /// The embedded broker: the disk of one machine makes records durable and limits their size.
    Embedded,
    /// Apache Kafka, or a compatible broker: replication makes records durable.
    Kafka,
}

/// The content of a topic, which determines its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Accepted requests.
    Requests,
    /// Requests of supervisors and operators about operations.
    Recoveries,
    /// Step requests and replies, which can be derived again.
    Steps,
    /// Each change of an operation's state, which is also in its row.
    Statuses,
    /// Failed operations and alerts, which are recorded nowhere else.
    Results,
    /// Contacts to notify: personal data.
    Notices,
    /// Poison records.
    DeadLetters,
    /// Poison records of notices: personal data, too.
    DeadNotices,
}

/// A required topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needed {
    /// Its content.
    pub kind: Kind,
    /// Its name, partitions and settings.
    pub spec: TopicSpec,
    /// The configuration key of its number of partitions.
    partitions_key: &'static str,
}

/// The outcome for a required topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was missing and was created.
    Made,
    /// It already existed.
    Existed,
}

/// Creates missing topics, and checks that no existing one is harmful. Operation topics may also
/// have one of the numbers of partitions in `may_have`. `is_alone`: no other process uses this
/// process's store. Returns the kind of broker.
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
        // Only this process has the embedded store, so no other process could repair the number.
        if is_alone
            && number(finding).is_some_and(|has| has.is_multiple_of(topology.scheme.partitions))
        {
            finding.weight = Weight::Warning;
        }
    }
    refuse_harm(&findings).map_err(|harm| match topology.kafka.brokers {
        Some(_) => harm,
        None => harm.context(
            "the embedded broker stops with this process; to repair the topics, \
                              start it alone with `waybill broker`",
        ),
    })?;
    Ok(broker)
}

/// Logs the findings that are warnings.
///
/// # Errors
///
/// The harmful findings, one per line, if there are any.
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

/// Describes topics that exist or were just created. A broker may answer before it knows them.
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

/// The kind of broker. Asks the broker, unless the configuration says: the embedded broker of
/// another process is reached like any other.
pub async fn broker_kind(admin: &Admin, topology: &TopologySettings) -> anyhow::Result<BrokerKind> {
    if topology.kafka.brokers.is_none() {
        return Ok(BrokerKind::Embedded);
    }
    let names = Topics::new(&topology.kafka.topic_prefix);
    let deadline = Instant::now() + KIND_PATIENCE;
    loop {
        let kind_found =
            kind_from_settings(admin, names.requests(), topology.scheme.partitions).await;
        match kind_found.map_err(|error| explained(error, topology))? {
            Some(kind) => return Ok(kind),
            // The settings are hidden from this user.
            None if Instant::now() >= deadline => return Ok(BrokerKind::Kafka),
            None => tokio::time::sleep(TOPIC_AGAIN_AFTER).await,
        }
    }
}

/// The kind of broker, by its settings of the topic of requests; `None` if the topic was created
/// between two requests, or its settings are hidden from this user.
async fn kind_from_settings(
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
    // Tests whether the broker would create the topic with this setting.
    let mut spec = TopicSpec::new(requests, partitions);
    spec.config.push((DISK_BOUND.to_owned(), "-1".to_owned()));
    match admin.try_topics(&[spec]).await {
        Ok(would_be_made) if would_be_made.is_empty() => Ok(None),
        Ok(_) => Ok(Some(kind(true))),
        Err(AdminError::Topic { .. }) => Ok(Some(kind(false))),
        Err(error) => Err(error),
    }
}

/// Creates the missing topics. Returns the outcome for each topic, in the order given. Safe to
/// repeat, and to run concurrently.
pub async fn make(
    admin: &Admin,
    topology: &TopologySettings,
    needed: &[Needed],
) -> anyhow::Result<Vec<Outcome>> {
    // Requests only missing topics, so that a user without the permission to create topics can run
    // on existing ones.
    let missing = missing(admin, topology, needed).await?;
    let specs: Vec<TopicSpec> = missing.iter().map(|topic| topic.spec.clone()).collect();
    let made = admin
        .create_topics(&specs)
        .await
        .map_err(|error| explained(error, topology))
        .context("cannot create the topics")?;
    for topic in &missing {
        let name = &topic.spec.name;
        anyhow::ensure!(
            admin.wait_for_topic(name, TOPIC_PATIENCE).await?.is_some(),
            "topic {name} was created, but the broker does not list it"
        );
    }
    let outcome = |topic: &Needed| match made.contains(&topic.spec.name) {
        true => Outcome::Made,
        false => Outcome::Existed,
    };
    Ok(needed.iter().map(outcome).collect())
}

/// The topics that do not exist.
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

/// Whether the brokers refused for lack of permission.
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

/// Adds to an error of the brokers what to do about it, if known.
pub fn explained(error: AdminError, topology: &TopologySettings) -> anyhow::Error {
    let advice = match code_of(&error) {
        Some(code) if FORBIDDEN.contains(&code) => match &topology.kafka.brokers {
            Some(_) => {
                "the brokers do not allow this for the user of kafka.properties; for the required \
                 permissions, see docs/cluster.md"
            }
            None => {
                "the embedded broker does not allow this with this token; for the required scopes, \
                 see docs/security.md"
            }
        }
        .to_owned(),
        Some(ErrorCode::PolicyViolation) => {
            "a policy of the brokers forbids this; ask an administrator to create the topics that \
             `waybill topics create --dry-run` lists"
                .to_owned()
        }
        Some(ErrorCode::InvalidPartitions) if topology.kafka.brokers.is_none() => {
            "the embedded broker's topics would have too many partitions in total: raise \
             broker.partitionsMax"
                .to_owned()
        }
        Some(ErrorCode::InvalidReplicationFactor) => format!(
            "kafka.replicationFactor is {}, but must not exceed the number of brokers",
            topology.kafka.replication_factor
        ),
        Some(_) | None => return error.into(),
    };
    anyhow::Error::new(error).context(advice)
}

/// The required topics and their settings.
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
        // A dead letter keeps the partition of its record.
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

/// A required topic with as many partitions as operations are distributed over.
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

/// A required topic of step requests.
fn of_steps(topology: &TopologySettings, name: &str, broker: BrokerKind) -> Needed {
    with_step_partitions(topology, needs(topology, name, Kind::Steps, broker))
}

/// The topic with as many partitions as topics of step requests have.
fn with_step_partitions(topology: &TopologySettings, mut topic: Needed) -> Needed {
    topic.spec.partitions = topology.kafka.step_partitions;
    topic.partitions_key = "kafka.stepPartitions";
    topic
}

/// The number of partitions on the embedded broker, including those of the agents in these
/// workflows.
pub fn partitions_needed(topology: &TopologySettings, workflows: &Workflows) -> usize {
    let needed = needed(topology, workflows, BrokerKind::Embedded);
    let partitions = needed.iter().map(|topic| topic.spec.partitions as usize);
    partitions.sum()
}

/// The maximum disk space of all topics of the embedded broker, in bytes: the disk limit of topics
/// that have one. For each other partition, what retention keeps and the file that is being
/// written.
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

/// The names of the topics that have as many partitions as operations are distributed over.
pub fn names_with_partitions_of_operations(
    topology: &TopologySettings,
    workflows: &Workflows,
) -> Vec<String> {
    let needed = needed(topology, workflows, BrokerKind::Kafka).into_iter();
    let of_operations = needed.filter(|topic| topic.partitions_key == PARTITIONS_KEY);
    of_operations.map(|topic| topic.spec.name).collect()
}

/// The settings with which a topic is created.
fn settings(
    topology: &TopologySettings,
    kind: Kind,
    broker: BrokerKind,
) -> Vec<(&'static str, String)> {
    let kafka = &topology.kafka;
    let contacts_retention = kafka.results_retention.min(CONTACTS_RETENTION_MAX);
    let (retention, bytes_max) = match kind {
        // An operator's request is acknowledged once it is as durable as an operation's request.
        Kind::Requests | Kind::Recoveries => (kafka.requests_retention, RECORD_BYTES_MAX),
        Kind::Steps => (kafka.steps_retention, RECORD_BYTES_MAX),
        Kind::Statuses | Kind::Results => (kafka.results_retention, RECORD_BYTES_MAX),
        Kind::Notices => (contacts_retention, RECORD_BYTES_MAX),
        Kind::DeadLetters => (kafka.results_retention, DEAD_LETTER_BYTES_MAX),
        Kind::DeadNotices => (contacts_retention, DEAD_LETTER_BYTES_MAX),
    };
    let retention = match (broker, kind) {
        // Only the checkpoint deletes records (`trim.rs`).
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
    // With three copies, one broker may fail and acknowledged records still have two.
    let in_sync = match replication {
        ..=2 => 1,
        factor => factor - 1,
    };
    settings.push(("min.insync.replicas", in_sync.to_string()));
    // A record's age counts from its arrival by the broker's clock. A sender's clock can then
    // neither shorten the retention nor have the record refused as one from the future.
    settings.push((TIMESTAMPS, LOG_APPEND_TIME.to_owned()));
    // Batches are stored uncompressed, so that they are within max.message.bytes for consumers too.
    // A small compressed batch cannot fill their memory.
    settings.push((COMPRESSION, UNCOMPRESSED.to_owned()));
    match kind {
        // Overrides the brokers' default: accepted requests are not deleted to save space.
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

/// One machine's disk makes an acknowledged record durable: every record that the checkpoint relies
/// on is synced. Requests and recoveries are refused above a disk limit, and only the checkpoint
/// deletes them. All other topics delete their oldest records.
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
        // Steps can be derived again, and the row holds the status.
        Kind::Steps | Kind::Statuses => false,
    };
    if is_synced {
        settings.push((FLUSH, "1".to_owned()));
    }
    let segment_bytes = topology.embedded.segment_bytes.as_u64();
    let bounded = |settings: &mut Vec<_>, bound: u64, segment_max: u64| {
        // Space is freed by whole segments, so a few of them must fit into the limit.
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
            // Accepted operations continue while disk space is low, and need recoveries.
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
