//! Which partitions this process drives.
//!
//! On Kubernetes each replica of a StatefulSet drives the partition of its index. Elsewhere a
//! process drives all, or the configured ones. The index only determines which lease to acquire:
//! only the lease proves ownership.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use waybill_config::Environment;
use waybill_engine::{ShardId, ShardingScheme};

use super::SchedulerConfig;
use crate::Own;

/// The label `apps.kubernetes.io/pod-index`, provided by the downward API.
const POD_INDEX: &str = "POD_INDEX";

/// The pod's name (`metadata.name`), provided by the downward API.
const POD_NAME: &str = "POD_NAME";

/// The values of `scheduler.partitions`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartitionChoice {
    /// `auto`: the partition with the pod's index, or all partitions if there is no index.
    Auto,
    /// `all`: every partition, whatever the pod's index.
    All,
    /// `2` or `0-3`: a partition, or an inclusive range.
    Range {
        /// The first partition.
        first: u32,
        /// The last partition, inclusive.
        last: u32,
    },
}

/// Why the partitions of this process cannot be determined.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    /// The shard, or the end of the range, does not exist.
    #[error(
        "{source_name} selects shard {shard}, but the {shards} shards are 0 to {}; run at most one \
         scheduler per shard (partitions times scheduler.shardsPerPartition)",
        .shards - 1
    )]
    Beyond {
        /// The source of the number.
        source_name: &'static str,
        /// The shard; the partition's number if each partition has one shard.
        shard: u32,
        /// The number of shards.
        shards: u32,
    },
    /// `POD_INDEX` is not a number.
    #[error("POD_INDEX is {0:?}, and must be the pod's index in its StatefulSet")]
    Index(String),
    /// `POD_NAME` does not end in a number.
    #[error(
        "POD_NAME is {0:?}, which does not end in an index as the names of a StatefulSet's pods do; \
         set scheduler.partitions to the partitions of this process"
    )]
    Name(String),
}

impl SchedulerConfig {
    /// The shards that this process runs: the configured ones, otherwise the shard with the number
    /// in `POD_INDEX`, otherwise the one with the number at the end of `POD_NAME`, otherwise all.
    /// If each partition has one shard, shards have the numbers of their partitions. The numbers
    /// may refer to the configured sharding, of this many partitions, or to the current one.
    ///
    /// # Errors
    ///
    /// If an index is invalid, or a shard does not exist.
    pub fn shards_of_this_process(
        &self,
        partitions: u32,
        environment: &Environment,
        current: ShardingScheme,
    ) -> Result<Own, IdentityError> {
        let configured = partitions * self.shards_per_partition;
        let shards = configured.max(current.shards());
        let (source_name, first, last) = match self.partitions {
            PartitionChoice::Range { first, last } => ("scheduler.partitions", first, last),
            PartitionChoice::All => return Ok(Own::All),
            PartitionChoice::Auto => match index_of_pod(environment)? {
                Some((source_name, index)) => (source_name, index, index),
                None => return Ok(Own::All),
            },
        };
        if last >= shards {
            return Err(IdentityError::Beyond {
                source_name,
                shard: last,
                shards,
            });
        }
        Ok(Own::Range {
            first: ShardId(first),
            last: ShardId(last),
        })
    }
}

fn index_of_pod(environment: &Environment) -> Result<Option<(&'static str, u32)>, IdentityError> {
    if let Some(index) = environment.get(POD_INDEX).filter(|index| !index.is_empty()) {
        let number = number(index).ok_or_else(|| IdentityError::Index(index.to_owned()))?;
        return Ok(Some((POD_INDEX, number)));
    }
    if let Some(name) = environment.get(POD_NAME).filter(|name| !name.is_empty()) {
        let number = name
            .rsplit_once('-')
            .and_then(|(_, suffix)| number(suffix))
            .ok_or_else(|| IdentityError::Name(name.to_owned()))?;
        return Ok(Some((POD_NAME, number)));
    }
    Ok(None)
}

/// Accepts only digits: no sign, and no spaces.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// The text does not name partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected {}", PartitionChoice::EXPECTED)]
pub struct PartitionChoiceError;

impl PartitionChoice {
    const EXPECTED: &str = "auto, all, one partition such as 2, or a range such as 0-3";
}

impl FromStr for PartitionChoice {
    type Err = PartitionChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        match text {
            "auto" => return Ok(Self::Auto),
            "all" => return Ok(Self::All),
            _ => {}
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (number(first.trim()), number(last.trim())) {
            (Some(first), Some(last)) if first <= last => Ok(Self::Range { first, last }),
            _ => Err(PartitionChoiceError),
        }
    }
}

impl fmt::Display for PartitionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::All => f.write_str("all"),
            Self::Range { first, last } if first == last => write!(f, "{first}"),
            Self::Range { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

impl Serialize for PartitionChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for PartitionChoice {
    fn schema_name() -> Cow<'static, str> {
        "PartitionChoice".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`auto`, `all`, a partition, or an inclusive range.",
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\s*(auto|all|[0-9]+\s*(-\s*[0-9]+)?)\s*$"},
            ],
            "examples": ["auto", "all", 2, "0-3"],
        })
    }
}

impl<'de> Deserialize<'de> for PartitionChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Variables = &'static [(&'static str, &'static str)];

    #[test]
    fn partitions_come_from_the_configuration_or_the_pod_and_default_to_all() {
        const INDEX: (&str, &str) = ("POD_INDEX", "2");
        const NAME: (&str, &str) = ("POD_NAME", "waybill-scheduler-3");
        let cases: [(&str, Variables, &[u32]); 10] = [
            ("auto", &[], &[0, 1, 2, 3]),
            ("auto", &[INDEX], &[2]),
            ("auto", &[NAME], &[3]),
            ("auto", &[NAME, INDEX], &[2]),
            (
                "auto",
                &[("POD_INDEX", ""), ("POD_NAME", "")],
                &[0, 1, 2, 3],
            ),
            ("all", &[INDEX], &[0, 1, 2, 3]),
            ("1", &[INDEX], &[1]),
            ("1-3", &[], &[1, 2, 3]),
            ("0-0", &[NAME], &[0]),
            ("0-3", &[("POD_NAME", "no-ordinal")], &[0, 1, 2, 3]),
        ];
        for (choice, environment, expected) in cases {
            let expected: Vec<_> = expected.iter().copied().map(ShardId).collect();
            assert_eq!(
                partitions(choice, environment),
                Ok(expected),
                "{choice} {environment:?}"
            );
        }
    }

    #[test]
    fn a_partition_that_does_not_exist_or_an_unreadable_index_is_refused() {
        let beyond = |source_name, shard| IdentityError::Beyond {
            source_name,
            shard,
            shards: 4,
        };
        let index = |text: &str| IdentityError::Index(text.to_owned());
        let name = |text: &str| IdentityError::Name(text.to_owned());
        let cases: [(&str, Variables, IdentityError); 9] = [
            ("4", &[], beyond("scheduler.partitions", 4)),
            ("2-9", &[], beyond("scheduler.partitions", 9)),
            ("auto", &[("POD_INDEX", "4")], beyond("POD_INDEX", 4)),
            ("auto", &[("POD_NAME", "waybill-4")], beyond("POD_NAME", 4)),
            ("auto", &[("POD_INDEX", "two")], index("two")),
            ("auto", &[("POD_INDEX", "+1")], index("+1")),
            ("auto", &[("POD_NAME", "waybill")], name("waybill")),
            (
                "auto",
                &[("POD_NAME", "waybill-7d9fc-x2x4q")],
                name("waybill-7d9fc-x2x4q"),
            ),
            ("auto", &[("POD_NAME", "waybill-")], name("waybill-")),
        ];
        for (choice, environment, expected) in cases {
            assert_eq!(
                partitions(choice, environment),
                Err(expected),
                "{choice} {environment:?}"
            );
        }
    }

    #[test]
    fn the_refusal_of_an_index_names_the_valid_ones() {
        assert_eq!(
            partitions("auto", &[("POD_INDEX", "4")])
                .unwrap_err()
                .to_string(),
            "POD_INDEX selects shard 4, but the 4 shards are 0 to 3; run at most one scheduler per \
             shard (partitions times scheduler.shardsPerPartition)"
        );
    }

    #[test]
    fn the_refusal_counts_shards_if_partitions_have_several() {
        let environment = [("POD_INDEX", "8")].into_iter().collect();
        let config = SchedulerConfig {
            shards_per_partition: 2,
            ..SchedulerConfig::default()
        };
        let current = ShardingScheme::one_each(4);
        let refused = config.shards_of_this_process(4, &environment, current);
        let refused = refused.unwrap_err();
        let text = refused.to_string();
        let expected = "POD_INDEX selects shard 8, but the 8 shards are 0 to 7; ";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn an_invalid_list_of_partitions_is_refused() {
        for text in ["", "none", "3-1", "0-", "-1", "0..3", "0-1-2", "0x1"] {
            assert_eq!(
                text.parse::<PartitionChoice>(),
                Err(PartitionChoiceError),
                "{text}"
            );
        }
    }

    #[test]
    fn the_index_is_that_of_a_shard_if_partitions_have_several() {
        let environment = [("POD_INDEX", "7")].into_iter().collect();
        let config = SchedulerConfig {
            shards_per_partition: 2,
            ..SchedulerConfig::default()
        };
        let (first, last) = (ShardId(7), ShardId(7));
        let own = Own::Range { first, last };
        let of = |config: &SchedulerConfig, current| {
            config.shards_of_this_process(4, &environment, current)
        };
        assert_eq!(of(&config, ShardingScheme::one_each(4)), Ok(own));
        // The shard may exist only in the current layout.
        let current = ShardingScheme {
            partitions: 2,
            shards_per_partition: 4,
        };
        assert_eq!(of(&SchedulerConfig::default(), current), Ok(own));
        // In a layout without the shard, the process runs none.
        assert_eq!(own.of(ShardingScheme::one_each(4)).count(), 0);
    }

    fn partitions(choice: &str, environment: Variables) -> Result<Vec<ShardId>, IdentityError> {
        let config = SchedulerConfig {
            partitions: choice.parse().unwrap(),
            ..SchedulerConfig::default()
        };
        let environment = environment.iter().copied().collect();
        let current = ShardingScheme::one_each(4);
        let own = config.shards_of_this_process(4, &environment, current)?;
        Ok(own.of(current).collect())
    }
}
