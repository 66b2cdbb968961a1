//! The metrics of all roles, and the page that lists them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use waybill_node::{admin, broker_metrics, disk, instrumented_store, telemetry};
use waybill_telemetry::Declared;

/// The meaning of each label's values.
const LABELS: [(&str, &str); 20] = [
    ("agent", "the agent's name in workflows, such as `payment`"),
    ("channel", "the channel to owners: `email` or `sms`"),
    (
        "client",
        "the Kafka client's id, such as `waybill-scheduler`",
    ),
    ("kind", "what an alert is about, such as `operation-parked`"),
    (
        "listener",
        "the HTTP listener: `api`, `admin` or `services`",
    ),
    (
        "outcome",
        "how an attempt ended: `success`, `transient`, `permanent`, `unknown`, `not-attempted`, `late`; of a record: \
         `acknowledged` or `failed`; of a span: `sent`, `dropped` because the queue was full, or `failed`; of a fetch of keys: `fetched` or `failed`",
    ),
    ("partition", "the partition of the operation topics"),
    (
        "priority",
        "the priority of the requests, which have a topic for each: `normal` or `high`",
    ),
    (
        "shard",
        "the shard; if each partition has one, the partition's number",
    ),
    (
        "reason",
        "why a request was refused: `no-token`, `invalid-token`, `expired-token`, `insufficient-scope`, \
         `another-tenant`, `keys-unavailable`; which limit refused an HTTP request: `refused-stream`, `body-too-large`, `head-too-large`, \
         `nesting-too-deep`, `request-timeout`; why a record batch was refused: `too-large`, `expanded-too-large`, \
         `corrupt`, `unsupported`, `invalid`",
    ),
    ("receiver", "the receiver's name in the configuration"),
    (
        "route",
        "the route of the API, such as `create-operation`; lines of a batch are `batch-line`",
    ),
    (
        "index_shard",
        "the partition whose part of the deadline index the metric is about",
    ),
    ("state", "the operation's process state"),
    (
        "statement",
        "the kind of request to the state store: `write` is a group commit, `read` reads rows",
    ),
    (
        "status",
        "the class of the HTTP status: `2xx`, `4xx`, `5xx` and so on; of calls also `failed`",
    ),
    (
        "task",
        "the background task, such as `commit`, `load`, `renew` or `acquire`",
    ),
    (
        "verb",
        "the verb that the supervisor requested, such as `retry` or `compensate`",
    ),
    ("version", "the version of the program"),
    ("what", "the request without a response: `commit` or `load`"),
];

/// A part of the program and its metrics.
struct Section {
    title: &'static str,
    about: &'static str,
    metrics: Vec<&'static dyn Declared>,
}

fn sections() -> [Section; 14] {
    let section = |title, about, metrics: Vec<&'static dyn Declared>| Section {
        title,
        about,
        metrics,
    };
    [
        section(
            "Ingestion",
            "The HTTP API, with the role `ingestion`.",
            waybill_ingestion::METRICS.to_vec(),
        ),
        section(
            "Scheduler",
            "Operations, partitions and group commits, with the role `scheduler`. Sum over `partition` and `shard` \
             for the whole.",
            waybill_scheduler::metrics::declared(),
        ),
        section(
            "Agents and services",
            "With the role `agents`; with `scheduler` if `agents.transport` is `direct`.",
            waybill_agent::METRICS.to_vec(),
        ),
        section(
            "Supervisor",
            "Deadlines, recoveries and decisions, with the role `supervisor`.",
            waybill_supervisor::METRICS.to_vec(),
        ),
        section(
            "Alerts and owners",
            "Delivery of alerts to receivers and of notices to owners, with the role `supervisor`.",
            waybill_alerts::METRICS.to_vec(),
        ),
        section(
            "State store",
            "Seen from its client, with every role that has one.",
            instrumented_store::METRICS.to_vec(),
        ),
        section(
            "Kafka producers",
            "Seen from the client, with every role.",
            waybill_kafka::METRICS.to_vec(),
        ),
        section(
            "Embedded broker",
            "With `up` and `broker`.",
            broker_metrics::declared(),
        ),
        section(
            "Disk",
            "With `up` and `broker`, if the process has the embedded broker or store.",
            disk::METRICS.to_vec(),
        ),
        section("Admin port", "With every role.", admin::METRICS.to_vec()),
        section(
            "Keys of an issuer",
            "With every role, if `auth.jwt` names an issuer whose keys are fetched.",
            waybill_http::auth::METRICS.to_vec(),
        ),
        section(
            "HTTP connections",
            "With every role: `listener` is `admin`, `api` with the role `ingestion`, and `services` if the simulated \
             services run in this process.",
            waybill_http::METRICS.to_vec(),
        ),
        section(
            "Program",
            "With every role; spans only if the configuration names a collector.",
            telemetry::metrics(),
        ),
        section(
            "Process",
            "With every role, on Linux, under the usual names of Prometheus' client libraries.",
            telemetry::PROCESS_METRICS.to_vec(),
        ),
    ]
}

/// Every metric.
#[must_use]
pub fn all() -> Vec<&'static dyn Declared> {
    let sections = sections().into_iter();
    sections.flat_map(|section| section.metrics).collect()
}

/// The text of `docs/metrics.md`.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         <!-- Generated by `waybill reference metrics`; a test compares the two. -->\n\n\
         Every process exposes its metrics on its admin port, `/metrics`, in Prometheus' text format. Histograms have \
         buckets:\n`histogram_quantile` computes percentiles. No label has the id of an operation. A metric appears once \
         its part of the\nprocess has started; a metric with labels, once a label's value first occurs.\n",
    );
    for Section {
        title,
        about,
        metrics,
    } in sections()
    {
        write!(
            page,
            "\n## {title}\n\n{about}\n\n| metric | kind | labels | |\n|---|---|---|---|\n"
        )
        .expect("writing to a string cannot fail");
        for metric in metrics {
            let labels: Vec<String> = metric.labels().iter().map(|l| format!("`{l}`")).collect();
            writeln!(
                page,
                "| `{}` | {} | {} | {} |",
                metric.name(),
                metric.kind(),
                labels.join(", "),
                metric.help()
            )
            .expect("writing to a string cannot fail");
        }
    }
    page.push_str("\n## Labels\n\n| label | |\n|---|---|\n");
    for (label, about) in LABELS.into_iter() {
        writeln!(page, "| `{label}` | {about} |").expect("writing to a string cannot fail");
    }
    page
}

/// The names of all metrics.
#[must_use]
pub fn names() -> BTreeSet<&'static str> {
    all().iter().map(|metric| metric.name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_prometheus_conventions_and_are_each_declared_once() {
        assert_eq!(names().len(), all().len());
        for metric in all() {
            let name = metric.name();
            assert!(
                name.starts_with("waybill_") || name.starts_with("process_"),
                "{name}"
            );
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{name}"
            );
            assert_eq!(
                name.ends_with("_total"),
                metric.kind() == "counter",
                "{name}"
            );
            assert!(
                !metric.help().ends_with('.') && !metric.help().contains('|'),
                "{name}"
            );
        }
    }

    #[test]
    fn exactly_the_used_labels_are_explained() {
        let used: BTreeSet<&str> = all()
            .iter()
            .flat_map(|metric| metric.labels().iter().copied())
            .collect();
        let explained: BTreeSet<&str> = LABELS.into_iter().map(|(label, _)| label).collect();
        assert_eq!(used, explained);
    }
}
