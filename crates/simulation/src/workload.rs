//! The workload of a run: workflows of every kind, and callers who create, repeat, cancel and
//! reschedule.

use std::rc::Rc;
use std::time::Duration;

use waybill_engine::{
    AmendRequest, Amendment, CancelPolicy, CompensationDefinition, Condition, Contact,
    CreateRequest, IdOrigin, KeyHash, OnFailure, OperationId, OperationRequest, Priority,
    RequestHash, RetryPolicy, StepDefinition, StepKind, Timestamp, Workflow, WorkflowDefinition,
    Workflows, partition_for,
};

use crate::bugs::Bug;
use crate::clock::SKEW_MICROS;
use crate::rng::Rng;

/// A record of a requests topic.
#[derive(Clone, Debug)]
pub enum Record {
    Request {
        request: Rc<OperationRequest>,
        /// Another scheduler has rerouted it.
        is_rerouted: bool,
    },
    Poison,
}

impl Record {
    /// The operation of the record, if it can be read.
    pub fn operation(&self) -> Option<OperationId> {
        match self {
            Self::Request { request, .. } => Some(request.operation()),
            Self::Poison => None,
        }
    }

    /// The hash of the key of the record at this position, which determines its shard.
    pub fn key(&self, at: usize) -> KeyHash {
        match self.operation() {
            Some(id) => KeyHash::of(&id.key()),
            None => KeyHash::of(&at.to_be_bytes()),
        }
    }
}

/// A record that will be appended.
#[derive(Clone, Debug)]
pub struct Ask {
    pub at: Timestamp,
    pub priority: Priority,
    pub partition: usize,
    pub record: Record,
}

/// The tenant of an operation.
pub fn tenant_of(id: OperationId) -> String {
    ["", "acme", "globex"][(id.0.as_u128() % 3) as usize].to_owned()
}

/// The contacts of an operation: every third one has some.
pub fn contacts_of(id: OperationId) -> Vec<Contact> {
    let owner = Contact::new("mailto:owner@example.org");
    id.0.as_u128()
        .is_multiple_of(3)
        .then_some(owner)
        .into_iter()
        .collect()
}

/// What keeps late calls from leaving an effect behind after an undo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// Services refuse a call whose undo came first.
    Tombstones,
    /// Services forget what was undone, and calls take effect at any time; but every success is
    /// reported, however late.
    Evidence,
    /// Services forget what was undone; but no call takes effect later than its complete-by plus a
    /// while.
    Settling,
}

/// Maximum time for a request to reach its topic; then its caller knows the id.
const SEND_MICROS: u64 = 3_000;
/// How long after its complete-by a call may take effect, if protection is by settling.
pub const CALL_LATE_MICROS: u64 = 700_000;
/// The workflow's `settle` for this, which also allows for the agent's and the scheduler's clocks.
const SETTLE_MICROS: u64 = CALL_LATE_MICROS + 4 * SKEW_MICROS as u64;

/// A chain with a condition, one with a pivot, and a diamond.
pub fn workflows(rng: &mut Rng, protection: Protection, bug: Option<Bug>) -> Workflows {
    let mut make = Maker {
        rng,
        protection,
        tombstones: protection == Protection::Tombstones || bug == Some(Bug::TrustForgetful),
        settle: match (protection, bug) {
            (_, Some(Bug::UndoBeforeSettled)) => Duration::ZERO,
            (Protection::Settling, _) => Duration::from_micros(SETTLE_MICROS),
            (Protection::Tombstones | Protection::Evidence, _) => Duration::from_millis(50),
        },
    };
    let mut definitions = [make.chain(), make.pivot(), make.diamond()];
    for definition in &mut definitions {
        for step in &mut definition.steps {
            if step.on_failure.or(definition.on_failure) != Some(OnFailure::Retry) {
                step.retry.long_interval = None;
            }
        }
    }
    let workflows = definitions.map(|definition| Workflow::try_from(definition).unwrap());
    Workflows::new(workflows.into()).unwrap()
}

struct Maker<'a> {
    rng: &'a mut Rng,
    protection: Protection,
    /// The properties of the services, as in the workflows.
    tombstones: bool,
    settle: Duration,
}

impl Maker<'_> {
    fn chain(&mut self) -> WorkflowDefinition {
        let account = StepDefinition {
            kind: StepKind::Pure,
            compensation: None,
            ..self.step("account")
        };
        let transport = StepDefinition {
            probe: self.rng.chance(50),
            ..self.step("transport")
        };
        let drone = StepDefinition {
            when: condition("transport", "no"),
            ..self.step("drone")
        };
        let last = self.step("delivery");
        let last = if self.rng.chance(20) {
            StepDefinition {
                kind: StepKind::Irreversible,
                compensation: None,
                ..last
            }
        } else {
            last
        };
        WorkflowDefinition {
            on_failure: self.on_failure(),
            steps: vec![account, self.step("package"), transport, drone, last],
            ..definition("chain", 2)
        }
    }

    fn pivot(&mut self) -> WorkflowDefinition {
        let payment = StepDefinition {
            kind: StepKind::Pivot,
            compensation: None,
            ..self.step("payment")
        };
        let shipping = StepDefinition {
            kind: StepKind::Irreversible,
            compensation: None,
            on_failure: Some(if self.rng.chance(50) {
                OnFailure::Park
            } else {
                OnFailure::Retry
            }),
            ..self.step("shipping")
        };
        let stock = StepDefinition {
            uses: vec!["note".to_owned()],
            ..self.step("stock")
        };
        WorkflowDefinition {
            on_failure: self.on_failure(),
            steps: vec![stock, payment, shipping],
            ..definition("pivot", 1)
        }
    }

    fn diamond(&mut self) -> WorkflowDefinition {
        let mut step = |name: &str, after: &[&str]| StepDefinition {
            after: Some(after.iter().map(|&name| name.to_owned()).collect()),
            ..self.step(name)
        };
        let join = StepDefinition {
            uses: vec!["note".to_owned()],
            ..step("join", &["left", "right"])
        };
        let left = StepDefinition {
            when: condition("top", "yes"),
            ..step("left", &["top"])
        };
        let right = step("right", &["top"]);
        let top = step("top", &[]);
        let cancel = if self.rng.chance(50) {
            CancelPolicy::Always
        } else {
            CancelPolicy::UntilFinal
        };
        WorkflowDefinition {
            cancel,
            on_failure: self.on_failure(),
            deadline: self.rng.chance(15).then(|| Duration::from_secs(600)),
            steps: vec![join, left, right, top],
            ..definition("diamond", 1)
        }
    }

    fn on_failure(&mut self) -> Option<OnFailure> {
        [
            None,
            Some(OnFailure::Compensate),
            Some(OnFailure::Compensate),
            Some(OnFailure::Park),
            Some(OnFailure::Retry),
        ][self.rng.index(5)]
    }

    fn step(&mut self, name: &str) -> StepDefinition {
        let manual = self.protection == Protection::Tombstones && self.rng.chance(6);
        let timeout = self.timeout();
        let compensation = CompensationDefinition {
            manual,
            agent: None,
            timeout: self.timeout(),
            retry: self.retry(None),
            settle: self.settle,
            tombstones: self.tombstones,
            needs: Vec::new(),
        };
        let long_interval = Duration::from_millis(self.rng.between(400, 3_000));
        StepDefinition {
            name: name.to_owned(),
            agent: format!("{name}-agent"),
            after: None,
            when: None,
            timeout,
            kind: StepKind::Compensable,
            compensation: Some(compensation),
            on_failure: None,
            probe: self.rng.chance(15),
            uses: Vec::new(),
            sensitive: Vec::new(),
            retry: self.retry(Some(long_interval)),
        }
    }

    /// Longer than the clock skew; otherwise an agent would find every attempt expired.
    fn timeout(&mut self) -> Duration {
        Duration::from_millis(self.rng.between(450, 3_000))
    }

    fn retry(&mut self, long_interval: Option<Duration>) -> RetryPolicy {
        RetryPolicy {
            max_attempts: Some(1 + u32::try_from(self.rng.below(4)).unwrap()),
            initial_interval: Duration::from_millis(self.rng.between(1, 300)),
            multiplier: 2.0,
            max_interval: Duration::from_millis(self.rng.between(400, 3_000)),
            long_interval,
        }
    }
}

fn definition(name: &str, version: u32) -> WorkflowDefinition {
    WorkflowDefinition {
        name: name.to_owned(),
        version,
        cancel: CancelPolicy::UntilFinal,
        on_failure: None,
        deadline: None,
        sensitive: Vec::new(),
        steps: Vec::new(),
    }
}

fn condition(step: &str, equals: &str) -> Option<Condition> {
    Some(Condition {
        step: step.to_owned(),
        output: "needed".to_owned(),
        equals: equals.to_owned(),
    })
}

/// The requests of the callers of a few operations.
pub fn asks(rng: &mut Rng, start: Timestamp, partitions: u32, fresh_for: Duration) -> Vec<Ask> {
    // Some send no high-priority requests, others up to half of them.
    let high = [0, 0, 20, 50][rng.index(4)];
    let mut callers = Callers {
        rng,
        high,
        start,
        partitions,
        fresh_for,
        asks: Vec::new(),
    };
    for _ in 0..callers.rng.between(2, 7) {
        callers.operation();
    }
    if callers.rng.chance(10) {
        let at = callers.time(3_000_000);
        let partition = callers.rng.index(partitions as usize);
        callers.append(at, partition, Record::Poison);
    }
    callers.asks
}

struct Callers<'a> {
    rng: &'a mut Rng,
    /// The percentage of records that go to the high-priority topic, independently of other records
    /// of the operation.
    high: u64,
    start: Timestamp,
    partitions: u32,
    fresh_for: Duration,
    asks: Vec<Ask>,
}

impl Callers<'_> {
    fn operation(&mut self) {
        let id = OperationId(self.rng.uuid());
        let at = self.time(2_500_000);
        let workflow = match self.rng.below(30) {
            0 => "forgotten",
            1..=11 => "chain",
            12..=18 => "pivot",
            _ => "diamond",
        };
        let is_callers = self.rng.chance(40);
        let create = self.create(id, is_callers, workflow, at);
        let delay = Duration::from_micros(self.rng.below(SEND_MICROS));
        if self.rng.chance(4) {
            self.misrouted(at + delay, create.clone());
        } else {
            self.send(at + delay, create.clone());
        }
        if self.rng.chance(25) {
            self.repeat(at, create);
        }
        if self.rng.chance(35) {
            // A caller learns a server-generated id only from the answer to its create.
            let early = is_callers && self.rng.chance(30);
            self.cancel(id, workflow, at, early);
        }
        if self.rng.chance(15) {
            self.reschedule(id, at);
        }
    }

    fn create(
        &mut self,
        id: OperationId,
        is_callers: bool,
        workflow: &str,
        at: Timestamp,
    ) -> CreateRequest {
        let deadline_micros = self.rng.between(500_000, 9_000_000);
        CreateRequest {
            operation: id,
            id_origin: if is_callers {
                IdOrigin::Caller
            } else {
                IdOrigin::Server
            },
            workflow: workflow.to_owned(),
            tenant: tenant_of(id),
            caller_id: None,
            input: b"{}".to_vec(),
            deadline: (self.rng.chance(25)).then(|| at + Duration::from_micros(deadline_micros)),
            reply_to: self.rng.chance(15).then(|| "caller".to_owned()),
            request_hash: RequestHash([1; 16]),
            verify_hash: false,
            requested_at: at,
            traceparent: None,
            resubmission_of: None,
            notify: contacts_of(id),
        }
    }

    /// Sends the same request again, or another one with the same id.
    fn repeat(&mut self, at: Timestamp, create: CreateRequest) {
        let (is_server, is_conflict) = (create.id_origin == IdOrigin::Server, self.rng.chance(30));
        // A caller learns a server-generated id only when ingestion reports that the outcome is
        // unknown, which is later than the time for which no look-up is needed.
        let earliest = if is_server {
            self.fresh_for + Duration::from_micros(2 * SKEW_MICROS.unsigned_abs())
        } else {
            Duration::ZERO
        };
        let again = CreateRequest {
            id_origin: IdOrigin::Caller,
            request_hash: RequestHash([if is_conflict { 2 } else { 1 }; 16]),
            ..create
        };
        let at = at + earliest + Duration::from_micros(self.rng.below(2_000_000));
        self.send(at, again);
    }

    /// A record in the wrong partition; or two copies, rerouted by another scheduler.
    fn misrouted(&mut self, at: Timestamp, create: CreateRequest) {
        let home = partition_for(create.operation, self.partitions).0 as usize;
        let request = Rc::new(OperationRequest::Create(create));
        if self.partitions > 1 {
            let is_rerouted = false;
            let record = Record::Request {
                request,
                is_rerouted,
            };
            return self.append(at, (home + 1) % self.partitions as usize, record);
        }
        for _ in 0..2 {
            let at = at + Duration::from_micros(self.rng.below(3_000_000));
            let record = Record::Request {
                request: Rc::clone(&request),
                is_rerouted: true,
            };
            self.append(at, home, record);
        }
    }

    /// A cancel: before its create, during the operation, or long after it.
    fn cancel(&mut self, id: OperationId, workflow: &str, create_at: Timestamp, early: bool) {
        let late = self.rng.between(SEND_MICROS, 8_000_000);
        let at = if early {
            create_at - Duration::from_micros(self.rng.below(100_000))
        } else {
            create_at + Duration::from_micros(late)
        };
        let amendment = Amendment::Cancel {
            workflow: workflow.to_owned(),
        };
        self.amend(id, at, amendment);
    }

    fn reschedule(&mut self, id: OperationId, create_at: Timestamp) {
        let at = create_at + Duration::from_micros(self.rng.below(2_000_000));
        let amendment = Amendment::Reschedule {
            fields: b"{\"note\":2}".to_vec(),
            deadline: self.rng.chance(50).then(|| at + Duration::from_secs(900)),
        };
        self.amend(id, at, amendment);
    }

    fn amend(&mut self, id: OperationId, at: Timestamp, amendment: Amendment) {
        let request = Rc::new(OperationRequest::Amend(AmendRequest {
            id: self.rng.uuid(),
            operation: id,
            tenant: tenant_of(id),
            caller_id: None,
            amendment,
            reason: String::new(),
            asked_by: String::new(),
            requested_at: at,
        }));
        let partition = partition_for(id, self.partitions).0 as usize;
        for repeat in 0..if self.rng.chance(20) { 2 } else { 1 } {
            let at = at + Duration::from_micros(repeat * self.rng.below(1_000_000));
            let record = Record::Request {
                request: Rc::clone(&request),
                is_rerouted: false,
            };
            self.append(at, partition, record);
        }
    }

    fn send(&mut self, at: Timestamp, create: CreateRequest) {
        let partition = partition_for(create.operation, self.partitions).0 as usize;
        let record = Record::Request {
            request: Rc::new(OperationRequest::Create(create)),
            is_rerouted: false,
        };
        self.append(at, partition, record);
    }

    fn append(&mut self, at: Timestamp, partition: usize, record: Record) {
        let priority = match self.rng.chance(self.high) {
            true => Priority::High,
            false => Priority::Normal,
        };
        self.asks.push(Ask {
            at,
            priority,
            partition,
            record,
        });
    }

    fn time(&mut self, within_micros: u64) -> Timestamp {
        self.start + Duration::from_micros(self.rng.below(within_micros))
    }
}
