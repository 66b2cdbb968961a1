//! The settings of a topic, under the names that Kafka gives them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The settings of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TopicConfig {
    /// `flush.messages`: sync to disk once this many records are unsynced. With 1 every produce
    /// request is synced before it is answered, and consumers see synced records only. `None`
    /// leaves writing back to the operating system.
    pub flush_messages: Option<u64>,
    /// `retention.ms`: delete segments whose newest record is older, by the time for which the
    /// broker has run since it was appended. `None` (-1) keeps all.
    pub retention: Option<Duration>,
    /// `retention.bytes`: delete the oldest closed segments of a partition that is larger.
    /// `None` (-1) keeps all.
    pub retention_bytes: Option<u64>,
    /// `segment.bytes`: the size at which a partition begins a new segment file.
    pub segment_bytes: u64,
    /// `max.message.bytes`: the largest record batch.
    pub message_bytes_max: u64,
    /// `waybill.disk.bytes.max`, a setting of this broker's own: once the log of the whole topic
    /// has this size on disk, produce requests are refused with `POLICY_VIOLATION`, which clients
    /// do not retry and report as surely not persisted. Unlike `retention.bytes` it deletes
    /// nothing. Space is freed by `DeleteRecords` and by retention. `None` (-1) sets no bound.
    pub disk_bytes_max: Option<u64>,
    /// `waybill.disk.low.refuse`, a setting of this broker's own: whether produce requests are
    /// refused with `POLICY_VIOLATION` while the disk is low
    /// ([`crate::BrokerSettings::low_on_disk`]).
    pub refuse_on_low_disk: bool,
}

impl Default for TopicConfig {
    /// Like Kafka's, with smaller segments: a restart after a crash reads them again.
    fn default() -> Self {
        Self {
            flush_messages: None,
            retention: Some(Duration::from_secs(7 * 24 * 3600)),
            retention_bytes: None,
            segment_bytes: 64 << 20,
            message_bytes_max: 1_048_588,
            disk_bytes_max: None,
            refuse_on_low_disk: false,
        }
    }
}

/// Why a topic's setting was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopicConfigError {
    /// There is no such setting.
    #[error("unknown topic setting {name:?}; known are {known}", known = NAMES.join(", "))]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// The value cannot be used.
    #[error("{name}={value:?} is not valid: expected {expected}")]
    Invalid {
        /// The setting.
        name: &'static str,
        /// The value as given.
        value: String,
        /// What would be valid.
        expected: &'static str,
    },
}

/// Every setting's name.
pub(crate) const NAMES: [&str; 9] = [
    "cleanup.policy",
    "compression.type",
    "flush.messages",
    "max.message.bytes",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "waybill.disk.bytes.max",
    "waybill.disk.low.refuse",
];

/// How batches are stored, whatever compression their producer uses.
const UNCOMPRESSED: &str = "uncompressed";

/// Kafka's answer for `flush.messages` if no sync is configured.
const FLUSH_NEVER: u64 = i64::MAX as u64;

impl TopicConfig {
    /// Sets one setting by its Kafka name; `None` sets it back to that of `defaults`.
    ///
    /// # Errors
    /// An unknown name, or a value that is not valid for it.
    pub fn set(
        &mut self,
        name: &str,
        value: Option<&str>,
        defaults: &TopicConfig,
    ) -> Result<(), TopicConfigError> {
        match name {
            "cleanup.policy" => match value {
                None | Some("delete") => Ok(()),
                Some(other) => Err(TopicConfigError::Invalid {
                    name: "cleanup.policy",
                    value: other.to_owned(),
                    expected: "delete",
                }),
            },
            "compression.type" => match value {
                None | Some(UNCOMPRESSED) => Ok(()),
                Some(other) => Err(TopicConfigError::Invalid {
                    name: "compression.type",
                    value: other.to_owned(),
                    expected: UNCOMPRESSED,
                }),
            },
            "flush.messages" => {
                self.flush_messages = match value {
                    None => defaults.flush_messages,
                    Some(v) => Some(whole("flush.messages", v, 1, FLUSH_NEVER)?)
                        .filter(|&messages| messages != FLUSH_NEVER),
                };
                Ok(())
            }
            "max.message.bytes" => {
                self.message_bytes_max = match value {
                    None => defaults.message_bytes_max,
                    Some(v) => whole("max.message.bytes", v, 0, i32::MAX as u64)?,
                };
                Ok(())
            }
            "retention.bytes" => {
                self.retention_bytes = match value {
                    None => defaults.retention_bytes,
                    Some(v) => bound("retention.bytes", v)?,
                };
                Ok(())
            }
            "retention.ms" => {
                self.retention = match value {
                    None => defaults.retention,
                    Some(v) => bound("retention.ms", v)?.map(Duration::from_millis),
                };
                Ok(())
            }
            "segment.bytes" => {
                self.segment_bytes = match value {
                    None => defaults.segment_bytes,
                    Some(v) => whole("segment.bytes", v, 1024, i32::MAX as u64)?,
                };
                Ok(())
            }
            "waybill.disk.bytes.max" => {
                self.disk_bytes_max = match value {
                    None => defaults.disk_bytes_max,
                    Some(v) => bound("waybill.disk.bytes.max", v)?,
                };
                Ok(())
            }
            "waybill.disk.low.refuse" => {
                self.refuse_on_low_disk = match value {
                    None => defaults.refuse_on_low_disk,
                    Some("true") => true,
                    Some("false") => false,
                    Some(other) => {
                        return Err(TopicConfigError::Invalid {
                            name: "waybill.disk.low.refuse",
                            value: other.to_owned(),
                            expected: "true or false",
                        });
                    }
                };
                Ok(())
            }
            _ => Err(TopicConfigError::Unknown {
                name: name.to_owned(),
            }),
        }
    }

    /// The value of the setting `name` as Kafka writes it.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let bound = |value: Option<u64>| value.map_or_else(|| "-1".to_owned(), |v| v.to_string());
        Some(match name {
            "cleanup.policy" => "delete".to_owned(),
            "compression.type" => UNCOMPRESSED.to_owned(),
            "flush.messages" => self.flush_messages.unwrap_or(FLUSH_NEVER).to_string(),
            "max.message.bytes" => self.message_bytes_max.to_string(),
            "retention.bytes" => bound(self.retention_bytes),
            "retention.ms" => bound(
                self.retention
                    .map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            ),
            "segment.bytes" => self.segment_bytes.to_string(),
            "waybill.disk.bytes.max" => bound(self.disk_bytes_max),
            "waybill.disk.low.refuse" => self.refuse_on_low_disk.to_string(),
            _ => return None,
        })
    }
}

fn whole(name: &'static str, value: &str, min: u64, max: u64) -> Result<u64, TopicConfigError> {
    value
        .parse()
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| TopicConfigError::Invalid {
            name,
            value: value.to_owned(),
            expected: "a whole number within its range",
        })
}

/// A bound in bytes or milliseconds; -1 is none.
fn bound(name: &'static str, value: &str) -> Result<Option<u64>, TopicConfigError> {
    if value == "-1" {
        return Ok(None);
    }
    value
        .parse()
        .ok()
        .filter(|&number: &u64| number <= i64::MAX as u64)
        .map(Some)
        .ok_or_else(|| TopicConfigError::Invalid {
            name,
            value: value.to_owned(),
            expected: "-1 or a whole number",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read_back_as_it_was_set() {
        let defaults = TopicConfig::default();
        for (name, value) in [
            ("cleanup.policy", "delete"),
            ("compression.type", "uncompressed"),
            ("flush.messages", "1"),
            ("flush.messages", "9223372036854775807"),
            ("max.message.bytes", "2000000"),
            ("retention.bytes", "-1"),
            ("retention.bytes", "1000"),
            ("retention.ms", "-1"),
            ("retention.ms", "60000"),
            ("segment.bytes", "4096"),
            ("waybill.disk.bytes.max", "5000"),
            ("waybill.disk.low.refuse", "true"),
        ] {
            let mut config = defaults;
            config.set(name, Some(value), &defaults).unwrap();
            assert_eq!(config.get(name).as_deref(), Some(value), "{name}");
            config.set(name, None, &defaults).unwrap();
            assert_eq!(config, defaults, "{name} goes back to its default");
        }
    }

    #[test]
    fn unknown_names_and_invalid_values_are_refused_by_name() {
        let defaults = TopicConfig::default();
        let mut config = defaults;
        assert!(matches!(
            config.set("retention.mss", Some("1"), &defaults),
            Err(TopicConfigError::Unknown { name }) if name == "retention.mss"
        ));
        for (name, value) in [
            ("flush.messages", "0"),
            ("segment.bytes", "10"),
            ("retention.ms", "-2"),
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("max.message.bytes", "much"),
            ("waybill.disk.low.refuse", "yes"),
        ] {
            assert!(
                matches!(
                    config.set(name, Some(value), &defaults),
                    Err(TopicConfigError::Invalid { name: named, .. }) if named == name
                ),
                "{name}={value}"
            );
        }
        assert_eq!(config, defaults);
    }
}
