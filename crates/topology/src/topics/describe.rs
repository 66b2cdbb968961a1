//! Reads the state of required topics from the brokers.

use std::collections::BTreeMap;

use waybill_kafka::{Admin, AdminError, PartitionState, TopicSettings};

use super::Needed;

/// The state of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its partitions, in order.
    pub partitions: Vec<PartitionState>,
    /// Its settings; `None` if this client has no permission to read them.
    pub settings: Option<TopicSettings>,
}

/// The required topics that exist, by name.
pub async fn describe(
    admin: &Admin,
    needed: &[Needed],
) -> Result<BTreeMap<String, Found>, AdminError> {
    let mut found = BTreeMap::new();
    for topic in needed {
        let name = &topic.spec.name;
        if let Some(partitions) = admin.partition_states(name).await? {
            let settings = None;
            found.insert(
                name.clone(),
                Found {
                    partitions,
                    settings,
                },
            );
        }
    }
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    for (name, settings) in admin.topic_settings(&names).await? {
        if let Some(found) = found.get_mut(&name) {
            found.settings = Some(settings);
        }
    }
    Ok(found)
}
