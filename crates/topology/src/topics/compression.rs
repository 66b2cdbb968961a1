//! The check that topics keep batches uncompressed, at the start of a role and while it runs.

use waybill_engine::Workflows;
use waybill_kafka::{Admin, AdminError, KafkaSettings};
use waybill_messages::Topics;

use super::{
    BROKER_PATIENCE, BrokerKind, COMPRESSION, Finding, Needed, audit, describe, explained, needed,
    of_steps, refuse_harm,
};
use crate::TopologySettings;

/// Checks that topics keep batches uncompressed. Skips topics that do not exist, or whose settings
/// this user may not read.
#[derive(Debug)]
pub struct CompressionCheck {
    admin: Admin,
    topology: TopologySettings,
    needed: Vec<Needed>,
}

impl CompressionCheck {
    /// For all topics of an installation.
    ///
    /// # Errors
    ///
    /// If the Kafka client cannot be made.
    pub fn of_installation(
        topology: &TopologySettings,
        kafka: &KafkaSettings,
        workflows: &Workflows,
    ) -> anyhow::Result<Self> {
        // The kind of broker does not matter: the embedded one compresses nothing.
        let needed = needed(topology, workflows, BrokerKind::Kafka);
        Self::new(topology, kafka, needed)
    }

    /// For the step requests of agents.
    ///
    /// # Errors
    ///
    /// If the Kafka client cannot be made.
    pub fn of_agents(
        topology: &TopologySettings,
        kafka: &KafkaSettings,
        agents: &[&str],
    ) -> anyhow::Result<Self> {
        let names = Topics::new(&topology.kafka.topic_prefix);
        let needed = agents
            .iter()
            .map(|agent| of_steps(topology, &names.step_requests(agent), BrokerKind::Kafka));
        Self::new(topology, kafka, needed.collect())
    }

    fn new(
        topology: &TopologySettings,
        kafka: &KafkaSettings,
        needed: Vec<Needed>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            admin: Admin::new(kafka, "waybill-compression")?,
            topology: topology.clone(),
            needed,
        })
    }

    /// The topics that keep compressed batches, each with the command that changes that.
    ///
    /// # Errors
    ///
    /// If the brokers are unavailable.
    pub async fn find(&self) -> Result<Vec<Finding>, AdminError> {
        let found = describe(&self.admin, &self.needed).await?;
        let mut findings = audit(&self.topology, BrokerKind::Kafka, &self.needed, &found);
        findings.retain(|finding| finding.key == COMPRESSION);
        Ok(findings)
    }

    /// Checks at the start of a role.
    ///
    /// # Errors
    ///
    /// If there is such a topic, or the brokers are unavailable.
    pub async fn check_at_start(&self) -> anyhow::Result<()> {
        self.admin.wait_ready(BROKER_PATIENCE).await?;
        let findings = self.find().await;
        refuse_harm(&findings.map_err(|error| explained(error, &self.topology))?)
    }
}
