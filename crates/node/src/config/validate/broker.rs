//! The limits of the embedded broker that Waybill's roles need.
//!
//! Why it exists: with lower limits the broker closes connections of the roles, or refuses their
//! groups and topics, and the process never becomes ready.

use waybill_config::ConfigError;
use waybill_config::checks::{check_range_because, require};
use waybill_engine::Workflows;
use waybill_topology::topics::{disk_bytes_min, partitions_needed};
use waybill_units::ByteSize;

use super::Config;

/// Connections of commands such as `waybill ops` and `waybill doctor`, which end soon. The roles
/// connect to their own listener.
const CONNECTIONS: usize = 10;
/// Consumer groups without those of receivers: two of Waybill's roles, and those of clients.
const GROUPS: usize = 10;

/// The largest request of Waybill's producers, with room for its head. A larger one closes its
/// connection, and is sent again.
const REQUEST_BYTES_MIN: ByteSize = ByteSize::mib(2);

/// Reports the first limit that leaves too little for Waybill's own roles, without the topics of
/// agents.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let broker = &config.broker;
    for (key, bound) in [
        (
            "broker.requestsDiskBytesMax",
            broker.requests_disk_bytes_max,
        ),
        (
            "broker.recoveriesDiskBytesMax",
            broker.recoveries_disk_bytes_max,
        ),
    ] {
        let least = disk_bytes_min(config.partitions);
        require(
            bound.as_u64() >= least,
            key,
            format!(
                "must be at least {}KiB with this number of partitions: each keeps its last file",
                least / 1024
            ),
        )?;
    }
    if config.kafka.brokers.is_some() {
        return Ok(());
    }
    check_range_because(
        "broker.requestBytesMax",
        broker.request_bytes_max,
        REQUEST_BYTES_MIN..,
        "Waybill's own producers send batches of up to 1MiB, and dead letters that are larger",
    )?;
    broker.validate_memory()?;
    let receivers = receivers(config);
    let of = format!("Waybill's commands need {CONNECTIONS}");
    let (connections_max_min, per_address_note) = match broker.connections_per_address_max {
        Some(_) => (CONNECTIONS, ""),
        // One address gets the larger part of three quarters.
        None => (
            (CONNECTIONS * 4 - 3).div_ceil(3),
            ", and one address gets three quarters of it unless broker.connectionsPerAddressMax is set",
        ),
    };
    let groups = GROUPS + receivers;
    let of_groups = format!(
        "Waybill's roles need these with {receivers} receivers of alerts and channels to owners"
    );
    let rules = [
        (
            "broker.connectionsMax",
            broker.connections_max,
            connections_max_min,
            format!("{of}{per_address_note}"),
        ),
        (
            "broker.connectionsPerAddressMax",
            broker.connections_per_address_max(),
            CONNECTIONS,
            of,
        ),
        (
            "broker.groupsMax",
            broker.groups_max,
            groups,
            of_groups.clone(),
        ),
        (
            "broker.storedGroupsMax",
            broker.stored_groups_max,
            groups,
            of_groups,
        ),
    ];
    for (key, value, needed, of) in rules {
        check_range_because(key, value, needed.., &of)?;
    }
    partitions(config, &Workflows::default())
}

/// Checks that the embedded broker has room for the topics of Waybill and of these workflows'
/// agents.
///
/// # Errors
///
/// If `broker.partitionsMax` is too low.
pub fn partitions(config: &Config, workflows: &Workflows) -> Result<(), ConfigError> {
    let needed = partitions_needed(&config.topology(), workflows);
    let (most, partitions) = (config.broker.partitions_max, config.partitions);
    if config.kafka.brokers.is_some() || most >= needed {
        return Ok(());
    }
    let agents = workflows.agents().len();
    let of_agents = match agents {
        0 => ", and more for the topics of agents".to_owned(),
        _ => format!(
            ", and with 2 topics of {} partitions (kafka.stepPartitions) for each of {agents} agents",
            config.kafka.step_partitions
        ),
    };
    Err(ConfigError::invalid(
        "broker.partitionsMax",
        format!(
            "is {most}, and must be at least {needed}, the partitions of Waybill's own topics with {partitions} \
             partitions (partitions){of_agents}"
        ),
    ))
}

/// The number of followers of alerts and notices.
fn receivers(config: &Config) -> usize {
    let owners = &config.alerts.owners;
    let channels = usize::from(owners.email.is_some()) + usize::from(owners.sms.is_some());
    config.alerts.receivers.len() + channels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_below_what_the_roles_need_are_refused_with_the_need() {
        type Change = fn(&mut Config);
        let cases: [(&str, Change); 5] = [
            (
                "broker.connectionsMax is 2, and must be at least 13: Waybill's commands need 10, and one address gets three \
                 quarters of it unless",
                |c| c.broker.connections_max = 2,
            ),
            (
                "broker.connectionsMax is 12, and must be at least 13",
                |c| c.broker.connections_max = 12,
            ),
            (
                "broker.connectionsPerAddressMax is 9, and must be at least 10",
                |c| c.broker.connections_per_address_max = Some(9),
            ),
            (
                "broker.partitionsMax is 59, and must be at least 60, the partitions of Waybill's own topics with 4 \
                 partitions (partitions), and more for the topics of agents",
                |c| c.broker.partitions_max = 59,
            ),
            ("broker.groupsMax is 9, and must be at least 10", |c| {
                c.broker.groups_max = 9
            }),
        ];
        for (expected, change) in cases {
            let mut config = Config::default();
            change(&mut config);
            let error = check(&config).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
            config.kafka.brokers = Some(vec!["a:1".to_owned()]);
            check(&config).expect("another broker's limits are its own");
        }
    }

    #[test]
    fn disk_bounds_below_one_file_of_each_partition_are_refused() {
        let mut config = Config::default();
        config.broker.recoveries_disk_bytes_max = ByteSize::kib(64);
        config.kafka.brokers = Some(vec!["a:1".to_owned()]);
        let error = check(&config).unwrap_err().to_string();
        let expected = "broker.recoveriesDiskBytesMax must be at least ";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn the_topics_of_agents_count() {
        let workflows = crate::workflows::load_workflows(&Config::default().workflows).unwrap();
        let mut config = Config::default();
        config.broker.partitions_max = 80;
        partitions(&config, &workflows).unwrap();
        config.broker.partitions_max = 79;
        check(&config).unwrap();
        let error = partitions(&config, &workflows).unwrap_err().to_string();
        assert_eq!(
            error,
            "broker.partitionsMax is 79, and must be at least 80, the partitions of Waybill's own topics with 4 \
             partitions (partitions), and with 2 topics of 2 partitions (kafka.stepPartitions) for each of 5 agents"
        );
    }
}
