//! The command lines of Kafka's own tools that change a topic.

use crate::TopologySettings;

pub(super) struct Tools {
    brokers: String,
    /// Whether the tools need a file with a login.
    is_secured: bool,
}

impl Tools {
    pub(super) fn of(topology: &TopologySettings) -> Self {
        let mut properties = topology.kafka.properties.iter();
        Self {
            brokers: match &topology.kafka.brokers {
                Some(brokers) => brokers.join(","),
                None => topology.embedded.listen.to_string(),
            },
            is_secured: properties.any(|(name, _)| name == "security.protocol"),
        }
    }

    fn call(&self, tool: &str) -> String {
        let login = match self.is_secured {
            true => " --command-config client.properties",
            false => "",
        };
        format!("{tool} --bootstrap-server {}{login}", self.brokers)
    }

    pub(super) fn set(&self, topic: &str, key: &str, value: &str) -> String {
        let tool = self.call("kafka-configs.sh");
        format!(
            "{tool} --alter --entity-type topics --entity-name {topic} --add-config {key}={value}"
        )
    }

    pub(super) fn add_partitions(&self, topic: &str, wanted: u32) -> String {
        let tool = self.call("kafka-topics.sh");
        format!("{tool} --alter --topic {topic} --partitions {wanted}")
    }

    pub(super) fn reassign(&self, topic: &str) -> String {
        let tool = self.call("kafka-reassign-partitions.sh");
        format!(
            "{tool} --execute --reassignment-json-file FILE, with more replicas of {topic} in it"
        )
    }

    pub(super) fn allow_looking(&self, topic: &str) -> String {
        let tool = self.call("kafka-acls.sh");
        format!(
            "{tool} --add --allow-principal User:NAME --operation DescribeConfigs --topic {topic}"
        )
    }
}
