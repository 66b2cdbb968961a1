//! Checks that a process reaches its brokers, topics and store. Readiness depends on it.
//!
//! Clients and drivers retry on their own, so a role with an unreachable broker or database makes
//! no progress and reports no error. `/readyz` shows the outage and its end.

use std::time::{Duration, Instant};

use waybill_engine::PartitionId;
use waybill_kafka::{Admin as KafkaAdmin, KafkaSettings};
use waybill_node::admin::Admin;
use waybill_node::shutdown::{Running, Stage};
use waybill_store::LeaseKey;
use waybill_telemetry::chain;
use waybill_topology::topics::CompressionCheck;

use super::Dependencies;

/// The interval of the checks.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// The maximum time for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The interval of the checks of topics' compression, which is the time until a role notices a
/// change.
const COMPRESSION_EVERY: Duration = Duration::from_secs(30);
/// The maximum time for one of them: it asks about each topic.
const COMPRESSION_ANSWER_MAX: Duration = Duration::from_secs(20);
/// How long checks may fail before the process is no longer ready. One slow answer is no outage.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);

/// Checks that the brokers answer requests about `topic`.
///
/// # Errors
///
/// If the Kafka client cannot be made.
pub(super) fn brokers(
    kafka: &KafkaSettings,
    topic: &str,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<()> {
    let client = std::sync::Arc::new(KafkaAdmin::new(kafka, "waybill-connectivity")?);
    let topic = topic.to_owned();
    follow("the brokers", admin, running, move || {
        let (client, topic) = (client.clone(), topic.clone());
        async move {
            let found = client.topic_partitions(&topic).await;
            found.map(drop).map_err(|error| chain(&error))
        }
    });
    Ok(())
}

/// Checks that the topics of operations exist. If one was deleted, the role makes no progress and
/// none of its clients sees an error. Unavailable brokers count as existing topics.
///
/// # Errors
///
/// If the Kafka client cannot be made.
pub(super) fn topics(
    dependencies: &Dependencies,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<()> {
    let client = std::sync::Arc::new(KafkaAdmin::new(&dependencies.kafka, "waybill-topics")?);
    let names = [
        dependencies.topics.requests(),
        dependencies.topics.high_priority_requests(),
        dependencies.topics.step_replies(),
        dependencies.topics.recovery(),
    ];
    let names = names.map(str::to_owned);
    follow("the topics of operations", admin, running, move || {
        let (client, names) = (client.clone(), names.clone());
        async move {
            for name in names {
                if let Ok(None) = client.topic_partitions(&name).await {
                    return Err(format!("topic {name} does not exist"));
                }
            }
            Ok(())
        }
    });
    Ok(())
}

/// Checks that the state store answers.
pub(super) fn store(dependencies: &Dependencies, admin: &Admin, running: &Running) {
    let store = dependencies.store.clone();
    follow("the state store", admin, running, move || {
        let store = store.clone();
        async move {
            let found = store.lease(LeaseKey::supervisor(PartitionId(0))).await;
            found.map(drop).map_err(|error| chain(&error))
        }
    });
}

/// Checks that brokers accept the offset commits of this process's consumer groups. If they refuse,
/// consumers continue, but read everything again after a restart.
pub(super) fn group_commits(kafka: &KafkaSettings, admin: &Admin, running: &Running) {
    let commits = kafka.group_commits.clone();
    let accepted = admin.readiness.expect("offset commits");
    accepted.set(true);
    running.spawn(Stage::Agents, "watch offset commits", move |stop| async move {
        let mut was_refused = false;
        loop {
            let refused = commits.refused();
            let is_refused = !refused.is_empty();
            let groups = refused.join("; ");
            accepted.note(is_refused.then_some(&*groups));
            accepted.set(!is_refused);
            match (was_refused, is_refused) {
                (false, true) => tracing::error!(
                    groups,
                    "brokers refuse offset commits; this process is not ready, and would read its records again after a restart"
                ),
                (true, false) => tracing::info!("brokers accept offset commits again"),
                (true, true) | (false, false) => {}
            }
            was_refused = is_refused;
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    });
}

/// Checks that no topic has begun to keep compressed batches since the start. If one has, readiness
/// names it. The role continues: to stop reading would only delay what is in the topic already.
/// Unavailable brokers change nothing.
pub(super) fn compression(check: CompressionCheck, admin: &Admin, running: &Running) {
    let uncompressed = admin.readiness.expect("uncompressed topics");
    uncompressed.set(true);
    running.spawn(Stage::Agents, "watch compression", move |stop| async move {
        let mut last_topics = String::new();
        let mut is_failing = false;
        loop {
            tokio::select! {
                () = tokio::time::sleep(COMPRESSION_EVERY) => {}
                () = stop.cancelled() => return Ok(()),
            }
            let found = tokio::select! {
                found = tokio::time::timeout(COMPRESSION_ANSWER_MAX, check.find()) => found,
                () = stop.cancelled() => return Ok(()),
            };
            let found = match found {
                Ok(found) => found.map_err(|error| chain(&error)),
                Err(late) => Err(late.to_string()),
            };
            let was_failing = std::mem::replace(&mut is_failing, found.is_err());
            let findings = match found {
                Ok(findings) => findings,
                Err(error) => {
                    if !was_failing {
                        tracing::warn!(error, "could not check the compression of topics; retrying");
                    }
                    continue;
                }
            };
            let topics: Vec<String> = findings.iter().map(ToString::to_string).collect();
            let topics = topics.join("; ");
            let is_found = !topics.is_empty();
            uncompressed.note(is_found.then_some(&*topics));
            uncompressed.set(!is_found);
            if topics != last_topics {
                if is_found {
                    tracing::error!(
                        topics,
                        "topics keep batches compressed, so that small ones may fill the memory of their readers; this \
                         process is not ready, and would not start"
                    );
                } else {
                    tracing::info!("all topics keep batches uncompressed again");
                }
            }
            last_topics = topics;
        }
    });
}

fn follow<F>(
    what: &'static str,
    admin: &Admin,
    running: &Running,
    ask: impl Fn() -> F + Send + 'static,
) where
    F: Future<Output = Result<(), String>> + Send,
{
    let reached = admin.readiness.expect(what);
    let name = format!("watch over {what}");
    running.spawn(Stage::Agents, name, move |stop| async move {
        let mut connectivity = Connectivity::default();
        loop {
            let answer = tokio::time::timeout(ANSWER_MAX, ask()).await;
            let answer = answer.unwrap_or_else(|late| Err(late.to_string()));
            let was_reached = connectivity.is_reached;
            reached.set(connectivity.note(answer.is_ok(), Instant::now()));
            match (was_reached, connectivity.is_reached, answer) {
                (true, false, Err(error)) => {
                    tracing::warn!(what, error, "unreachable; this process is not ready");
                }
                (false, true, Ok(())) => tracing::info!(what, "reachable"),
                (true | false, true | false, Ok(()) | Err(_)) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    });
}

/// The result of the checks so far.
#[derive(Debug, Default)]
struct Connectivity {
    is_reached: bool,
    /// The start of the first failed check since the last success.
    silent_since: Option<Instant>,
}

impl Connectivity {
    /// Records the result of a check. Returns whether the server counts as reachable.
    fn note(&mut self, has_answered: bool, now: Instant) -> bool {
        if has_answered {
            *self = Self {
                is_reached: true,
                silent_since: None,
            };
        } else {
            let silent_since = *self.silent_since.get_or_insert(now);
            self.is_reached &= now - silent_since < UNREACHABLE_AFTER;
        }
        self.is_reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_answer_is_no_outage_and_the_next_one_ends_it() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut connectivity = Connectivity::default();
        assert!(!connectivity.note(false, at(0)), "it never answered");
        assert!(connectivity.note(true, at(1)));
        assert!(connectivity.note(false, at(3)));
        assert!(connectivity.note(false, at(7)));
        assert!(!connectivity.note(false, at(8)));
        assert!(!connectivity.note(false, at(9)));
        assert!(connectivity.note(true, at(10)));
        assert!(connectivity.note(false, at(90)), "the count starts again");
    }
}
