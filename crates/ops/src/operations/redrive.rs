//! A verb for many operations: a few first, then the others at a bounded rate, with a halt when
//! they fail again.
//!
//! What must hold: an operation counts as done only once its result was seen; at most
//! [`FOLLOWED_MAX`] have an unknown result; the command may be stopped and run again, because what
//! is done no longer matches the filter and a verb in progress is not applied twice.

mod confirmation;
mod tally;

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use uuid::Uuid;
use waybill_api::verb::as_typed;
use waybill_api::view::{ItemView, OperationView};
use waybill_telemetry::visible::{counted, to_json};
use waybill_units::duration_from_text;

use self::confirmation::{is_at_a_terminal, is_confirmed};
use self::tally::Tally;
use super::OpsError;
use super::api::{Api, ApiError};
use super::asking::Asking;
use super::canary::{Canary, Halt, RunResults};
use super::filter::Filter;
use super::follow::Followed;
use super::line::{Outcome, Report};
use super::list::{ItemTable, Listing};
use super::single::{Sent, resubmitted_before, send};
use waybill_terminal::{Output, report_left_out, terminal_width};

/// The maximum number of operations in one run.
const MATCHING_MAX: u64 = 100_000;
/// The maximum number of operations with an unknown result.
const FOLLOWED_MAX: usize = 100;
/// How many of them are read concurrently.
const READS_MAX: usize = 8;
/// How often each of them is looked at.
const READ_EVERY: Duration = Duration::from_millis(500);
/// The interval of progress reports.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// How many operations a dry run shows.
const SHOWN_MAX: usize = 10;

/// The arguments of a verb for many.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "With many operations")]
pub(super) struct Many {
    /// Select all operations to which the verb applies
    #[arg(long, conflicts_with = "id")]
    pub(super) all: bool,
    /// Stop after this number of operations; the next run continues with the others
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "id",
        default_value_t = MATCHING_MAX,
        value_parser = clap::value_parser!(u64).range(1..=MATCHING_MAX)
    )]
    limit: u64,
    /// Show how many operations match, and the first ten of them; send no request
    #[arg(long, conflicts_with = "id")]
    dry_run: bool,
    /// Do not ask for confirmation on a terminal
    #[arg(long, conflicts_with = "id")]
    yes: bool,
    /// The maximum number of operations per second
    #[arg(
        long,
        value_name = "N/s",
        conflicts_with = "id",
        default_value = "10/s"
    )]
    rate: Rate,
    /// The number, or the share, of operations to try first; at least one
    #[arg(
        long,
        value_name = "N|SHARE%",
        conflicts_with = "id",
        default_value = "1%"
    )]
    canary: Canary,
    /// The time to wait for the result of each operation
    #[arg(
        long,
        value_name = "DURATION",
        conflicts_with = "id",
        default_value = "60s",
        value_parser = duration_from_text
    )]
    canary_wait: Duration,
    /// Continue if up to this number of the operations that were tried first fail again
    #[arg(long, value_name = "N", conflicts_with = "id", default_value_t = 0)]
    canary_failures: u64,
    /// The time that the API may be unreachable before the run stops
    #[arg(
        long,
        value_name = "DURATION",
        conflicts_with = "id",
        default_value = "60s",
        value_parser = duration_from_text
    )]
    unreachable_max: Duration,
}

/// Operations per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate(NonZeroU32);

impl Rate {
    const MAX: u32 = 1_000;
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix("/s").unwrap_or(text).parse().ok();
        let rate = number.filter(|rate: &NonZeroU32| rate.get() <= Self::MAX);
        rate.map(Self).ok_or_else(|| {
            let max = Self::MAX;
            format!("expected a number of operations per second up to {max}, such as 10/s")
        })
    }
}

/// Sends the verb to all operations that match the filter.
pub(super) async fn redrive(
    api: &Api,
    asking: &Asking,
    filter: &Filter,
    many: &Many,
    output: Output,
) -> Result<(), OpsError> {
    let filter = filter.clone().or_states(asking.verb.usual_states());
    if !filter.names_states() {
        let verb = as_typed(asking.verb.as_str());
        let problem = format!("{verb} needs --state, such as --state Compensated");
        return Err(OpsError::Usage(problem));
    }
    if filter.names_unreadable() {
        let problem = "no verb applies to operations whose rows are unreadable";
        return Err(OpsError::Usage(problem.to_owned()));
    }
    let plan = Plan::read(api, &filter, many.limit).await?;
    if plan.has_more {
        eprintln!(
            "more than {0} operations match: the first {0} are selected",
            plan.ids.len()
        );
    }
    let mut out = io::stdout().lock();
    if many.dry_run {
        return plan.show(many, output, &mut out);
    }
    if !many.yes && !plan.ids.is_empty() && is_at_a_terminal() {
        let mut terminal = io::stderr().lock();
        plan.show(many, Output::Table, &mut terminal)?;
        let verb = as_typed(asking.verb.as_str());
        let question = format!("{verb} {}?", counted(plan.ids.len(), "operation"));
        if !is_confirmed(&question, &mut io::stdin().lock(), &mut terminal)? {
            return Err(OpsError::Missed("no request was sent".to_owned()));
        }
    }
    let api = api.with_patience(many.unreachable_max);
    let mut redrive = Redrive::new(&api, asking, filter.tenant(), many, output, out);
    redrive.run(plan.ids).await
}

/// The operations of a run.
struct Plan {
    ids: Vec<Uuid>,
    /// The first of them, as JSON and decoded.
    first: Vec<(Box<RawValue>, ItemView)>,
    has_more: bool,
}

impl Plan {
    async fn read(api: &Api, filter: &Filter, limit: u64) -> Result<Self, OpsError> {
        let mut listing = Listing::new(api, filter.query(), limit);
        let (mut ids, mut first) = (Vec::new(), Vec::new());
        while let Some(items) = listing.next_page().await? {
            for (json, item) in items {
                ids.push(item.id);
                if first.len() < SHOWN_MAX {
                    first.push((json, item));
                }
            }
        }
        let has_more = listing.has_more();
        Ok(Self {
            ids,
            first,
            has_more,
        })
    }

    fn show(&self, many: &Many, output: Output, out: &mut impl Write) -> Result<(), OpsError> {
        let (matching, canaries) = (self.ids.len(), many.canary.of(self.ids.len()));
        if output == Output::Json {
            let plan = DryRun {
                matching,
                canaries,
                has_more: self.has_more,
                first: self.first.iter().map(|(json, _)| &**json).collect(),
            };
            let json = to_json(&plan).map_err(io::Error::from)?;
            writeln!(out, "{json}")?;
            return Ok(());
        }
        writeln!(out, "matching  {matching}")?;
        writeln!(out, "canaries  {canaries}")?;
        if !self.first.is_empty() {
            let items = || self.first.iter().map(|(_, item)| item);
            let table = ItemTable::of(items(), terminal_width(), false);
            writeln!(out, "\n{}", table.with_heading(items()))?;
            report_left_out(&table.left_out(items()));
        }
        Ok(())
    }
}

/// The output of a dry run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DryRun<'a> {
    matching: usize,
    canaries: usize,
    has_more: bool,
    first: Vec<&'a RawValue>,
}

/// Why a verb was not sent, or might not have been.
struct NotSent {
    error: ApiError,
    /// The operation as it was when the verb was sent, if the command got that far.
    seen: Option<Box<OperationView>>,
}

impl From<ApiError> for NotSent {
    fn from(error: ApiError) -> Self {
        Self { error, seen: None }
    }
}

/// The report for an operation to which the verb does not apply, by its last seen state.
fn not_for(asking: &Asking, seen: &OperationView) -> Option<Report> {
    let verb = asking.verb;
    let is_offered = seen.verbs.iter().any(|it| it == verb.as_str());
    resubmitted_before(asking, seen).or_else(|| {
        let skipped = Report::new(&seen.id.to_string(), verb, Outcome::Skipped).with_state(seen);
        (!is_offered).then(|| skipped.with_note("the verb does not apply to its state"))
    })
}

/// Which operations are in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The operations that are tried first.
    Canaries,
    /// The others.
    Others,
}

/// A running verb for many operations.
struct Redrive<'a, W> {
    api: &'a Api,
    asking: &'a Asking,
    tenant: Option<&'a str>,
    many: &'a Many,
    output: Output,
    pace: Interval,
    results: RunResults,
    followed: Vec<Followed>,
    read_at: Instant,
    progress_at: Instant,
    tally: Tally,
    /// The operation that was next when the API became unavailable.
    turn_lost: usize,
    out: W,
}

impl<'a, W: Write> Redrive<'a, W> {
    fn new(
        api: &'a Api,
        asking: &'a Asking,
        tenant: Option<&'a str>,
        many: &'a Many,
        output: Output,
        out: W,
    ) -> Self {
        let mut pace = tokio::time::interval(Duration::from_secs(1) / many.rate.0.get());
        // Missed ticks are not made up for, to keep the rate.
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let now = Instant::now();
        Self {
            api,
            asking,
            tenant,
            many,
            output,
            pace,
            results: RunResults::new(many.canary_failures),
            followed: Vec::new(),
            read_at: now + READ_EVERY,
            progress_at: now + PROGRESS_EVERY,
            tally: Tally::default(),
            turn_lost: 0,
            out,
        }
    }

    async fn run(&mut self, ids: Vec<Uuid>) -> Result<(), OpsError> {
        let canaries = self.many.canary.of(ids.len());
        let mut ids = ids.into_iter();
        let walked = match self.walk(&mut ids, canaries).await {
            Err(OpsError::Api(error)) => return self.break_off(&error, ids.len()),
            walked => walked,
        };
        self.show_progress();
        let problem = match walked? {
            Some(halt) => format!(
                "halted: {halt}; no request was sent for {} operations",
                ids.len()
            ),
            None if self.tally.failed + self.tally.refused > 0 => {
                "the verb failed or was refused for some operations".to_owned()
            }
            None => return Ok(()),
        };
        Err(OpsError::Missed(problem))
    }

    /// The API is unavailable or its answers cannot be decoded. Reports the known state of each
    /// operation, so that the totals are correct.
    fn break_off(&mut self, error: &ApiError, not_asked: usize) -> Result<(), OpsError> {
        for followed in std::mem::take(&mut self.followed) {
            self.report(&followed.given_up(None).with_note("its result is unknown"))?;
        }
        self.show_progress();
        let not_asked = not_asked + self.turn_lost;
        Err(OpsError::BrokenOff(format!(
            "{error}; stopped: no request was sent for {not_asked} operations. Run the command again to \
             continue; requests that were sent are not repeated"
        )))
    }

    async fn walk(
        &mut self,
        ids: &mut impl ExactSizeIterator<Item = Uuid>,
        canaries: usize,
    ) -> Result<Option<Halt>, OpsError> {
        let halt = self.ask_all(ids, canaries, Phase::Canaries).await?;
        if halt.is_some() {
            return Ok(halt);
        }
        self.ask_all(ids, usize::MAX, Phase::Others).await
    }

    /// Sends the verb to `count` operations and follows them to their results. Operations to which
    /// it cannot be sent do not count.
    async fn ask_all(
        &mut self,
        ids: &mut impl Iterator<Item = Uuid>,
        count: usize,
        phase: Phase,
    ) -> Result<Option<Halt>, OpsError> {
        let (mut asked, mut halt) = (0, None);
        while asked < count && halt.is_none() {
            let Some(id) = ids.next() else { break };
            self.settle_down_to(FOLLOWED_MAX - 1).await?;
            asked += usize::from(self.ask(id).await?);
            if Instant::now() >= self.read_at {
                self.read_all().await?;
            }
            halt = self.halt(phase);
        }
        self.settle_down_to(0).await?;
        // Later results may change the share, but an earlier decision to halt stays.
        Ok(self.halt(phase).or(halt))
    }

    fn halt(&self, phase: Phase) -> Option<Halt> {
        match phase {
            Phase::Canaries => self.results.canaries_halt(self.tally.open),
            Phase::Others => self.results.share_halts(),
        }
    }

    /// Sends the verb to one operation at the limited rate. Returns whether it was sent.
    async fn ask(&mut self, id: Uuid) -> Result<bool, OpsError> {
        self.pace.tick().await;
        let id = id.to_string();
        let report = match self.try_ask(&id).await {
            Ok(Sent::OnItsWay(followed)) => {
                self.tally.asked += 1;
                self.followed.push(followed);
                return Ok(true);
            }
            Ok(Sent::Known(report)) => report,
            Err(NotSent { error, .. }) if error.is_about_the_operation() => {
                let refused = Report::new(&id, self.asking.verb, Outcome::Refused);
                refused.with_note(&error.to_string())
            }
            Err(NotSent { error, seen }) => {
                match seen {
                    None => self.turn_lost = 1,
                    Some(seen) => {
                        self.tally.asked += 1;
                        let open = Report::new(&id, self.asking.verb, Outcome::Open);
                        let open = open.with_state(&seen);
                        self.report(&open.with_note("unknown whether the request was sent"))?;
                    }
                }
                return Err(error.into());
            }
        };
        self.report(&report)?;
        Ok(false)
    }

    async fn try_ask(&self, id: &str) -> Result<Sent, NotSent> {
        let Self {
            api,
            asking,
            tenant,
            ..
        } = *self;
        let seen = api.find(id, tenant).await?.operation;
        if let Some(known) = not_for(asking, &seen) {
            return Ok(Sent::Known(known));
        }
        let until = Instant::now() + self.many.canary_wait;
        match send(api, asking, id, tenant, Some(&seen), until).await {
            Ok(sent) => Ok(sent),
            // The operation may have changed in between, for example by an earlier request. Then
            // its new state decides.
            Err(error) if error.is_about_the_operation() => {
                let now = api.find(id, tenant).await?.operation;
                not_for(asking, &now).map(Sent::Known).ok_or(NotSent {
                    error,
                    seen: Some(Box::new(seen)),
                })
            }
            Err(error) => Err(NotSent {
                error,
                seen: Some(Box::new(seen)),
            }),
        }
    }

    /// Follows the operations in progress until at most `count` are left.
    async fn settle_down_to(&mut self, count: usize) -> Result<(), OpsError> {
        while self.followed.len() > count {
            tokio::time::sleep_until(self.read_at).await;
            self.read_all().await?;
        }
        Ok(())
    }

    /// Looks at all operations in progress.
    async fn read_all(&mut self) -> Result<(), OpsError> {
        let reads = self.followed.iter().map(|followed| followed.read(self.api));
        let reads: Vec<_> = stream::iter(reads).buffered(READS_MAX).collect().await;
        let now = Instant::now();
        let mut unavailable = None;
        for (followed, read) in std::mem::take(&mut self.followed).into_iter().zip(reads) {
            let operation = match read {
                Ok(operation) => operation,
                Err(error) if error.is_about_the_operation() => None,
                Err(error) => {
                    self.followed.push(followed);
                    unavailable = unavailable.or(Some(error));
                    continue;
                }
            };
            let operation = operation.as_ref();
            match operation.and_then(|operation| followed.report_of(operation)) {
                Some(report) => self.settle(&report)?,
                None if now >= followed.until => self.settle(&followed.given_up(operation))?,
                None => self.followed.push(followed),
            }
        }
        if let Some(error) = unavailable {
            return Err(error.into());
        }
        self.read_at = Instant::now() + READ_EVERY;
        if now >= self.progress_at {
            self.show_progress();
            self.progress_at = now + PROGRESS_EVERY;
        }
        Ok(())
    }

    fn settle(&mut self, report: &Report) -> Result<(), OpsError> {
        match report.outcome {
            Outcome::Done => self.results.settle(false),
            Outcome::Failed => self.results.settle(true),
            // It is unknown whether these would have failed.
            Outcome::Asked | Outcome::Refused | Outcome::Open | Outcome::Skipped => {}
        }
        self.report(report)
    }

    fn report(&mut self, report: &Report) -> Result<(), OpsError> {
        self.tally.count(report.outcome);
        report.write(self.output, &mut self.out)?;
        Ok(self.out.flush()?)
    }

    /// Reports the progress on standard error.
    fn show_progress(&self) {
        eprintln!("{}", self.tally);
    }
}

#[cfg(test)]
mod tests;
