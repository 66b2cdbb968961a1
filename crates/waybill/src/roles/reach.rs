//! Whether a process reaches what it lives on, as its readiness says it.
//!
//! Clients and drivers repeat what they ask for by themselves, so that a role whose broker or database is
//! away only stands still. Whoever looks at `/readyz` is to see that, and that it is over.

use std::time::{Duration, Instant};

use waybill_engine::PartitionId;
use waybill_kafka::{Admin as KafkaAdmin, KafkaSettings};
use waybill_node::admin::Admin;
use waybill_node::shutdown::{Running, Stage};
use waybill_store::LeaseKey;
use waybill_telemetry::chain;

use super::World;

/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How long nothing may have answered before the process is not ready any more: one slow answer is no
/// outage.
const AWAY_AFTER: Duration = Duration::from_secs(5);

/// Follows whether brokers answer what is asked about `topic`.
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
    let client = std::sync::Arc::new(KafkaAdmin::new(kafka, "waybill-reach")?);
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

/// Follows whether the topics exist that operations lie on: a role whose topic was deleted stands still, and no client of it
/// sees an error. Brokers that do not answer say nothing about it.
///
/// # Errors
///
/// If the Kafka client cannot be made.
pub(super) fn topics(world: &World, admin: &Admin, running: &Running) -> anyhow::Result<()> {
    let client = std::sync::Arc::new(KafkaAdmin::new(&world.kafka, "waybill-topics")?);
    let names = [
        world.topics.requests(),
        world.topics.expedited(),
        world.topics.step_replies(),
        world.topics.recovery(),
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

/// Follows whether the state store answers.
pub(super) fn store(world: &World, admin: &Admin, running: &Running) {
    let store = world.store.clone();
    follow("the state store", admin, running, move || {
        let store = store.clone();
        async move {
            let found = store.lease(LeaseKey::supervisor(PartitionId(0))).await;
            found.map(drop).map_err(|error| chain(&error))
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
        let mut reach = Reach::default();
        loop {
            let answer = tokio::time::timeout(ANSWER_MAX, ask()).await;
            let answer = answer.unwrap_or_else(|late| Err(late.to_string()));
            let was_reached = reach.is_reached;
            reached.set(reach.judge(answer.is_ok(), Instant::now()));
            match (was_reached, reach.is_reached, answer) {
                (true, false, Err(error)) => {
                    tracing::warn!(what, error, "cannot be reached; this process is not ready");
                }
                (false, true, Ok(())) => tracing::info!(what, "is reached"),
                (true | false, true | false, Ok(()) | Err(_)) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    });
}

/// What the answers up to now say.
#[derive(Debug, Default)]
struct Reach {
    is_reached: bool,
    /// When the first of those was asked for that did not come.
    silent_since: Option<Instant>,
}

impl Reach {
    /// Takes an answer, or that there was none; says whether it is reached.
    fn judge(&mut self, has_answered: bool, now: Instant) -> bool {
        if has_answered {
            *self = Self {
                is_reached: true,
                silent_since: None,
            };
        } else {
            let silent_since = *self.silent_since.get_or_insert(now);
            self.is_reached &= now - silent_since < AWAY_AFTER;
        }
        self.is_reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_that_does_not_come_is_no_outage_and_the_next_that_comes_ends_it() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut reach = Reach::default();
        assert!(!reach.judge(false, at(0)), "it never answered");
        assert!(reach.judge(true, at(1)));
        assert!(reach.judge(false, at(3)));
        assert!(reach.judge(false, at(7)));
        assert!(!reach.judge(false, at(8)));
        assert!(!reach.judge(false, at(9)));
        assert!(reach.judge(true, at(10)));
        assert!(reach.judge(false, at(90)), "it is counted anew");
    }
}
