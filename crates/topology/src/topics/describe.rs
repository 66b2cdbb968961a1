//! What the brokers say of the topics that are needed.

use std::collections::BTreeMap;

use waybill_kafka::{Admin, AdminError, PartitionState, TopicSettings};

use super::Needed;

/// How a topic is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its partitions, in their order.
    pub partitions: Vec<PartitionState>,
    /// Its settings; `None` if they are not for this client to see.
    pub settings: Option<TopicSettings>,
}

/// Those of the topics that exist, by name.
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
