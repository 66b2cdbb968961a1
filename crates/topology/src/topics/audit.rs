//! Audits the settings of existing topics and says how to fix them. Pure: `describe.rs` reads the
//! topics.
//!
//! Checks the settings that Waybill's guarantees depend on. No accepted record is lost (retention,
//! clean-up, copies, record size and timestamp type). Consumers find their records (partitions). A
//! request does not outlive its operation's row. A batch cannot fill its consumers' memory
//! (compression). Deliberately not checked: settings that cost only time or space.

mod tools;

use std::collections::BTreeMap;
use std::fmt;

use waybill_kafka::TopicSettings;

use self::tools::Tools;
use super::{
    BrokerKind, COMPRESSION, CONTACTS_RETENTION_MAX, DISK_BOUND, FLUSH, Found, Kind,
    LOG_APPEND_TIME, Needed, PARTITIONS_KEY, REFUSE_ON_LOW_DISK, TIMESTAMPS, UNBOUNDED,
    UNCOMPRESSED,
};
use crate::TopologySettings;

/// The settings to show.
pub const SETTINGS_THAT_MATTER: [&str; 12] = [
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    TIMESTAMPS,
    COMPRESSION,
    "segment.bytes",
    FLUSH,
    DISK_BOUND,
    REFUSE_ON_LOW_DISK,
];

/// The minimum retention of accepted records, in milliseconds: an hour. A consumer that is down for
/// less loses nothing.
pub const RETENTION_MS_MIN: u64 = 60 * 60 * 1000;

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// No role starts.
    Harm,
    /// Roles start and log a warning.
    Warning,
}

/// A topic that differs from its requirements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its name.
    pub topic: String,
    /// The setting, or another property of the topic.
    pub key: &'static str,
    /// The found value.
    pub found: String,
    /// The required value.
    pub expected: String,
    /// The fix: a command or a text.
    pub fix: String,
    /// The severity.
    pub weight: Weight,
}

impl Finding {
    /// Whether the topic does not exist.
    pub fn is_missing(&self) -> bool {
        self.key == EXISTS
    }

    /// The number of partitions, if it is wrong and operations are distributed over them.
    pub fn number_of_operations(&self, needed: &[Needed]) -> Option<u32> {
        let is_of_operations = |topic: &Needed| {
            topic.spec.name == self.topic && topic.partitions_key == PARTITIONS_KEY
        };
        let is_it = self.key == PARTITIONS && needed.iter().any(is_of_operations);
        self.found.parse().ok().filter(|_| is_it)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topic,
            key,
            found,
            expected,
            fix,
            weight: _,
        } = self;
        let plural = if found == "1" { "" } else { "s" };
        match *key {
            PARTITIONS => write!(
                f,
                "topic {topic} has {found} partition{plural}, not {expected}: {fix}"
            ),
            EXISTS => write!(
                f,
                "topic {topic} does not exist; expected {expected}: {fix}"
            ),
            _ => write!(
                f,
                "topic {topic}: {key} is {found}, and must be {expected}: {fix}"
            ),
        }
    }
}

const EXISTS: &str = "exists";
const PARTITIONS: &str = "partitions";
const REPLICATION: &str = "replication.factor";
const LEADER: &str = "leader";
const IN_SYNC: &str = "in-sync replicas";
const SETTINGS: &str = "settings";

/// Compares the found topics with the required ones.
pub fn audit(
    topology: &TopologySettings,
    broker: BrokerKind,
    needed: &[Needed],
    found: &BTreeMap<String, Found>,
) -> Vec<Finding> {
    let mut audit = Audit {
        topology,
        broker,
        tools: Tools::of(topology),
        findings: Vec::new(),
    };
    for topic in needed {
        match found.get(&topic.spec.name) {
            Some(found) => audit.topic(topic, found),
            None => audit.missing(topic),
        }
    }
    audit.findings
}

struct Audit<'a> {
    topology: &'a TopologySettings,
    broker: BrokerKind,
    tools: Tools,
    findings: Vec<Finding>,
}

impl Audit<'_> {
    fn missing(&mut self, topic: &Needed) {
        let spec = &topic.spec;
        self.find(
            topic,
            EXISTS,
            "no",
            format!(
                "a topic of {} and replication factor {}",
                waybill_telemetry::visible::counted(spec.partitions, "partition"),
                spec.replication
            ),
            "waybill topics create".to_owned(),
            Weight::Harm,
        );
    }

    fn topic(&mut self, topic: &Needed, found: &Found) {
        self.partitions(topic, found);
        self.copies(topic, found);
        match &found.settings {
            Some(settings) => self.settings(topic, found, settings),
            None => {
                let fix = self.tools.allow_looking(&topic.spec.name);
                let expected = "visible to this user";
                self.find(topic, SETTINGS, "hidden", expected, fix, Weight::Warning);
            }
        }
    }

    fn partitions(&mut self, topic: &Needed, found: &Found) {
        let (name, wanted) = (&topic.spec.name, topic.spec.partitions);
        let has = u32::try_from(found.partitions.len()).unwrap_or(u32::MAX);
        let fix = match topic.kind {
            // A dead letter has the partition of its record, so there must be as many. More do no
            // harm.
            Kind::DeadLetters | Kind::DeadNotices if has >= wanted => return,
            Kind::DeadLetters | Kind::DeadNotices => self.tools.add_partitions(name, wanted),
            _ if has == wanted => return,
            _ if topic.partitions_key == PARTITIONS_KEY && wanted.is_multiple_of(has.max(1)) => {
                format!("waybill topics grow {wanted}")
            }
            _ if topic.partitions_key == PARTITIONS_KEY && has.is_multiple_of(wanted) => format!(
                "set `partitions` to {has}; if the partitions were not added by `waybill topics \
                 grow`: waybill topics grow {has}"
            ),
            _ if topic.partitions_key == PARTITIONS_KEY => {
                format!("set `{PARTITIONS_KEY}` to {has}: its value applies only to new topics")
            }
            _ if has < wanted => self.tools.add_partitions(name, wanted),
            _ => format!(
                "delete the topic and create it again with {wanted} partitions: its step requests \
                 are repeated (or set `{}` to {has}, if the topics of all agents have {has} \
                 partitions)",
                topic.partitions_key
            ),
        };
        self.find(topic, PARTITIONS, has, wanted, fix, Weight::Harm);
    }

    /// Checks that there are enough copies, and that enough of them are in sync.
    fn copies(&mut self, topic: &Needed, found: &Found) {
        let name = &topic.spec.name;
        let copies = found.partitions.iter().map(|state| state.replicas.len());
        let wanted = usize::from(topic.spec.replication);
        if let Some(copies) = copies.min().filter(|&copies| copies < wanted) {
            let fix = self.tools.reassign(name);
            let expected = format!("at least {wanted}");
            self.find(topic, REPLICATION, copies, expected, fix, Weight::Warning);
        }
        let numbers = |is_at_fault: &dyn Fn(&waybill_kafka::PartitionState) -> bool| {
            let at_fault = found.partitions.iter().filter(|state| is_at_fault(state));
            let numbers: Vec<String> = at_fault
                .map(|state| state.partition.0.to_string())
                .collect();
            numbers.join(", ")
        };
        let leaderless = numbers(&|state| state.leader.is_none());
        let behind = numbers(&|state| state.in_sync.len() < state.replicas.len());
        const BRING_BACK: &str = "restart the brokers that keep its replicas";
        if !leaderless.is_empty() {
            let found = format!("none for partitions {leaderless}");
            let (expected, fix) = ("one for each", BRING_BACK.to_owned());
            self.find(topic, LEADER, found, expected, fix, Weight::Warning);
        }
        if !behind.is_empty() {
            let found = format!("incomplete for partitions {behind}");
            let (expected, fix) = ("all replicas", BRING_BACK.to_owned());
            self.find(topic, IN_SYNC, found, expected, fix, Weight::Warning);
        }
    }

    fn settings(&mut self, topic: &Needed, found: &Found, settings: &TopicSettings) {
        let copies = found.partitions.iter().map(|state| state.replicas.len());
        let copies = copies.min().unwrap_or(usize::from(topic.spec.replication));
        for rule in rules(self.topology, self.broker, topic, copies) {
            // A setting that the broker does not have cannot be wrong.
            let Some(found) = settings.get(rule.key) else {
                continue;
            };
            if let Some(weight) = rule.expected.broken_by(found) {
                let value = rule.expected.remedy(topic, rule.key);
                let fix = self.tools.set(&topic.spec.name, rule.key, &value);
                let expected = rule.expected.to_string();
                self.find(topic, rule.key, found, expected, fix, weight);
            }
        }
    }

    fn find(
        &mut self,
        topic: &Needed,
        key: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
        fix: String,
        weight: Weight,
    ) {
        self.findings.push(Finding {
            topic: topic.spec.name.clone(),
            key,
            found: found.to_string(),
            expected: expected.to_string(),
            fix,
            weight,
        });
    }
}

/// A requirement on a setting.
struct Rule {
    key: &'static str,
    expected: Expected,
}

enum Expected {
    /// This value. Any other one has this weight.
    Exactly(String, Weight),
    /// No limit. A number below `harm_below` is harm.
    Unbounded { harm_below: u64 },
    /// A number in this range. A `-1` that means "no limit" is above every number.
    Range {
        min: u64,
        /// A lower value is harm, not only a warning.
        harm_below: u64,
        max: Option<u64>,
        /// The weight of a value that is too high.
        too_high: Weight,
    },
}

impl Expected {
    /// The weight of a value that breaks the rule.
    fn broken_by(&self, found: &str) -> Option<Weight> {
        match self {
            Self::Exactly(expected, weight) => (found != expected).then_some(*weight),
            Self::Unbounded { .. } if found == UNBOUNDED => None,
            Self::Unbounded { harm_below } => match found.parse().unwrap_or(0) < *harm_below {
                true => Some(Weight::Harm),
                false => Some(Weight::Warning),
            },
            Self::Range {
                min,
                harm_below,
                max,
                too_high,
            } => {
                let number = match found {
                    UNBOUNDED => u64::MAX,
                    // A broker never reports anything but a number here.
                    number => number.parse().unwrap_or(0),
                };
                if number < *harm_below {
                    return Some(Weight::Harm);
                }
                if number < *min {
                    return Some(Weight::Warning);
                }
                max.is_some_and(|max| number > max).then_some(*too_high)
            }
        }
    }

    /// The value that fixes a setting: that of the table, if it has one.
    fn remedy(&self, topic: &Needed, key: &str) -> String {
        let mut made_with = topic.spec.config.iter();
        match (made_with.find(|(name, _)| name == key), self) {
            (Some((_, value)), _) if self.broken_by(value).is_none() => value.clone(),
            (_, Self::Exactly(value, _)) => value.clone(),
            (_, Self::Unbounded { .. }) => UNBOUNDED.to_owned(),
            (_, Self::Range { min, .. }) => min.to_string(),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(value, _) => f.write_str(value),
            Self::Unbounded { .. } => f.write_str(UNBOUNDED),
            Self::Range { min, max: None, .. } => write!(f, "at least {min}"),
            Self::Range {
                min,
                max: Some(max),
                ..
            } if min == max => write!(f, "{min}"),
            Self::Range {
                min,
                max: Some(max),
                ..
            } => write!(f, "from {min} to {max}"),
        }
    }
}

/// The rules for a topic.
fn rules(
    topology: &TopologySettings,
    broker: BrokerKind,
    topic: &Needed,
    copies: usize,
) -> Vec<Rule> {
    let made_with = |key: &str| {
        let setting = topic.spec.config.iter().find(|(name, _)| name == key);
        setting.and_then(|(_, value)| value.parse::<u64>().ok())
    };
    let at_least = |key: &'static str| {
        made_with(key).map(|min| Rule {
            key,
            expected: Expected::Range {
                min,
                harm_below: 0,
                max: None,
                too_high: Weight::Warning,
            },
        })
    };
    let exactly = |key, value: &str, weight| Rule {
        key,
        expected: Expected::Exactly(value.to_owned(), weight),
    };
    let millis =
        |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (retention_max, too_high) = match topic.kind {
        // A request that is read again after its row was deleted would run once more.
        Kind::Requests => (
            Some(millis(topology.operations_retention) - 1),
            Weight::Harm,
        ),
        Kind::Notices | Kind::DeadNotices => {
            (Some(millis(CONTACTS_RETENTION_MAX)), Weight::Warning)
        }
        Kind::Recoveries | Kind::Steps | Kind::Statuses | Kind::Results | Kind::DeadLetters => {
            (None, Weight::Warning)
        }
    };
    let is_durable = matches!(topic.kind, Kind::Requests | Kind::Recoveries);
    let mut rules = vec![
        // Compaction would keep only the last record of an operation.
        exactly("cleanup.policy", "delete", Weight::Harm),
        Rule {
            key: "retention.ms",
            expected: match broker {
                // Only the checkpoint deletes records.
                BrokerKind::Embedded if is_durable => Expected::Unbounded {
                    harm_below: RETENTION_MS_MIN,
                },
                BrokerKind::Embedded | BrokerKind::Kafka => Expected::Range {
                    min: made_with("retention.ms").unwrap_or(0),
                    harm_below: match is_durable {
                        true => RETENTION_MS_MIN,
                        false => 0,
                    },
                    max: retention_max,
                    too_high,
                },
            },
        },
    ];
    rules.extend(at_least("max.message.bytes"));
    if is_durable {
        rules.push(exactly("retention.bytes", UNBOUNDED, Weight::Warning));
    }
    match broker {
        BrokerKind::Kafka => {
            // Limited by the actual copies. More than configured are no fault.
            let copies = copies as u64;
            let (min, max) = match copies {
                ..=2 => (1, copies.max(1)),
                copies => (2, copies - 1),
            };
            rules.push(Rule {
                key: "min.insync.replicas",
                expected: Expected::Range {
                    min,
                    harm_below: 0,
                    max: Some(max),
                    too_high: Weight::Warning,
                },
            });
            // A replica without acknowledged records must not become the leader.
            let key = "unclean.leader.election.enable";
            rules.push(exactly(key, "false", Weight::Warning));
            rules.push(exactly(TIMESTAMPS, LOG_APPEND_TIME, Weight::Warning));
            // Kafka limits the stored size of a batch. A compressed batch of a megabyte may become
            // a gigabyte at its consumers, whose library has no limit.
            rules.push(exactly(COMPRESSION, UNCOMPRESSED, Weight::Harm));
        }
        BrokerKind::Embedded => {
            if let Some(every) = made_with(FLUSH) {
                rules.push(exactly(FLUSH, &every.to_string(), Weight::Warning));
            }
            if let Some(bound) = made_with(DISK_BOUND) {
                rules.push(exactly(DISK_BOUND, &bound.to_string(), Weight::Warning));
            }
            if topic.kind == Kind::Requests {
                rules.push(exactly(REFUSE_ON_LOW_DISK, "true", Weight::Warning));
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests;
