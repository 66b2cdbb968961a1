//! The parts of an installation, ordered by dependency.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use reqwest::Client;
use serde::Deserialize;
use uuid::Uuid;
use waybill_agent::AgentTransport;
use waybill_api::view::ItemView;
use waybill_engine::{PartitionId, Priority};
use waybill_kafka::ASSIGNMENT_STRATEGY;
use waybill_messages::Topics;
use waybill_node::config::Config;
use waybill_node::disk::{Space, TopicSpace};
use waybill_node::exposure::check_everything;
use waybill_node::workflows::load_workflows;
use waybill_store::ProblemArea;
use waybill_telemetry::chain;
use waybill_topology::shards::show::{LayoutView, ShardView};
use waybill_topology::topics::{Weight, disk_bytes_max, is_forbidden};

use super::dead_letters::{DEAD_LETTERS, dead_letters};
use super::{CONFIGURATION, FileCheck, Finding, Verdict, named_elsewhere};
use crate::access::{AdminArgs, Silence};
use crate::admin_port::{self, Refused, Unreachable};
use crate::operations::api::{Api, ApiError};
use crate::ready::{self, Readiness};
use crate::schemas::{subjects, subjects_of};
use crate::topics::Site;

/// The maximum time for an answer of the brokers. Short, because a person waits.
const BROKER_PATIENCE: Duration = Duration::from_secs(3);
/// The number of unread requests that is reported. It is more than arrive in a moment.
const LAG_NOTED_FROM: i64 = 10_000;
/// The maximum number of pages of operations that need a person.
const PAGES_MAX: usize = 5;
/// A live operation this long past its due time is reported: the supervisor's audit should have
/// woken it by then.
const OVERDUE_AFTER: Duration = Duration::from_secs(15 * 60);
/// The maximum number of operations that a finding names.
const NAMED_MAX: usize = 5;
/// The metric for the state of circuit breakers, and its values.
const BREAKER_STATE: &str = "waybill_agent_breaker_state";
const HALF_OPEN: &str = "1";
const OPEN: &str = "2";
/// The subjects of findings about topics, agents and leases.
const TOPICS: &str = "topics";
const AGENTS: &str = "agents";
const LEASES: &str = "leases";
/// The subject of findings about unreadable files.
const DAMAGE: &str = "damage";

pub(super) fn configuration(config: &Config, check: FileCheck) -> Finding {
    let checked = check_everything(config).map_err(anyhow::Error::from);
    match checked.and_then(|()| check(config)) {
        Ok(elsewhere) => {
            let message = "valid, with its workflows and agents";
            let elsewhere = named_elsewhere(&elsewhere);
            Finding::ok(CONFIGURATION, format!("{message}{elsewhere}"))
        }
        Err(error) => Finding::failed(CONFIGURATION, &error),
    }
}

/// Checks the brokers and, with the configuration of the process, their topics, the number of
/// unread requests, and the number of dead letters.
pub(super) async fn brokers(
    config: anyhow::Result<Config>,
    layout: Option<&LayoutView>,
    is_same: bool,
) -> Vec<Finding> {
    const LAG: &str = "lag";
    let opened = async {
        let config = config?;
        let site = Site::open_within(&config, BROKER_PATIENCE).await?;
        anyhow::Ok((site, config))
    };
    let (site, config) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            let unknown = |what| Finding::note(what, "unknown: the brokers are unavailable");
            let unavailable = Finding::failed("brokers", &error);
            return vec![unavailable, unknown(LAG), unknown(DEAD_LETTERS)];
        }
    };
    let config = &config;
    let mut findings = vec![Finding::ok("brokers", "available")];
    if !is_same {
        return findings;
    }
    let topics = match topics(&site, config, layout).await {
        Ok(findings) => findings,
        Err(error) if is_forbidden(&error) => {
            findings.push(Finding::note(TOPICS, chain(error.as_ref())));
            for unknown in [AGENTS, LAG] {
                let message = "unknown: this login has no permission to describe the topics";
                findings.push(Finding::note(unknown, message));
            }
            findings.extend(dead_letters(&site).await);
            return findings;
        }
        Err(error) => vec![Finding::failed(TOPICS, &error)],
    };
    findings.extend(topics);
    findings.extend(match agents(&site, config).await {
        Ok(findings) => findings,
        Err(error) => vec![Finding::note(AGENTS, chain(error.as_ref()))],
    });
    findings.push(match layout {
        Some(layout) => match lag(&site, config, layout).await {
            Ok(finding) => finding,
            Err(error) => Finding::failed(LAG, &error),
        },
        None => Finding::note(
            LAG,
            "unknown: the progress of shards is unavailable (see leases)",
        ),
    });
    findings.extend(dead_letters(&site).await);
    findings
}

async fn topics(
    site: &Site,
    config: &Config,
    layout: Option<&LayoutView>,
) -> anyhow::Result<Vec<Finding>> {
    let mut wrong = site.findings(config).await?;
    if let Some(layout) = layout {
        site.drop_stored_numbers(&mut wrong, layout);
    }
    if wrong.is_empty() {
        let message = format!("{} topics match the requirements", site.topics());
        return Ok(vec![Finding::ok(TOPICS, message)]);
    }
    let found = wrong.iter().map(|wrong| {
        let verdict = match wrong.weight {
            Weight::Harm => Verdict::Bad,
            Weight::Warning => Verdict::Note,
        };
        Finding::new(TOPICS, verdict, wrong.to_string())
    });
    Ok(found.collect())
}

/// Checks that a consumer reads each agent's requests.
async fn agents(site: &Site, config: &Config) -> anyhow::Result<Vec<Finding>> {
    let topics = Topics::new(&config.kafka.topic_prefix);
    let read = site.topics_read().await?;
    if read.groups == 0 {
        let message = "no consumer group is visible: whether agents read their requests is unknown";
        return Ok(vec![Finding::note(AGENTS, message)]);
    }
    let group = config.agents_group();
    let strategy = read.strategies.get(&group).map(String::as_str);
    let mut findings = Vec::new();
    let mut locked_out = Vec::new();
    for agent in load_workflows(&config.workflows)?.agents() {
        let topic = topics.step_requests(&agent);
        if read.topics.contains(&topic) {
            continue;
        }
        let is_direct = config.agents.transport == AgentTransport::Direct;
        let Some(waiting) = site.waiting(config, &topic, &group).await? else {
            if !is_direct {
                let message = format!("the agent {agent} gets no requests: {topic} does not exist");
                findings.push(Finding::bad(AGENTS, message));
            }
            continue;
        };
        if strategy.is_some_and(|strategy| strategy != ASSIGNMENT_STRATEGY) && !is_direct {
            locked_out.push(agent.to_string());
            continue;
        }
        let of_group = strategy.map(|_| &*group);
        findings.extend(unread(
            &agent,
            &topic,
            waiting,
            &read.unknown_groups,
            of_group,
            is_direct,
        ));
    }
    if let (Some(strategy), [_, ..]) = (strategy, &locked_out[..]) {
        findings.push(Finding::bad(
            AGENTS,
            format!(
                "the consumer group {group} has the partition.assignment.strategy {strategy}: Waybill's agents cannot \
                 join it until every member supports {ASSIGNMENT_STRATEGY}; without a consumer: {}",
                locked_out.join(", ")
            ),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            AGENTS,
            "a consumer reads each agent's requests",
        ));
    }
    Ok(findings)
}

/// The findings about agents whose topic no member of a visible group reads. `of_group` is the
/// agents' group, if it has members.
pub(super) fn unread(
    agent: &str,
    topic: &str,
    waiting: u64,
    unknown_groups: &[String],
    of_group: Option<&str>,
    is_direct: bool,
) -> Option<Finding> {
    let unread = format!("no consumer reads {topic}");
    let locked_out = of_group.map_or_else(String::new, |group| {
        format!(
            ", or its client does not use the partition.assignment.strategy {ASSIGNMENT_STRATEGY} of the group {group}"
        )
    });
    match (waiting, unknown_groups) {
        (0, _) if is_direct => None,
        (0, []) => Some(Finding::note(
            AGENTS,
            format!(
                "{unread}, and no requests wait there: no process runs the agent {agent}{locked_out}"
            ),
        )),
        (_, []) => Some(Finding::bad(
            AGENTS,
            format!(
                "{unread}, and requests wait there ({waiting}): no process runs the agent {agent}{locked_out}, or a \
                 workflow misspells its name"
            ),
        )),
        (_, unknown_groups) => Some(Finding::note(
            AGENTS,
            format!(
                "unknown whether a consumer reads {topic}, and requests wait there ({waiting}): these groups are \
                 rebalancing, or do not show their members: {}",
                unknown_groups.join(", ")
            ),
        )),
    }
}

/// Reports requests without a row, unread requests that retention deleted, and recreated topics.
async fn lag(site: &Site, config: &Config, layout: &LayoutView) -> anyhow::Result<Finding> {
    const WHAT: &str = "lag";
    let topics = Topics::new(&config.kafka.topic_prefix);
    let partitions: Vec<_> = (0..layout.partitions).map(PartitionId).collect();
    let (mut not_consumed, mut held) = (0, 0);
    let (mut gone, mut shorter) = (Vec::new(), Vec::new());
    for priority in Priority::ALL {
        let topic = topics.of_priority(priority);
        let offsets = site.offsets(topic, &partitions).await?;
        for (partition, (start, end)) in partitions.iter().zip(offsets) {
            let of_it = || {
                let views = layout.shards.iter();
                views.filter(|view| view.partition == partition.0)
            };
            let consumed = of_it().map(|view| view.consumed(priority)).min();
            not_consumed += (end.0 - consumed.map_or(0, |consumed| consumed.0)).max(0);
            let behind =
                |view: &ShardView| (view.consumed(priority).0 - view.done(priority).0).max(0);
            held += of_it().map(behind).max().unwrap_or(0);
            if consumed.is_some_and(|consumed| consumed < start) {
                gone.push(format!("{topic}[{partition}]"));
            }
            if of_it().any(|view| view.done(priority) > end) {
                shorter.push(format!("{topic}[{partition}]"));
            }
        }
    }
    if !gone.is_empty() {
        let message = format!(
            "requests may be lost: the log of {} begins after the first request that has no row: retention or a client deleted \
             some that no scheduler had read, or the state store is older than its log",
            gone.join(", ")
        );
        return Ok(Finding::bad(WHAT, message));
    }
    if !shorter.is_empty() {
        let message = format!(
            "the checkpoint of {} is beyond the end of its log: the topic was recreated, and requests may be lost; \
             schedulers refuse the partition, and their log has the remedy",
            shorter.join(", ")
        );
        return Ok(Finding::bad(WHAT, message));
    }
    let message = format!(
        "requests not consumed: {not_consumed}, consumed but not yet checkpointed: {held}; `waybill explain lag` \
         shows which operations hold the checkpoints"
    );
    Ok(match not_consumed > LAG_NOTED_FROM {
        true => Finding::note(WHAT, message),
        false => Finding::ok(WHAT, message),
    })
}

/// Checks the servers of the store. A store without servers is in the process that owns the leases.
pub(super) async fn store(config: &Config) -> Vec<Finding> {
    const WHAT: &str = "store";
    const CLOCKS: &str = "clocks";
    let report = match config.store_backend().check().await {
        Ok(Some(report)) => report,
        Ok(None) => return Vec::new(),
        Err(error) => return vec![Finding::failed(WHAT, &error.into())],
    };
    let mut findings = vec![Finding::ok(WHAT, report.summary)];
    let problems = report.problems;
    let are_apart = problems
        .iter()
        .any(|problem| problem.area == ProblemArea::Clocks);
    if !are_apart {
        let farthest = report.clocks.iter().map(|clock| clock.ahead_ms.abs()).max();
        let message = format!(
            "the clocks of {} nodes differ by at most {} ms from this machine's",
            report.clocks.len(),
            farthest.unwrap_or(0)
        );
        findings.push(match farthest {
            Some(_) => Finding::ok(CLOCKS, message),
            None => Finding::note(CLOCKS, "no node reported its clock"),
        });
    }
    findings.extend(problems.into_iter().map(|problem| {
        let verdict = match problem.is_fatal {
            true => Verdict::Bad,
            false => Verdict::Note,
        };
        let what = match problem.area {
            ProblemArea::Clocks => CLOCKS,
            ProblemArea::Store => WHAT,
        };
        Finding::new(what, verdict, problem.text)
    }));
    findings
}

/// Checks that the schema registry, if configured, has every schema of the process.
pub(super) async fn registry(config: &Config, is_same: bool) -> Vec<Finding> {
    const WHAT: &str = "registry";
    let missing = async {
        let registry = config.schema_registry.client()?.filter(|_| is_same);
        let Some(registry) = registry else {
            return anyhow::Ok(None);
        };
        let mut subjects = subjects::check(&registry, &subjects_of(config)?).await?;
        subjects.retain(|subject| subject.schema.is_none());
        let missing = subjects.into_iter().map(|subject| subject.subject);
        Ok(Some(missing.collect::<Vec<_>>().join(", ")))
    };
    let missing = match missing.await {
        Ok(missing) => missing,
        Err(error) => return vec![Finding::failed(WHAT, &error)],
    };
    let found = missing.map(|missing| match missing.as_str() {
        "" => Finding::ok(WHAT, "every schema is registered"),
        missing => {
            let message = format!("missing: {missing}; `waybill schemas register` registers them");
            match config.schema_registry.auto_register {
                true => Finding::note(WHAT, message),
                false => Finding::bad(WHAT, message),
            }
        }
    });
    found.into_iter().collect()
}

/// Why a shard may have no owner.
const WHY_NO_OWNER: &str = "no scheduler runs for it, or its scheduler has stopped it or refuses to start it; see /readyz and the log of the scheduler";

/// Checks that every shard has a live owner. If no flag or setting names the process to ask, it may
/// run elsewhere.
pub(super) fn leases(layout: &anyhow::Result<LayoutView>, is_named: bool) -> Vec<Finding> {
    let layout = match layout {
        Ok(layout) => layout,
        Err(error) => return vec![unknown_leases(error, is_named)],
    };
    let of_shard = |view: &ShardView| {
        let place = format!("shard {} of partition {}", view.shard, view.partition);
        let waits = view.waits_for.join("; ");
        match (&view.owner, &view.starts_by) {
            (Some(owner), _) if view.silent => Some(Finding::bad(
                LEASES,
                format!("the lease of {owner} on {place} has expired: {WHY_NO_OWNER}"),
            )),
            (Some(_), _) => None,
            (None, Some(by)) => Some(Finding::note(
                LEASES,
                format!(
                    "{place} has not started: the layout is changing, and it waits for {waits}; it starts by {by} if a \
                     scheduler runs for it"
                ),
            )),
            (None, None) => Some(Finding::bad(
                LEASES,
                format!("{place} has no owner: it waits for {waits}; {WHY_NO_OWNER}"),
            )),
        }
    };
    let findings: Vec<Finding> = layout.shards.iter().filter_map(of_shard).collect();
    if !findings.is_empty() {
        return findings;
    }
    let message = format!("all {} shards have an owner", layout.shards.len());
    vec![Finding::ok(LEASES, message)]
}

/// The finding if the owners of the shards are unknown.
fn unknown_leases(error: &anyhow::Error, is_named: bool) -> Finding {
    let refused = error.downcast_ref::<Refused>();
    if refused.is_some_and(Refused::is_forbidden) {
        let refused = chain(error.as_ref());
        let message =
            format!("unknown: {refused} Use a token for all tenants with the scope read or admin");
        return Finding::note(LEASES, message);
    }
    if !is_named && refused.is_some_and(Refused::is_unknown) {
        let message = "unknown: the process at the default address has no scheduler; name one that has with --admin, \
                    --admin-url or --scylla";
        return Finding::note(LEASES, message);
    }
    if !is_named && error.is::<Unreachable>() {
        let message = "unknown: no process answers at the default address; start one there with `waybill up`, or name \
                    another with --admin, --admin-url or --scylla";
        return Finding::note(LEASES, message);
    }
    Finding::failed(LEASES, error)
}

/// Checks the process at --admin: its state, its shards and its breakers. Other processes may run
/// elsewhere.
///
/// `data_dir` is its data directory, if it has the configuration that the command has.
pub(super) async fn process(
    config: &Config,
    admin: &AdminArgs,
    data_dir: Option<&Path>,
) -> Vec<Finding> {
    match asked_process(config, admin, data_dir).await {
        Ok(findings) => findings,
        Err(error) => vec![Finding::failed("process", &error)],
    }
}

async fn asked_process(
    config: &Config,
    admin: &AdminArgs,
    data_dir: Option<&Path>,
) -> anyhow::Result<Vec<Finding>> {
    const WHAT: &str = "process";
    let url = |path: &str| admin.url(config, path);
    let at = url("/readyz")?;
    let client = admin_port::client(&admin.access, ready::PATIENCE)?;
    let mut findings = match ready::asked(&client, &at).await {
        Readiness::Ready(warnings) => {
            let ready = Finding::ok(WHAT, format!("the process at {at} is ready"));
            let warnings = warnings.into_iter();
            let damaged = warnings.map(|warning| Finding::bad(DAMAGE, warning));
            std::iter::once(ready).chain(damaged).collect()
        }
        Readiness::Waits(what) => {
            let message = format!("the process at {at} is not ready: {}", what.join("; "));
            vec![Finding::bad(WHAT, message)]
        }
        Readiness::Silent => {
            let message = format!("the process at {at} accepts connections but does not answer");
            return Ok(vec![Finding::bad(WHAT, message)]);
        }
        Readiness::Unreachable(why) => {
            let message = format!(
                "{at} does not answer ({why}): name the admin port of a process with --admin or --admin-url"
            );
            return Ok(vec![match admin.is_named(config) {
                true => Finding::bad(WHAT, message),
                false => Finding::note(WHAT, message),
            }]);
        }
        Readiness::Distrusted(why) => {
            let message = format!("the process at {at} answers, but {why}");
            return Ok(vec![Finding::bad(WHAT, message)]);
        }
        Readiness::Refuses(why) => {
            let message = format!("the process at {at} refuses the request: {why}");
            return Ok(vec![Finding::bad(WHAT, message)]);
        }
    };
    let schedulers = url("/schedulers")?;
    match stopped_shards(&client, &schedulers).await {
        Ok(stopped) => findings.extend(stopped.into_iter().map(|shard| {
            let how = format!(r#"`PUT {schedulers}/{shard}` with {{"running": true}} starts it"#);
            let message = format!("shard {shard} is stopped, as requested; {how}");
            Finding::note(WHAT, message)
        })),
        Err(error) => {
            let why = error.status().map_or_else(
                || match Silence::of(&error) {
                    Silence::Unreachable(why) | Silence::Distrusted(why) => why,
                },
                |status| format!("{status} (--token-file)"),
            );
            let message = format!("{schedulers} does not report whether shards are stopped: {why}");
            findings.push(Finding::note(WHAT, message));
        }
    }
    if let Ok(metrics) = text_at(&client, &url("/metrics")?).await {
        findings.extend(breakers(&metrics));
        findings.extend(disk(&metrics, config, data_dir));
    }
    Ok(findings)
}

/// The shards of a process that a person stopped.
async fn stopped_shards(client: &Client, url: &str) -> reqwest::Result<Vec<u32>> {
    #[derive(Deserialize)]
    struct Shard {
        shard: u32,
        state: String,
    }
    let text = text_at(client, url).await?;
    let shards: Vec<Shard> = serde_json::from_str(&text).unwrap_or_default();
    let stopped = shards.iter().filter(|it| it.state == "stopped");
    Ok(stopped.map(|it| it.shard).collect())
}

async fn text_at(client: &Client, url: &str) -> reqwest::Result<String> {
    client
        .get(url)
        .send()
        .await?
        .error_for_status()?
        .text()
        .await
}

/// The breakers that are not closed, from a process's metrics in Prometheus text format.
pub(super) fn breakers(metrics: &str) -> Vec<Finding> {
    const WHAT: &str = "breakers";
    let states = metrics.lines().filter_map(|line| {
        let (labels, value) = line.strip_prefix(BREAKER_STATE)?.rsplit_once(' ')?;
        let agent = labels.strip_prefix("{agent=\"")?.strip_suffix("\"}")?;
        match value {
            OPEN => {
                let message = format!(
                    "the breaker of {agent} is open: its service fails, and the agent does not call it"
                );
                Some(Finding::bad(WHAT, message))
            }
            HALF_OPEN => {
                let message = format!(
                    "the breaker of {agent} is half open: it closes after successful test calls"
                );
                Some(Finding::note(WHAT, message))
            }
            _ => None,
        }
    });
    states.collect()
}

/// Checks the free disk space, from the metrics of the process that keeps the embedded broker or
/// store, and whether its topics may outgrow `data_dir`.
pub(super) fn disk(metrics: &str, config: &Config, data_dir: Option<&Path>) -> Vec<Finding> {
    const WHAT: &str = "disk";
    let value = |name: &str| {
        let of_metric = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        metrics.lines().find_map(of_metric)
    };
    let (Some(free), Some(size), Some(mark), Some(is_low)) = (
        value("waybill_disk_free_bytes"),
        value("waybill_disk_size_bytes"),
        value("waybill_disk_free_min_bytes"),
        value("waybill_disk_low"),
    ) else {
        return Vec::new();
    };
    let bytes = |value: f64| value as u64;
    let mib = |value: f64| bytes(value) >> 20;
    let room = format!(
        "{} of {} MiB are free, and storage.freeMin is {} MiB",
        mib(free),
        mib(size),
        mib(mark)
    );
    let mut findings = vec![match is_low > 0.0 {
        true => Finding::bad(
            WHAT,
            format!("{room}: new requests get 503 until space is freed"),
        ),
        false => Finding::ok(WHAT, room),
    }];
    if config.kafka.brokers.is_none()
        && let Some(data_dir) = data_dir
        && let Some(logs) = value("waybill_broker_log_bytes")
        && let Ok(workflows) = load_workflows(&config.workflows)
    {
        let space = TopicSpace {
            disk: Space {
                free: bytes(free),
                size: bytes(size),
                free_files: None,
            },
            logs: bytes(logs),
            free_min: bytes(mark),
        };
        let bounds = disk_bytes_max(&config.topology(), &workflows);
        let exceed = space.exceeded_by(bounds, data_dir);
        findings.extend(exceed.map(|message| Finding::note(WHAT, message)));
    }
    findings
}

/// Checks that the API answers, how many operations need a person, and which of them lack their
/// workflow. If no flag or setting names the API, it may run elsewhere.
pub(super) async fn api(api: &Result<Api, String>, is_named: bool) -> Vec<Finding> {
    const WHAT: &str = "api";
    let api = match api {
        Ok(api) => api,
        Err(problem) if is_named => return vec![Finding::bad(WHAT, problem)],
        Err(problem) => return vec![Finding::note(WHAT, problem)],
    };
    let (waiting, has_more) = match listed(api, "Error,CompensationFailed").await {
        Ok(listed) => listed,
        Err(error) if error.is_forbidden() => {
            let message = format!("it answers, but refuses details: {error}");
            return vec![Finding::note(WHAT, message)];
        }
        Err(error) if error.is_overloaded() => {
            let message = format!("it answers, but is overloaded: {error}");
            return vec![Finding::note(WHAT, message)];
        }
        Err(error) if is_named || !error.is_unavailable() => {
            return vec![Finding::bad(WHAT, error.to_string())];
        }
        Err(error) => {
            let message = format!("{error}; name it with --api");
            return vec![Finding::note(WHAT, message)];
        }
    };
    let more = if has_more { " or more" } else { "" };
    let message = format!(
        "it answers; {}{more} parked (`waybill ops list`)",
        waiting.len()
    );
    let mut findings = vec![match waiting.is_empty() && !has_more {
        true => Finding::ok(WHAT, message),
        false => Finding::note(WHAT, message),
    }];
    let stranded = count_stranded(waiting.values());
    findings.extend(stranded.iter().map(|(workflow, count)| {
        let message = format!(
            "parked operations that cannot continue: {count}{more}; {workflow} is unknown; `waybill ops show` has the \
             remedy"
        );
        Finding::bad("workflows", message)
    }));
    match listed(api, "Processing,Compensating").await {
        Ok((live, _)) => findings.extend(overdue(live.values(), jiff::Timestamp::now())),
        Err(error) => findings.push(Finding::note(WHAT, error.to_string())),
    }
    findings
}

/// The first operations in these states, by ID, and whether there are more.
async fn listed(api: &Api, states: &str) -> Result<(BTreeMap<Uuid, ItemView>, bool), ApiError> {
    // One operation may be on several pages.
    let (mut listed, mut cursor) = (BTreeMap::new(), None);
    for _ in 0..PAGES_MAX {
        let mut query = vec![("state", states.to_owned()), ("limit", "100".to_owned())];
        query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let page = api.page(&query).await?;
        let items = page.items.iter();
        let items = items.filter_map(|item| serde_json::from_str::<ItemView>(item.get()).ok());
        listed.extend(items.map(|item| (item.id, item)));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    Ok((listed, cursor.is_some()))
}

/// Live operations that were due long before `now`.
pub(super) fn overdue<'a>(
    items: impl Iterator<Item = &'a ItemView>,
    now: jiff::Timestamp,
) -> Option<Finding> {
    let is_overdue = |item: &&ItemView| {
        let due = item.next_due.as_deref()?.parse::<jiff::Timestamp>().ok()?;
        Duration::try_from(now - due)
            .ok()
            .filter(|late| *late > OVERDUE_AFTER)
    };
    let overdue: Vec<&ItemView> = items.filter(|item| is_overdue(item).is_some()).collect();
    if overdue.is_empty() {
        return None;
    }
    let named: Vec<String> = overdue
        .iter()
        .take(NAMED_MAX)
        .map(|item| item.id.to_string())
        .collect();
    let message = format!(
        "{} live operations were due more than {} minutes ago and have not progressed ({}): check that a supervisor \
         and the schedulers of their partitions run, and that no scheduler refuses a partition",
        overdue.len(),
        OVERDUE_AFTER.as_secs() / 60,
        named.join(", ")
    );
    Some(Finding::bad("overdue", message))
}

/// Counts the operations that lack their workflow, by workflow and version.
pub(super) fn count_stranded<'a>(
    items: impl Iterator<Item = &'a ItemView>,
) -> BTreeMap<String, usize> {
    let mut stranded: BTreeMap<String, usize> = BTreeMap::new();
    for item in items.filter(|item| item.workflow_unknown) {
        let workflow = match item.workflow_version {
            Some(version) => format!("version {version} of workflow {}", item.workflow),
            None => format!("workflow {}", item.workflow),
        };
        *stranded.entry(workflow).or_default() += 1;
    }
    stranded
}
