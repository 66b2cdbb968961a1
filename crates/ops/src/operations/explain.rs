//! `waybill explain lag`: how far each shard of a partition is behind, which operations hold its
//! checkpoint, and what these wait for.
//!
//! A checkpoint is the offset below which everything is done, so the longest-running operation
//! holds it. That is harmless while later requests are consumed and finished; a restart rereads
//! them.
//!
//! Ownership and checkpoints come from the state store, end offsets and requests from the topic,
//! and operations from the API. The command changes nothing and joins no group.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};

use clap::{Args, Subcommand};
use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use waybill_api::view::{OperationView, StepView};
use waybill_engine::{ByPriority, KeyHash, OperationId, PartitionId, Priority, ShardingScheme};
use waybill_node::config::Config;
use waybill_telemetry::visible::{escaped, to_json};
use waybill_terminal::Output;
use waybill_topology::shards::show::ShardView;

use super::api::{Api, ApiError};
use crate::access::AdminArgs;
use crate::address::ApiAddress;
use crate::connection::{Connection, chosen, until_reader_leaves};
use crate::runtime::runtime;
use crate::shards::shards;

/// The short names of the request topics.
const REQUESTS: ByPriority<&str> = ByPriority {
    normal: "operation-requests",
    high: "high-priority-requests",
};
/// The maximum number of requests after a checkpoint that are examined.
const EXAMINED_MAX: usize = 200;
/// The number of concurrent requests to the API.
const ASKED_AT_ONCE: usize = 16;

/// The arguments of `waybill explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// The URL of the API, if it is not at --http
    #[arg(long, global = true, value_name = "URL")]
    api: Option<ApiAddress>,
    #[command(flatten)]
    admin: AdminArgs,
    /// What to explain.
    #[command(subcommand)]
    what: What,
}

/// What to explain.
#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Show the lag of each shard, the operations that hold its checkpoint, and what they wait for
    Lag {
        /// Show only this partition
        #[arg(long, value_name = "P")]
        partition: Option<u32>,
        /// The number of operations to show for each shard
        #[arg(long, value_name = "N", default_value = "3")]
        operations: NonZeroUsize,
        /// The output format; JSON has a line per shard, and one for its high-priority requests
        #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
        output: Output,
    },
}

impl ExplainArgs {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the state store or the brokers are unavailable. If the API is, the output says so.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        until_reader_leaves(self.explain(config, &mut io::stdout().lock()))
    }

    fn explain(&self, config: &Config, out: &mut dyn Write) -> anyhow::Result<()> {
        let What::Lag {
            partition,
            operations,
            output,
        } = self.what;
        let runtime = runtime()?;
        let layout = runtime.block_on(shards(config, &self.admin, None))?;
        let scheme = ShardingScheme {
            partitions: layout.partitions,
            shards_per_partition: layout.per_partition,
        };
        let address = ApiAddress::of_configuration(self.api.as_ref(), config);
        let api = Api::asked_once(address.map_err(anyhow::Error::msg)?, &self.admin.access)?;
        let connection = Connection::open(&self.admin.broker_login(config)?)?;
        let mut topics = ByPriority::default();
        for priority in Priority::ALL {
            (topics[priority], _) = connection.topic(REQUESTS[priority])?;
        }
        let partitions = chosen(&topics.normal, layout.partitions, partition)?;
        let wanted = |view: &&ShardView| partitions.contains(&PartitionId(view.partition));
        let by_priority = |view| Priority::ALL.into_iter().map(move |of| (view, of));
        let mut is_unavailable = false;
        for (view, priority) in layout.shards.iter().filter(wanted).flat_map(by_priority) {
            let topic = &topics[priority];
            let mut lag = Lag::of(view, priority, &connection, topic)?;
            if priority == Priority::High && lag.end == 0 {
                continue;
            }
            let open = unended(&connection, topic, scheme, view, priority)?;
            is_unavailable =
                runtime.block_on(lag.name_holders(&api, &open, operations.get(), is_unavailable));
            match output {
                Output::Json => writeln!(out, "{}", to_json(&lag)?)?,
                Output::Table => write!(out, "{lag}")?,
            }
        }
        Ok(())
    }
}

/// The progress of a shard.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Lag {
    partition: u32,
    shard: u32,
    /// The priority of the requests.
    priority: &'static str,
    owner: Option<String>,
    /// Whether the owner's lease has expired.
    silent: bool,
    /// What the shard waits for, if it has no owner.
    waits_for: Vec<String>,
    /// The offset below which everything is done.
    checkpoint: i64,
    /// The first offset whose request has no row.
    consumed: i64,
    /// The offset of the next request.
    end: i64,
    /// Requests of the whole partition that have no row.
    not_consumed: i64,
    /// Requests of the whole partition between the checkpoint and `consumed`.
    held: i64,
    /// The operations that hold the checkpoint, in order.
    held_by: Vec<Holder>,
    /// Whether there may be more than the examined ones.
    has_more: bool,
}

/// An operation that holds a checkpoint.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Holder {
    operation: String,
    /// The offset of its request.
    offset: i64,
    /// Its state; `None` if the API did not return it.
    state: Option<String>,
    /// What it waits for.
    why: String,
}

impl Lag {
    fn of(
        view: &ShardView,
        priority: Priority,
        connection: &Connection,
        topic: &str,
    ) -> anyhow::Result<Self> {
        let end = connection.offsets(topic, PartitionId(view.partition))?.end;
        let (checkpoint, consumed) = (view.done(priority).0, view.consumed(priority).0);
        Ok(Self {
            partition: view.partition,
            shard: view.shard,
            priority: priority.name(),
            owner: view.owner.clone(),
            silent: view.silent,
            waits_for: view.waits_for.clone(),
            checkpoint,
            consumed,
            end,
            not_consumed: (end - consumed).max(0),
            held: (consumed - checkpoint).max(0),
            held_by: Vec::new(),
            has_more: false,
        })
    }

    /// Requests the operations until `wanted` unfinished ones are known. If the API is unreachable,
    /// the operations are named without their states and no further request is made. Returns
    /// whether that is so.
    async fn name_holders(
        &mut self,
        api: &Api,
        open: &Open,
        wanted: usize,
        is_unavailable: bool,
    ) -> bool {
        self.has_more = open.has_more;
        if is_unavailable {
            self.name_unasked(open, wanted, "the API is unavailable");
            return true;
        }
        let asked = open.requests.iter().map(|&(offset, id)| async move {
            let found = api.find(&id.to_string(), None).await;
            (offset, id, found.map(|found| found.operation))
        });
        let mut answers = stream::iter(asked).buffered(ASKED_AT_ONCE);
        while let Some((offset, id, found)) = answers.next().await {
            if let Err(error) = &found
                && error.is_unavailable()
            {
                self.name_unasked(open, wanted, &error.to_string());
                return true;
            }
            // The first request is at the checkpoint, whatever its operation's state.
            let is_first = offset == self.checkpoint;
            let Some(holder) = Holder::of(id, offset, found, is_first) else {
                continue;
            };
            if self.held_by.len() == wanted {
                self.has_more = true;
                return false;
            }
            self.held_by.push(holder);
        }
        false
    }

    fn name_unasked(&mut self, open: &Open, wanted: usize, why: &str) {
        let left = wanted.saturating_sub(self.held_by.len());
        let named = self.held_by.iter().map(|holder| holder.offset).max();
        let further = open
            .requests
            .iter()
            .filter(|(offset, _)| Some(*offset) > named);
        self.held_by
            .extend(further.take(left).map(|&(offset, id)| Holder {
                operation: id.to_string(),
                offset,
                state: None,
                why: why.to_owned(),
            }));
        self.has_more |= open.requests.len() > wanted;
    }
}

impl Holder {
    /// `None` if the operation has ended or was handed off, because it then holds nothing once its
    /// messages are acknowledged. The first one is named in any case.
    fn of(
        id: OperationId,
        offset: i64,
        found: Result<OperationView, ApiError>,
        is_first: bool,
    ) -> Option<Self> {
        let (state, why) = match found {
            Ok(operation) if operation.is_at_rest() || operation.handed_off => {
                if !is_first {
                    return None;
                }
                let why =
                    "it has ended or was handed off; its messages may not be acknowledged yet";
                (Some(operation.state.into_owned()), why.to_owned())
            }
            Ok(operation) => {
                let why = why(&operation);
                (Some(operation.state.into_owned()), why)
            }
            Err(error) if error.is_unknown() => return None,
            Err(error) => (None, error.to_string()),
        };
        Some(Self {
            operation: id.to_string(),
            offset,
            state,
            why,
        })
    }
}

/// What an operation waits for.
pub(super) fn why(operation: &OperationView) -> String {
    let under_way = operation.steps.iter().filter(|step| step.is_under_way());
    let steps = under_way.map(|step| {
        let StepView { name, attempt, .. } = step;
        match (&step.complete_by, &step.retry_at) {
            (Some(until), _) => format!("step {name}, attempt {attempt}, until {until}"),
            (None, Some(at)) if *attempt == 0 => format!("step {name}, postponed until {at}"),
            (None, Some(at)) => format!("step {name}, attempt {attempt} failed, again at {at}"),
            (None, None) => format!("step {name}"),
        }
    });
    let steps: Vec<String> = steps.collect();
    match (steps.is_empty(), &operation.what_next) {
        (false, _) => steps.join("; "),
        (true, Some(next)) => next.clone(),
        (true, None) => "what it waits for is unknown".to_owned(),
    }
}

/// Requests after a checkpoint.
#[derive(Default)]
struct Open {
    /// Each operation once, at its first request.
    requests: Vec<(i64, OperationId)>,
    has_more: bool,
}

/// The first requests of a shard between its checkpoint and the last consumed one.
fn unended(
    connection: &Connection,
    topic: &str,
    scheme: ShardingScheme,
    view: &ShardView,
    priority: Priority,
) -> anyhow::Result<Open> {
    let partition = PartitionId(view.partition);
    let held = connection.offsets(topic, partition)?;
    let range = Range {
        start: view.done(priority).0.max(held.start),
        end: view.consumed(priority).0.min(held.end),
    };
    let mut open = Open::default();
    let mut seen = BTreeSet::new();
    let mut examined = 0;
    let _ = connection.read(topic, partition, range, &mut |record| {
        let key = record.key().unwrap_or_default();
        if scheme.taker(partition, KeyHash::of(key)).0 != view.shard {
            return Ok(ControlFlow::Continue(()));
        }
        examined += 1;
        if examined > EXAMINED_MAX {
            open.has_more = true;
            return Ok(ControlFlow::Break(()));
        }
        let id = std::str::from_utf8(key)
            .ok()
            .and_then(|key| key.parse().ok());
        // A record without such a key went to the dead-letter topic.
        if let Some(id) = id.filter(|&id| seen.insert(id)) {
            open.requests.push((record.offset().0, id));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(open)
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            partition,
            shard,
            priority,
            owner,
            silent,
            waits_for,
            checkpoint,
            consumed,
            end,
            not_consumed,
            held,
            held_by,
            has_more,
        } = self;
        let owner = match owner {
            Some(owner) if *silent => format!("owned by {owner}, whose lease has expired"),
            Some(owner) => format!("owned by {owner}"),
            None => format!("no owner: it waits for {}", waits_for.join("; ")),
        };
        writeln!(
            f,
            "partition {partition}, shard {shard}, {priority} priority: {not_consumed} not consumed, {held} after the checkpoint \
             (checkpoint {checkpoint}, consumed {consumed}, end {end}); {owner}"
        )?;
        for Holder {
            operation,
            offset,
            state,
            why,
        } in held_by
        {
            let state = state.as_deref().unwrap_or("state unknown");
            writeln!(f, "  {operation} at {offset}: {state}; {}", escaped(why))?;
        }
        match (held_by.is_empty(), has_more, *held > 0) {
            (false, true, _) => writeln!(f, "  and more"),
            (true, true, _) => writeln!(
                f,
                "  the first {EXAMINED_MAX} of them have ended or were handed off"
            ),
            (true, false, true) => writeln!(
                f,
                "  all of them have ended or were handed off: the checkpoint moves when their messages are \
                 acknowledged, and within scheduler.checkpointEvery"
            ),
            (_, false, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(state: &str, steps: Vec<StepView>) -> OperationView {
        OperationView {
            state: state.to_owned().into(),
            what_next: Some("Waiting for the scheduler to read the request.".to_owned()),
            steps,
            ..OperationView::default()
        }
    }

    #[test]
    fn a_final_or_handed_off_operation_holds_no_checkpoint() {
        let id = OperationId(uuid::Uuid::nil());
        for state in [
            "Processed",
            "Compensated",
            "Cancelled",
            "Error",
            "CompensationFailed",
        ] {
            assert!(
                Holder::of(id, 7, Ok(operation(state, Vec::new())), false).is_none(),
                "{state}"
            );
        }
        let handed_off = OperationView {
            handed_off: true,
            ..operation("Processing", Vec::new())
        };
        assert!(Holder::of(id, 7, Ok(handed_off), false).is_none());
        let holder = Holder::of(id, 7, Ok(operation("Processing", Vec::new())), false).unwrap();
        assert_eq!(holder.state.as_deref(), Some("Processing"));
        assert_eq!(holder.why, "Waiting for the scheduler to read the request.");
        let ended = Holder::of(id, 7, Ok(operation("Processed", Vec::new())), true).unwrap();
        assert!(ended.why.starts_with("it has ended"), "{}", ended.why);
    }

    #[test]
    fn an_operation_waits_for_its_running_steps() {
        let step = |name: &str, complete_by: Option<&str>, retry_at: Option<&str>| StepView {
            name: name.into(),
            attempt: 2,
            complete_by: complete_by.map(str::to_owned),
            retry_at: retry_at.map(str::to_owned),
            ..StepView::default()
        };
        let steps = vec![
            step("account", None, None),
            step("package", Some("10:00"), None),
            step("drone", None, Some("10:05")),
        ];
        assert_eq!(
            why(&operation("Processing", steps)),
            "step package, attempt 2, until 10:00; step drone, attempt 2 failed, again at 10:05"
        );
    }

    #[test]
    fn the_page_of_a_shard_names_its_owner_and_oldest_operation() {
        let mut lag = Lag {
            partition: 1,
            shard: 1,
            priority: Priority::Normal.name(),
            owner: None,
            silent: false,
            waits_for: vec!["an owner".to_owned()],
            checkpoint: 10,
            consumed: 12,
            end: 20,
            not_consumed: 8,
            held: 2,
            held_by: vec![Holder {
                operation: "x".to_owned(),
                offset: 10,
                state: Some("Processing".to_owned()),
                why: "step drone".to_owned(),
            }],
            has_more: true,
        };
        assert_eq!(
            lag.to_string(),
            "partition 1, shard 1, normal priority: 8 not consumed, 2 after the checkpoint (checkpoint 10, consumed 12, end \
             20); no owner: it waits for an owner\n  x at 10: Processing; step drone\n  and more\n"
        );
        lag.held_by.clear();
        lag.has_more = false;
        assert!(
            lag.to_string()
                .contains("all of them have ended or were handed off")
        );
    }
}
