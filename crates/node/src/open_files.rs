//! The limit on open files and connections of this process.
//!
//! Why it exists. Many systems start a process with a limit of 1,024 open files, and let the
//! process raise it. Every connection is an open file: at the limit no listener can accept, not
//! even the one for probes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use waybill_broker::OWN_CONNECTIONS_MAX;

use crate::Role;
use crate::config::Config;

/// The highest useful limit: a larger table of open files takes memory.
const LIMIT_MAX: u64 = 1 << 20;

/// Open files other than connections with a slot: of the log, the store, clients, connections that
/// wait for a slot, and the program itself.
const OTHERS: u64 = 640;
/// Open files of each partition (`partitions`): the open segments of its topics, and closed ones
/// while they are read.
const PER_PARTITION: u64 = 32;

/// Raises the limit as far as the system allows, and warns if the configured bounds exceed it.
pub fn prepare(role: Role, config: &Config) {
    let limit = raise();
    let wanted = wanted(role, config);
    if limit < wanted {
        tracing::warn!(
            limit,
            wanted,
            "the limit of open files is too low for the configured connections and partitions: raise it (ulimit -Hn, \
             LimitNOFILE=), or lower connectionsMax of http, admin, broker and services, or \
             broker.partitionsMax"
        );
    }
}

/// Raises the limit, and returns what it is now.
fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let now = current.unwrap_or(LIMIT_MAX);
    let wanted = maximum.unwrap_or(LIMIT_MAX).min(LIMIT_MAX);
    if now >= wanted {
        return now;
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(%error, now, wanted, "could not raise the limit of open files");
            now
        }
    }
}

/// How many files a process with this role may open within its configured bounds.
fn wanted(role: Role, config: &Config) -> u64 {
    let is_up = matches!(role, Role::Up { .. });
    let has_api = is_up || role == Role::Ingestion;
    let has_broker = is_up && config.kafka.brokers.is_none() || role == Role::Broker;
    let has_services = matches!(role, Role::Up { services: true, .. } | Role::Services);
    let mut wanted = OTHERS + config.admin.connections_max as u64;
    if has_api {
        wanted += config.http.connections_max as u64;
    }
    if has_broker {
        wanted += (config.broker.connections_max + OWN_CONNECTIONS_MAX) as u64;
        let partitions_max = config.broker.partitions_max as u64;
        wanted += partitions_max.max(u64::from(config.partitions) * PER_PARTITION);
    }
    if has_services {
        wanted += config.services.connections_max as u64;
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        let limit = raise();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, Some(limit));
        assert!(maximum.is_none_or(|maximum| limit == maximum.min(LIMIT_MAX) || limit > LIMIT_MAX));
        assert_eq!(raise(), limit);
    }

    #[test]
    fn each_listener_of_a_role_counts_with_its_bound() {
        let mut config = Config::default();
        config.admin.connections_max = 1;
        config.http.connections_max = 20;
        config.broker.connections_max = 300;
        config.services.connections_max = 4_000;
        config.broker.partitions_max = 50_000;
        config.partitions = 2;
        assert_eq!(wanted(Role::Supervisor, &config), 1 + OTHERS);
        assert_eq!(wanted(Role::Ingestion, &config), 21 + OTHERS);
        let up = |services| Role::Up {
            agents: true,
            services,
            samples: 0,
        };
        let own = OWN_CONNECTIONS_MAX as u64;
        let all = 50_321 + own + OTHERS;
        assert_eq!(wanted(up(false), &config), all);
        assert_eq!(wanted(up(true), &config), all + 4_000);
        assert_eq!(wanted(Role::Broker, &config), all - 20);
        config.broker.partitions_max = 1;
        let few = 321 + 2 * PER_PARTITION + own + OTHERS;
        assert_eq!(wanted(up(false), &config), few);
        config.kafka.brokers = Some(vec!["kafka:9092".to_owned()]);
        assert_eq!(wanted(up(false), &config), 21 + OTHERS);
    }
}
