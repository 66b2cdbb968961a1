//! `waybill doctor`: whether everything that an installation lives on is as it must be; and, with the id of an
//! operation, what it waits for, who has it, and what happens next.
//!
//! It looks at everything once, from where it is run, and changes nothing. What it cannot look at from there it
//! says.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use waybill_engine::{Division, OperationId, PartitionId};
use waybill_store::{CqlProblem, CqlStore};

use super::address::ApiAddress;
use super::api::{Api, ApiError};
use super::explain::why;
use super::wire::Operation;
use crate::cli::admin_port;
use crate::cli::connection::{Connection, until_reader_leaves};
use crate::cli::readers::readers;
use crate::cli::ready::{self, Readiness};
use crate::cli::shown::{Output, printable};
use crate::cli::topics::Site;
use crate::config::Config;
use crate::readers::show::{LayoutView, ReaderView};
use crate::roles::topics::Weight;

/// How long the brokers may take to answer: whoever asks a doctor waits for him.
const BROKER_PATIENCE: Duration = Duration::from_secs(3);

/// So many requests that nobody has read are told of: more than arrive in a moment.
const LAG_TOLD_FROM: i64 = 10_000;
/// How many pages of operations that need a person are looked at.
const PAGES_MAX: usize = 5;

/// The arguments of `waybill doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// An operation, by its id or by its caller's; without it, the installation
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The tenant that knows the operation by this id
    #[arg(long, value_name = "NAME", requires = "id")]
    tenant: Option<String>,
    /// The API's address as a URL, where it is not at --http
    #[arg(long, value_name = "URL")]
    api: Option<ApiAddress>,
    /// How it is written; JSON has a line for each finding
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
}

/// How something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it must be.
    Ok,
    /// A person should know.
    Note,
    /// It keeps operations from going on.
    Bad,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    said: String,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, said: impl Into<String>) -> Self {
        let said = said.into();
        Self {
            what,
            verdict,
            said,
        }
    }

    fn failed(what: &'static str, error: &anyhow::Error) -> Self {
        Self::new(what, Verdict::Bad, format!("{error:#}"))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            verdict,
            said,
        } = self;
        let verdict = match verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Bad => "BAD",
        };
        write!(f, "{verdict:<5} {what:<14} {}", printable(said))
    }
}

impl DoctorArgs {
    /// Looks, and prints what it found.
    ///
    /// # Errors
    ///
    /// If something keeps operations from going on.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let layout = runtime.block_on(readers(config, None));
        let address = ApiAddress::of_configuration(self.api.as_ref(), config);
        let api =
            address.and_then(|address| Api::asked_once(address).map_err(|error| error.to_string()));
        let mut bad = 0;
        let mut out = io::stdout().lock();
        let mut tell = |findings: &[Finding]| {
            let of_it = findings.iter().filter(|it| it.verdict == Verdict::Bad);
            bad += of_it.count();
            self.write(findings, &mut out)
        };
        let told = (|| {
            if let Some(id) = &self.id {
                let found = match &api {
                    Ok(api) => runtime.block_on(of_id(api, id, self.tenant.as_deref(), &layout)),
                    Err(problem) => vec![Finding::new("api", Verdict::Bad, problem)],
                };
                tell(&found)?;
            }
            for mut part in of_installation(config, &layout, |part| runtime.block_on(part)) {
                if self.id.is_some() {
                    // Only what stands in its way.
                    part.retain(|finding| finding.verdict == Verdict::Bad);
                }
                tell(&part)?;
            }
            if self.id.is_none() {
                let found = match &api {
                    Ok(api) => runtime.block_on(api_answers(api, self.api.is_some())),
                    Err(problem) => Finding::new("api", Verdict::Note, problem),
                };
                tell(&[found])?;
            }
            Ok(())
        })();
        until_reader_leaves(told)?;
        match bad {
            0 => Ok(()),
            1 => anyhow::bail!("1 thing is bad"),
            count => anyhow::bail!("{count} things are bad"),
        }
    }

    fn write(&self, findings: &[Finding], out: &mut dyn Write) -> anyhow::Result<()> {
        for finding in findings {
            match self.output {
                Output::Json => writeln!(out, "{}", serde_json::to_string(finding)?)?,
                Output::Table => writeln!(out, "{finding}")?,
            }
        }
        Ok(())
    }
}

/// How the parts of an installation are, in the order in which they need each other, each looked at when it is
/// its turn.
fn of_installation<'a>(
    config: &'a Config,
    layout: &'a anyhow::Result<LayoutView>,
    mut wait: impl FnMut(Part<'a>) -> Vec<Finding> + 'a,
) -> impl Iterator<Item = Vec<Finding>> + 'a {
    (0..6).map(move |part| match part {
        0 => vec![of_configuration(config)],
        1 => of_brokers(config, layout.as_ref().ok()),
        2 => wait(Box::pin(of_store(config))),
        3 => wait(Box::pin(of_registry(config))),
        4 => match layout {
            Ok(layout) => of_leases(layout),
            Err(error) => vec![Finding::failed("leases", error)],
        },
        _ => wait(Box::pin(of_process(config))),
    })
}

fn of_configuration(config: &Config) -> Finding {
    match crate::roles::check(config) {
        Ok(()) => {
            let said = "it can be used, with its workflows and agents";
            Finding::new("configuration", Verdict::Ok, said)
        }
        Err(error) => Finding::failed("configuration", &error),
    }
}

/// A look that takes its time.
type Part<'a> = std::pin::Pin<Box<dyn Future<Output = Vec<Finding>> + 'a>>;

fn of_brokers(config: &Config, layout: Option<&LayoutView>) -> Vec<Finding> {
    let site = match Site::open_within(config, BROKER_PATIENCE) {
        Ok(site) => site,
        Err(error) => return vec![Finding::failed("brokers", &error)],
    };
    let mut findings = vec![Finding::new("brokers", Verdict::Ok, "they answer")];
    match site.findings(config, layout) {
        Err(error) => findings.push(Finding::failed("topics", &error)),
        Ok(wrong) if wrong.is_empty() => {
            let said = format!("{} topics are as they must be", site.topics());
            findings.push(Finding::new("topics", Verdict::Ok, said));
        }
        Ok(wrong) => findings.extend(wrong.iter().map(|wrong| {
            let verdict = match wrong.weight {
                Weight::Harm => Verdict::Bad,
                Weight::Warning => Verdict::Note,
            };
            Finding::new("topics", verdict, wrong.to_string())
        })),
    }
    if let Some(layout) = layout {
        findings.push(match lag(config, layout) {
            Ok(finding) => finding,
            Err(error) => Finding::failed("lag", &error),
        });
    }
    findings
}

/// How many requests are in no row yet, and whether any are gone that should be read.
fn lag(config: &Config, layout: &LayoutView) -> anyhow::Result<Finding> {
    let connection = Connection::open_within(config, BROKER_PATIENCE)?;
    let (topic, _) = connection.topic("operation-requests")?;
    let (mut not_consumed, mut held) = (0, 0);
    let mut gone = Vec::new();
    for partition in 0..layout.partitions {
        let log = connection.offsets(&topic, PartitionId(partition))?;
        let of_it = || {
            layout
                .readers
                .iter()
                .filter(|view| view.partition == partition)
        };
        let consumed = of_it().map(|view| view.consumed.0).min();
        not_consumed += (log.end - consumed.unwrap_or(0)).max(0);
        let behind = |view: &ReaderView| (view.consumed.0 - view.checkpoint.requests.0).max(0);
        held += of_it().map(behind).max().unwrap_or(0);
        if consumed.is_some_and(|consumed| consumed < log.start) {
            gone.push(partition.to_string());
        }
    }
    if !gone.is_empty() {
        let said = format!(
            "requests of partition {} are gone that nobody has read: retention took them",
            gone.join(", ")
        );
        return Ok(Finding::new("lag", Verdict::Bad, said));
    }
    let said = format!(
        "{not_consumed} requests are not consumed, and {held} lie behind a checkpoint; `waybill explain lag` \
         says what holds it"
    );
    let verdict = match not_consumed > LAG_TOLD_FROM {
        true => Verdict::Note,
        false => Verdict::Ok,
    };
    Ok(Finding::new("lag", verdict, said))
}

async fn of_store(config: &Config) -> Vec<Finding> {
    let Some(cql) = config.store.scylla.cql() else {
        // Its process answers for it: see the leases.
        return Vec::new();
    };
    let report = match CqlStore::check(&cql).await {
        Ok(report) => report,
        Err(error) => return vec![Finding::failed("store", &error.into())],
    };
    let version = report.schema_version.unwrap_or(0);
    let said = format!(
        "{}, keyspace {}, schema {version}",
        report.server, cql.keyspace
    );
    let mut findings = vec![Finding::new("store", Verdict::Ok, said)];
    let problems = report.problems();
    let clock = problems
        .iter()
        .any(|it| matches!(it, CqlProblem::ClocksApart { .. }));
    if !clock {
        let said = format!(
            "the store's is {} ms ahead of this machine's",
            report.clock_ahead_ms
        );
        findings.push(Finding::new("clocks", Verdict::Ok, said));
    }
    findings.extend(problems.iter().map(|problem| {
        let verdict = match problem.is_fatal() {
            true => Verdict::Bad,
            false => Verdict::Note,
        };
        let what = match problem {
            CqlProblem::ClocksApart { .. } => "clocks",
            _ => "store",
        };
        Finding::new(what, verdict, problem.to_string())
    }));
    findings
}

async fn of_registry(config: &Config) -> Vec<Finding> {
    match crate::cli::schemas::missing(config).await {
        Ok(None) => Vec::new(),
        Ok(Some(missing)) if missing.is_empty() => {
            vec![Finding::new("registry", Verdict::Ok, "it has every schema")]
        }
        Ok(Some(missing)) => {
            let said = format!(
                "{}; `waybill schemas register` registers them",
                missing.join(", ")
            );
            let verdict = match config.schema_registry.auto_register {
                true => Verdict::Note,
                false => Verdict::Bad,
            };
            vec![Finding::new("registry", verdict, said)]
        }
        Err(error) => vec![Finding::failed("registry", &error)],
    }
}

fn of_leases(layout: &LayoutView) -> Vec<Finding> {
    let findings: Vec<Finding> = layout
        .readers
        .iter()
        .filter_map(|view| {
            let place = format!("reader {} of partition {}", view.reader, view.partition);
            let (verdict, said) = match &view.owner {
                Some(owner) if view.silent => (
                    Verdict::Bad,
                    format!("{place} was owned by {owner}, whose lease has run out: is there a scheduler of it?"),
                ),
                Some(_) => return None,
                // Whom it follows lets go first: that is how the work is divided anew.
                None if waits_for_another(view) => (
                    Verdict::Note,
                    format!("{place} has yet to begin: it waits for {}", view.waits_for.join("; ")),
                ),
                None => (
                    Verdict::Bad,
                    format!(
                        "nobody owns {place}: it waits for {}; is there a scheduler of it?",
                        view.waits_for.join("; ")
                    ),
                ),
            };
            Some(Finding::new("leases", verdict, said))
        })
        .collect();
    if !findings.is_empty() {
        return findings;
    }
    let said = format!("all {} readers have an owner", layout.readers.len());
    vec![Finding::new("leases", Verdict::Ok, said)]
}

/// Whether a reader waits for one of the layout before.
fn waits_for_another(view: &ReaderView) -> bool {
    view.waits_for
        .iter()
        .any(|what| what.starts_with("reader "))
}

/// What the process at --admin says of itself. Somewhere else there may be others.
async fn of_process(config: &Config) -> Vec<Finding> {
    let url = admin_port::url(config, "/readyz");
    let readiness = match ready::client() {
        Ok(client) => ready::asked(&client, &url).await,
        Err(_) => Readiness::Away,
    };
    let (verdict, said) = match readiness {
        Readiness::Ready => (Verdict::Ok, format!("the one at {url} is ready")),
        Readiness::Waits(what) => (
            Verdict::Bad,
            format!("the one at {url} is not ready: {what}"),
        ),
        Readiness::Away => {
            let said = format!("nobody answers at {url}: name the admin port of one with --admin");
            (Verdict::Note, said)
        }
    };
    vec![Finding::new("process", verdict, said)]
}

/// Whether the API answers, and how many operations need a person. Where nobody said where it is, it may be
/// elsewhere.
async fn api_answers(api: &Api, is_named: bool) -> Finding {
    let (mut waiting, mut cursor) = (0, None);
    for _ in 0..PAGES_MAX {
        let mut query = vec![
            ("state", "Error,CompensationFailed".to_owned()),
            ("limit", "100".to_owned()),
        ];
        query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        match api.page(&query).await {
            Ok(page) => {
                waiting += page.items.len();
                cursor = page.next;
            }
            Err(error) => {
                let (verdict, hint) = match is_named {
                    true => (Verdict::Bad, ""),
                    false => (Verdict::Note, "; name it with --api"),
                };
                return Finding::new("api", verdict, format!("{error}{hint}"));
            }
        }
        if cursor.is_none() {
            break;
        }
    }
    let more = if cursor.is_some() { " or more" } else { "" };
    let said =
        format!("it answers; {waiting}{more} operations wait for a person (`waybill ops list`)");
    let verdict = match waiting == 0 && cursor.is_none() {
        true => Verdict::Ok,
        false => Verdict::Note,
    };
    Finding::new("api", verdict, said)
}

async fn of_id(
    api: &Api,
    id: &str,
    tenant: Option<&str>,
    layout: &anyhow::Result<LayoutView>,
) -> Vec<Finding> {
    let found = api.find(id, tenant).await;
    of_operation(found.map(|found| found.operation), layout.as_ref().ok())
}

/// What is to be said of an operation.
fn of_operation(found: Result<Operation, ApiError>, layout: Option<&LayoutView>) -> Vec<Finding> {
    let operation = match found {
        Ok(operation) => operation,
        Err(error) => return vec![Finding::new("operation", Verdict::Bad, error.to_string())],
    };
    let is_parked = matches!(operation.state.as_str(), "Error" | "CompensationFailed");
    let verdict = match is_parked && !operation.abandoned {
        true => Verdict::Note,
        false => Verdict::Ok,
    };
    let mut findings = vec![Finding::new(
        "operation",
        verdict,
        format!("{}: {}", operation.id, operation.state),
    )];
    let goes_on = matches!(
        operation.state.as_str(),
        "Pending" | "Processing" | "Compensating"
    );
    let missing: Vec<&str> = operation
        .steps
        .iter()
        .filter(|step| !matches!(step.state.as_str(), "Completed" | "Skipped" | "Compensated"))
        .map(|step| step.name.as_str())
        .collect();
    if !missing.is_empty() && operation.state != "Compensated" && operation.state != "Cancelled" {
        findings.push(Finding::new("missing", Verdict::Ok, missing.join(", ")));
    }
    if goes_on {
        findings.push(Finding::new("waits for", Verdict::Ok, why(&operation)));
        findings.extend(layout.and_then(|layout| holder(&operation, layout)));
    }
    if let Some(ahead) = operation.ahead {
        let said = format!("{ahead} requests are read before it");
        findings.push(Finding::new("queue", Verdict::Ok, said));
    }
    if let Some(error) = &operation.error {
        let step = error.step.as_deref().map(|step| format!(" at step {step}"));
        let said = format!(
            "{}{}: {}",
            error.code,
            step.unwrap_or_default(),
            error.message
        );
        findings.push(Finding::new("error", Verdict::Note, said));
    }
    let next = operation
        .what_next
        .unwrap_or_else(|| "its scheduler reads its request".to_owned());
    findings.push(Finding::new("next", Verdict::Ok, next));
    if let Some(due) = operation.next_due {
        findings.push(Finding::new("next due", Verdict::Ok, due));
    }
    findings
}

/// Who has an operation that goes on.
fn holder(operation: &Operation, layout: &LayoutView) -> Option<Finding> {
    let id: OperationId = operation.id.parse().ok()?;
    let division = Division {
        partitions: layout.partitions,
        readers_per_partition: layout.per_partition,
    };
    let reader = division.reader_of(id);
    let view = layout.readers.iter().find(|view| view.reader == reader.0)?;
    let place = format!("reader {reader} of partition {}", view.partition);
    Some(match (&view.owner, operation.handed_off) {
        (None, _) => {
            let waits = view.waits_for.join("; ");
            let said = format!("{place}, which nobody owns: it waits for {waits}");
            Finding::new("has it", Verdict::Bad, said)
        }
        (Some(owner), _) if view.silent => {
            let said = format!("{place}, whose owner {owner} has let its lease run out");
            Finding::new("has it", Verdict::Bad, said)
        }
        (Some(_), true) => {
            let said =
                format!("the deadline index: a supervisor asks {place} to go on when it is due");
            Finding::new("has it", Verdict::Ok, said)
        }
        (Some(owner), false) => {
            Finding::new("has it", Verdict::Ok, format!("{place}, owned by {owner}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Failure, Step};
    use super::*;
    use crate::readers::show::CheckpointView;
    use waybill_engine::Offset;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn layout(owner: Option<&str>) -> LayoutView {
        let reader = |reader| ReaderView {
            reader,
            partition: reader,
            owner: owner.map(str::to_owned),
            silent: false,
            epoch: 3,
            checkpoint: CheckpointView {
                requests: Offset(1),
                replies: Offset(1),
                recoveries: Offset(0),
            },
            consumed: Offset(2),
            waits_for: owner.map_or(vec!["an owner".to_owned()], |_| Vec::new()),
        };
        LayoutView {
            generation: 0,
            partitions: 2,
            per_partition: 1,
            becomes: None,
            topics_may_have: vec![2],
            readers: vec![reader(0), reader(1)],
        }
    }

    fn operation(state: &str) -> Operation {
        let step = |name: &str, state: &str, complete_by: Option<&str>| Step {
            name: name.to_owned(),
            state: state.to_owned(),
            attempt: 1,
            complete_by: complete_by.map(str::to_owned),
            ..Step::default()
        };
        Operation {
            id: ID.to_owned(),
            state: state.to_owned(),
            what_next: Some("Its steps go on.".to_owned()),
            steps: vec![
                step("account", "Completed", None),
                step("drone", "Running", Some("10:00")),
                step("delivery", "NotStarted", None),
            ],
            ..Operation::default()
        }
    }

    fn said(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn of_an_operation_it_is_said_what_is_missing_who_has_it_and_what_comes_next() {
        let findings = of_operation(Ok(operation("Processing")), Some(&layout(Some("me"))));
        let found = said(&findings);
        assert_eq!(found[0], format!("ok    operation      {ID}: Processing"));
        assert_eq!(found[1], "ok    missing        drone, delivery");
        assert_eq!(
            found[2],
            "ok    waits for      step drone, attempt 1, until 10:00"
        );
        assert!(
            found[3].starts_with("ok    has it         reader "),
            "{}",
            found[3]
        );
        assert!(found[3].ends_with("owned by me"), "{}", found[3]);
        assert_eq!(found[4], "ok    next           Its steps go on.");
    }

    #[test]
    fn a_partition_that_nobody_owns_is_what_an_operation_waits_for() {
        let findings = of_operation(Ok(operation("Processing")), Some(&layout(None)));
        let bad: Vec<_> = findings
            .iter()
            .filter(|it| it.verdict == Verdict::Bad)
            .collect();
        assert_eq!(bad.len(), 1);
        assert!(
            bad[0]
                .said
                .ends_with("which nobody owns: it waits for an owner")
        );
        let leases = of_leases(&layout(None));
        assert_eq!(leases.len(), 2);
        assert!(leases.iter().all(|finding| finding.verdict == Verdict::Bad));
        assert_eq!(
            said(&of_leases(&layout(Some("me")))),
            ["ok    leases         all 2 readers have an owner"]
        );
    }

    #[test]
    fn one_that_is_parked_is_a_note_and_waits_for_nobody_else() {
        let parked = Operation {
            error: Some(Failure {
                code: "no-drone".to_owned(),
                message: "none is free".to_owned(),
                step: Some("drone".to_owned()),
            }),
            ..operation("Error")
        };
        let found = said(&of_operation(Ok(parked), Some(&layout(None))));
        assert_eq!(found[0], format!("note  operation      {ID}: Error"));
        assert!(
            found.contains(&"note  error          no-drone at step drone: none is free".to_owned())
        );
        assert!(!found.iter().any(|line| line.contains("has it")));
    }
}
