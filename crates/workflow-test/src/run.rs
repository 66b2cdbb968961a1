//! Runs one case: the engine on a store in memory, in virtual time.
//!
//! The loop does what the scheduler and the supervisor do with the engine's commands: it stores
//! rows, passes requests to the mocked agents, has failures decided, and advances the time to the
//! next event. Every effect is immediate and succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use waybill_agent::http::{OfflineAgent, OfflineRequest};
use waybill_engine::{
    AmendRequest, Amendment, Batch, ByPriority, Command, CreateRequest, EngineConfig, Epoch, Event,
    IdOrigin, LayoutShard, Message, Offset, OperationId, OperationRequest, OperationRow, OwnerId,
    Ownership, PartitionEngine, PartitionId, Priority, Recovery, RecoveryVerb, RequestHash, Room,
    Stamp, StepReply, StepRequest, Supervision, Timestamp, TopicOffsets, Workflow, Workflows,
};

use crate::cases::{Case, CasesFile, Verb, VerbName};
use crate::mocks::{Mocks, Unmocked};

/// When every case begins: 2026-01-01T00:00:00Z.
const BEGIN: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// The engine's settings: the defaults, without hand-offs to the deadline index. Hand-offs change
/// which process wakes an operation, not what happens.
fn engine_config() -> EngineConfig {
    const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    EngineConfig {
        hand_off_after: NEVER,
        ..EngineConfig::default()
    }
}

/// Maximum number of events of a case. Every attempt uses up an answer of the file, so only a
/// defect of the engine can exceed it.
const EVENTS_MAX: usize = 1_000_000;

/// The workflow and the agents that the cases of a file share.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) workflows: Arc<Workflows>,
    pub(crate) workflow: Arc<Workflow>,
    pub(crate) agents: BTreeMap<String, OfflineAgent>,
}

/// The course of an operation.
#[derive(Debug)]
pub(crate) struct Course {
    /// The last row.
    pub(crate) row: OperationRow,
    /// The requests to agents, in order.
    pub(crate) requests: Vec<Sent>,
    /// From the creation to the last state.
    pub(crate) took: Duration,
}

/// A request to an agent.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) request: StepRequest,
    /// The HTTP request of a declared agent; `None` for another agent, and if none could be
    /// rendered.
    pub(crate) http: Option<OfflineRequest>,
}

/// Why a case cannot be run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// A request has no answer.
    #[error(transparent)]
    Unmocked(#[from] Unmocked),
    /// The operation never ends.
    #[error("the operation is still in progress after {EVENTS_MAX} events")]
    StillInProgress,
    /// The engine wrote no row.
    #[error("the engine created no operation")]
    Nothing,
}

/// The id of a verb of the case, also in the history of the operation.
pub(crate) fn verb_id(index: usize) -> Uuid {
    Uuid::from_u128(0x5eed_0000 + index as u128)
}

/// The id of a case's operation.
pub(crate) fn operation_of(case: &Case) -> OperationId {
    OperationId::of_caller("", &case.name.value)
}

/// The input of a case: that of the file with the fields of the case.
pub(crate) fn input_of(
    file: &CasesFile,
    case: &Case,
) -> serde_json::Map<String, serde_json::Value> {
    let mut input = file.input.clone();
    input.extend(case.input.clone());
    input
}

/// Runs a case until no event is left.
pub(crate) fn run(setting: &Setting, file: &CasesFile, case: &Case) -> Result<Course, RunError> {
    let mut run = Run::new(setting, file, case);
    run.begin(file, case);
    run.finish()?;
    let row = run.row.ok_or(RunError::Nothing)?;
    Ok(Course {
        row,
        requests: run.requests,
        took: run.ended.since(BEGIN),
    })
}

/// Something that arrives at the scheduler.
#[derive(Debug)]
enum Arrival {
    Reply(StepReply),
    Recovery(Box<Recovery>),
    Verb(usize),
}

struct Run<'a> {
    setting: &'a Setting,
    case: &'a Case,
    mocks: Mocks<'a>,
    engine: PartitionEngine,
    now: Timestamp,
    /// Later arrivals, by time and order.
    arrivals: BTreeMap<(Timestamp, u64), Arrival>,
    arrivals_made: u64,
    /// The deadline index.
    index: BTreeSet<(Timestamp, OperationId)>,
    next: TopicOffsets,
    row: Option<OperationRow>,
    requests: Vec<Sent>,
    /// When the operation reached its last state.
    ended: Timestamp,
}

impl<'a> Run<'a> {
    fn new(setting: &'a Setting, file: &'a CasesFile, case: &'a Case) -> Self {
        let ownership = Ownership {
            partition: PartitionId(0),
            shard: LayoutShard::default(),
            owner: OwnerId(Uuid::from_u128(1)),
            epoch: Epoch(1),
            next: TopicOffsets::default(),
            requests_end: ByPriority::default(),
            replies_end: Offset(0),
            stamp_floor: Stamp(0),
            stamp_limit: Stamp(i64::MAX),
        };
        let workflows = Arc::clone(&setting.workflows);
        Self {
            setting,
            case,
            mocks: Mocks::new(file, case),
            engine: PartitionEngine::new(Arc::new(engine_config()), workflows, ownership),
            now: BEGIN,
            arrivals: BTreeMap::new(),
            arrivals_made: 0,
            index: BTreeSet::new(),
            next: TopicOffsets::default(),
            row: None,
            requests: Vec::new(),
            ended: BEGIN,
        }
    }

    /// Requests the operation, and schedules the verbs.
    fn begin(&mut self, file: &CasesFile, case: &Case) {
        let input = serde_json::Value::Object(input_of(file, case));
        self.request(OperationRequest::Create(CreateRequest {
            operation: operation_of(case),
            id_origin: IdOrigin::Caller,
            workflow: self.setting.workflow.name().to_string(),
            tenant: String::new(),
            caller_id: Some(case.name.value.clone()),
            input: input.to_string().into_bytes(),
            deadline: case.deadline.map(|deadline| BEGIN + deadline),
            reply_to: None,
            request_hash: RequestHash::default(),
            verify_hash: false,
            requested_at: BEGIN,
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        }));
        for (index, verb) in case.verbs.iter().enumerate() {
            self.arrive(BEGIN + verb.at, Arrival::Verb(index));
        }
    }

    /// Applies events in the order of their times until none is left.
    fn finish(&mut self) -> Result<(), RunError> {
        for _ in 0..EVENTS_MAX {
            self.settle()?;
            let arrival = self.arrivals.keys().next().map(|(at, _)| *at);
            let entry = self.index.first().map(|(due, _)| *due);
            let next = [arrival, entry, self.engine.next_timer()];
            let Some(next) = next.into_iter().flatten().min() else {
                return Ok(());
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                if let Some((_, arrival)) = self.arrivals.pop_first() {
                    self.arrived(arrival);
                }
            } else if entry == Some(next) {
                self.entry_came_up();
            } else {
                self.engine.apply(Event::Tick, self.now);
            }
        }
        Err(RunError::StillInProgress)
    }

    /// Performs the engine's commands until it has none.
    fn settle(&mut self) -> Result<(), RunError> {
        loop {
            for operation in self.engine.loads() {
                let row = self.row.clone().filter(|row| row.id == operation);
                let row = row.map(Box::new);
                self.engine
                    .apply(Event::Loaded { operation, row }, self.now);
            }
            let Some(Batch { number, commands }) = self.engine.take_batch(self.now) else {
                return Ok(());
            };
            for command in commands {
                self.perform(command)?;
            }
            self.engine
                .apply(Event::Settled { batch: number }, self.now);
        }
    }

    fn perform(&mut self, command: Command) -> Result<(), RunError> {
        match command {
            Command::Index { due, operation } => {
                self.index.insert((due, operation));
            }
            Command::Persist(change) => {
                let change = *change;
                let before = self.row.take();
                if before.as_ref().map(|row| row.state.state) != Some(change.state.state) {
                    self.ended = self.now;
                }
                let created = change.created.or_else(|| before.map(|row| row.created));
                self.row = created.map(|created| OperationRow {
                    id: change.id,
                    created,
                    state: change.state,
                    stamp: change.stamp,
                });
            }
            Command::Send(Message::Step(request)) => self.ask(request)?,
            Command::Send(Message::Failed(failed)) => {
                let decision = self.supervision().failed(&failed, self.now);
                if let Some(decision) = decision {
                    self.arrive(self.now, Arrival::Recovery(Box::new(decision)));
                }
            }
            Command::Attention { .. }
            | Command::Send(
                Message::Status(_)
                | Message::Alert(_)
                | Message::Owner(_)
                | Message::Reroute { .. }
                | Message::DeadLetter { .. },
            ) => {}
        }
        Ok(())
    }

    /// Passes a request to the mocked agent.
    fn ask(&mut self, request: StepRequest) -> Result<(), RunError> {
        let agent = self.setting.agents.get(&*request.agent);
        let http = agent.map(|agent| agent.request(&request)).transpose();
        match http {
            Ok(http) => {
                if let Some(answer) = self.mocks.answer(agent, &request)? {
                    let reply = StepReply::to(&request, answer.outcome);
                    self.arrive(self.now + answer.after, Arrival::Reply(reply));
                }
                self.requests.push(Sent { request, http });
            }
            // The agent sends no request.
            Err(outcome) => {
                let reply = StepReply::to(&request, *outcome);
                self.arrive(self.now, Arrival::Reply(reply));
                let http = None;
                self.requests.push(Sent { request, http });
            }
        }
        Ok(())
    }

    fn arrive(&mut self, at: Timestamp, arrival: Arrival) {
        self.arrivals.insert((at, self.arrivals_made), arrival);
        self.arrivals_made += 1;
    }

    fn arrived(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Reply(reply) => {
                let offset = self.next.replies;
                self.next.replies = offset.next();
                self.engine.apply(Event::Reply { offset, reply }, self.now);
            }
            Arrival::Recovery(recovery) => self.recover(recovery),
            Arrival::Verb(index) => self.verb(index),
        }
    }

    fn verb(&mut self, index: usize) {
        let case = self.case;
        let verb = &case.verbs[index];
        match verb_of(verb, &self.setting.workflow) {
            EngineVerb::Amendment(amendment) => {
                self.request(OperationRequest::Amend(AmendRequest {
                    id: verb_id(index),
                    operation: operation_of(case),
                    tenant: String::new(),
                    caller_id: Some(case.name.value.clone()),
                    amendment,
                    reason: String::new(),
                    asked_by: String::new(),
                    requested_at: self.now,
                }));
            }
            EngineVerb::Recovery(verb) => self.recover(Box::new(Recovery {
                id: verb_id(index),
                operation: operation_of(case),
                asked_by: "operator".to_owned(),
                reason: String::new(),
                asked_at: self.now,
                due: None,
                verb,
            })),
        }
    }

    fn request(&mut self, request: OperationRequest) {
        const NO_LIMIT: Room = Room {
            operations: usize::MAX,
            bytes: usize::MAX,
        };
        let offset = self.next.requests;
        self.next.requests = offset.next();
        let event = Event::Request {
            priority: Priority::Normal,
            offset,
            fingerprint: 0,
            bytes: 0,
            rerouted: false,
            request,
        };
        self.engine.apply(event, self.now);
        self.engine.admit(NO_LIMIT, self.now);
    }

    fn recover(&mut self, recovery: Box<Recovery>) {
        let offset = self.next.recoveries;
        self.next.recoveries = offset.next();
        self.engine
            .apply(Event::Recovery { offset, recovery }, self.now);
    }

    /// Applies what a supervisor requests because of the first entry of the deadline index.
    fn entry_came_up(&mut self) {
        let Some((due, operation)) = self.index.pop_first() else {
            return;
        };
        let row = self.row.as_ref();
        let live = row.filter(|row| row.id == operation && !row.state.state.is_final());
        let recoveries = live.map(|row| self.supervision().entry_came_up(row, due, self.now));
        for recovery in recoveries.unwrap_or_default() {
            self.recover(Box::new(recovery));
        }
    }

    fn supervision(&self) -> Supervision<'_> {
        Supervision {
            name: "supervisor",
            workflows: &self.setting.workflows,
            timeout_grace: engine_config().timeout_grace,
        }
    }
}

/// A verb as the engine takes it.
enum EngineVerb {
    Amendment(Amendment),
    Recovery(RecoveryVerb),
}

fn verb_of(verb: &Verb, workflow: &Workflow) -> EngineVerb {
    let step = || verb.step.as_ref().map(|step| step.value.clone());
    match verb.verb.value {
        VerbName::Cancel => EngineVerb::Amendment(Amendment::Cancel {
            workflow: workflow.name().to_string(),
        }),
        VerbName::Reschedule => {
            let fields = serde_json::Value::Object(verb.fields.clone().unwrap_or_default());
            EngineVerb::Amendment(Amendment::Reschedule {
                fields: fields.to_string().into_bytes(),
                deadline: None,
            })
        }
        VerbName::Resubmit => EngineVerb::Recovery(RecoveryVerb::Resubmit),
        VerbName::Compensate => EngineVerb::Recovery(RecoveryVerb::Compensate { seen: None }),
        VerbName::Abandon => EngineVerb::Recovery(RecoveryVerb::Abandon),
        VerbName::RetryCompensation => EngineVerb::Recovery(RecoveryVerb::RetryCompensation),
        VerbName::Undone => EngineVerb::Recovery(RecoveryVerb::Undone {
            step: step().unwrap_or_default(),
        }),
    }
}
