//! Crashes at every point of short runs without any other fault: one crash before each event, and
//! a second one before each event of what follows. All points, not a sample.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use waybill_agent_core::QueueLimits;
use waybill_engine::{
    AmendRequest, Amendment, CancelPolicy, CompensationDefinition, CreateRequest, EngineConfig,
    IdOrigin, OnFailure, OperationId, OperationRequest, Priority, RequestHash, RetryPolicy,
    StepDefinition, Timestamp, Workflow, WorkflowDefinition, Workflows,
};

use crate::bugs::Bug;
use crate::plan::{Plan, START, lease};
use crate::rng::Rng;
use crate::run::{Crash, Outcome, Process, run_plan};
use crate::seen::{Seen, Sight};
use crate::workload::{Ask, Protection, Record, contacts_of, tenant_of};
use crate::{on_all_threads, setting};

/// What happens to the operation of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Course {
    /// Every step completes.
    Success,
    /// The last step is refused, and the supervisor has the operation undone.
    Refusal,
    /// The caller cancels it halfway.
    Cancel,
    /// The number of shards changes halfway.
    Repartitioning,
}

const COURSES: [Course; 4] = [
    Course::Success,
    Course::Refusal,
    Course::Cancel,
    Course::Repartitioning,
];
const PROCESSES: [Process; 3] = [Process::Schedulers, Process::Supervisors, Process::Agents];
const STEPS: [&str; 3] = ["account", "package", "drone"];
/// How many ways in which the same crashes happen.
const VARIANTS: u64 = 8;
/// When the operation of each course is about half done.
const HALFWAY: Duration = Duration::from_millis(9);

impl Course {
    /// What a run without crashes must have seen.
    fn sight(self) -> Sight {
        match self {
            Self::Success => Sight::EndedProcessed,
            Self::Refusal => Sight::EndedCompensated,
            Self::Cancel => Sight::EndedCancelled,
            Self::Repartitioning => Sight::Splits,
        }
    }

    /// A plan without faults, whose only operation takes this course.
    pub fn plan(self) -> Plan {
        let operation = OperationId(uuid::Uuid::from_u128(3));
        let halfway = START + HALFWAY;
        let mut asks = vec![ask(START, create(operation))];
        if self == Self::Cancel {
            asks.push(ask(halfway, cancel(operation, halfway)));
        }
        Plan {
            partitions: 1,
            config: Arc::clone(&CONFIG),
            in_flight_max: 4,
            waiting_max: 4,
            workflows: Arc::clone(&WORKFLOWS),
            protection: Protection::Tombstones,
            asks,
            calm_at: START,
            supervisors: 2,
            schedulers: 2,
            lease: lease(1_000),
            scheduler_crashes: 0,
            scheduler_pauses: 0,
            scheduler_stops: 0,
            cut_offs: 0,
            loses_requests_at: None,
            loses_wake_at: None,
            tracked_max: 40,
            checkpoint_every: Duration::from_millis(50),
            repartitions: 0,
            spoilt_rows: 0,
            transactions: false,
            direct: false,
            supervisor_crashes: 0,
            agent_processes: 2,
            agent_limits: QueueLimits {
                workers: 2,
                in_flight_max: 8,
                in_flight_bytes_max: 1 << 20,
            },
            agent_crashes: 0,
            agent_pauses: 0,
            agent_stops: 0,
            agent_fences: 0,
            spoils_agent_topic_at: None,
            interventions: 0,
            copies: 0,
            faults: 0,
            refused_step: (self == Self::Refusal).then_some(STEPS[2]),
            repartition_at: (self == Self::Repartitioning).then_some(halfway),
            sets_clocks: false,
            replicas_differ: false,
        }
    }

    /// The variant decides how long what takes, and how much of a write in flight a crash leaves.
    fn run(self, variant: u64, crashes: &[Crash], bug: Option<Bug>, keep_history: bool) -> Outcome {
        run_plan(self.plan(), Rng::new(variant), bug, crashes, keep_history)
    }
}

static CONFIG: LazyLock<Arc<EngineConfig>> = LazyLock::new(|| {
    Arc::new(EngineConfig {
        retention: Duration::from_secs(86_400),
        hand_off_after: Duration::from_millis(500),
        fresh_for: Duration::from_secs(1),
        high_priority_weight: 4,
        timeout_grace: Duration::from_millis(200),
        supervisor_decision_timeout: Duration::from_secs(2),
        unreadable_again: Duration::from_secs(1),
        publish_step_status: true,
    })
});

static WORKFLOWS: LazyLock<Arc<Workflows>> = LazyLock::new(|| Arc::new(workflows()));

fn workflows() -> Workflows {
    let retry = RetryPolicy {
        max_attempts: Some(3),
        initial_interval: Duration::from_millis(5),
        multiplier: 2.0,
        max_interval: Duration::from_millis(100),
        long_interval: None,
    };
    let steps = STEPS.map(|name| StepDefinition {
        timeout: Duration::from_secs(1),
        retry: retry.clone(),
        compensation: Some(CompensationDefinition {
            timeout: Duration::from_secs(1),
            retry: retry.clone(),
            settle: Duration::from_millis(50),
            tombstones: true,
            ..CompensationDefinition::default()
        }),
        ..StepDefinition::new(name, format!("{name}-agent"))
    });
    let definition = WorkflowDefinition {
        cancel: CancelPolicy::UntilFinal,
        on_failure: Some(OnFailure::Compensate),
        ..WorkflowDefinition::new("chain", 1, steps.into())
    };
    Workflows::new(vec![Workflow::try_from(definition).unwrap()]).unwrap()
}

fn create(operation: OperationId) -> OperationRequest {
    OperationRequest::Create(CreateRequest {
        operation,
        id_origin: IdOrigin::Server,
        workflow: "chain".to_owned(),
        tenant: tenant_of(operation),
        caller_id: None,
        input: b"{}".to_vec(),
        deadline: None,
        reply_to: Some("caller".to_owned()),
        request_hash: RequestHash([1; 16]),
        verify_hash: false,
        requested_at: START,
        traceparent: None,
        resubmission_of: None,
        notify: contacts_of(operation),
    })
}

fn cancel(operation: OperationId, at: Timestamp) -> OperationRequest {
    OperationRequest::Amend(AmendRequest {
        id: uuid::Uuid::from_u128(4),
        operation,
        tenant: tenant_of(operation),
        caller_id: None,
        amendment: Amendment::Cancel {
            workflow: "chain".to_owned(),
        },
        reason: String::new(),
        asked_by: String::new(),
        requested_at: at,
    })
}

fn ask(at: Timestamp, request: OperationRequest) -> Ask {
    Ask {
        at,
        priority: Priority::Normal,
        partition: 0,
        record: Record::Request {
            request: Rc::new(request),
            is_rerouted: false,
        },
    }
}

/// The crashes at every point of a run that has had the crashes `before`, and has `points` points.
fn next_points(before: &[Crash], points: u64) -> impl Iterator<Item = Vec<Crash>> {
    let begin = before.last().map_or(0, |crash| crash.after + 1);
    let points = (begin..=points).flat_map(|after| PROCESSES.map(|of| Crash { after, of }));
    points.map(move |crash| [before, &[crash]].concat())
}

/// Runs a course with these crashes, and returns what was seen.
fn survive(course: Course, variant: u64, crashes: &[Crash]) -> Seen {
    let outcome = course.run(variant, crashes, None, false);
    if let Some(broken) = outcome.violation {
        let history = course.run(variant, crashes, None, true).history;
        panic!(
            "{course:?}, variant {variant}, with {crashes:?}: \"{}\" is broken\n{history}\n{}",
            broken.rule.describe(),
            broken.what
        );
    }
    outcome.seen
}

/// Processes die at every point of the courses, and in some variants at every later point, too.
///
/// # Panics
///
/// If a run breaks a rule, or if a kind of crash was not seen.
pub fn check_crash_points() {
    let variants = setting("WAYBILL_TEST_CRASH_VARIANTS").unwrap_or(0);
    if variants == 0 {
        skipped(
            "a second crash at every point: WAYBILL_TEST_CRASH_VARIANTS does not say in how many variants",
        );
    }
    // Of the second crashes, every n-th happens.
    let every = setting("WAYBILL_TEST_CRASH_PAIRS").unwrap_or(1).max(1);
    let every = usize::try_from(every).unwrap();
    let with_one = with_one_crash(VARIANTS.max(variants));
    let next = AtomicUsize::new(0);
    let with_two = on_all_threads(|| {
        let (mut seen, mut runs) = (Seen::default(), 0);
        while let Some((course, variant, crashes)) =
            with_one.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let one = survive(*course, *variant, crashes);
            if *variant < variants {
                for crashes in next_points(crashes, one.points).step_by(every) {
                    seen.merge(&survive(*course, *variant, &crashes));
                    runs += 1;
                }
            }
            seen.merge(&one);
        }
        (seen, runs)
    });
    let (mut seen, mut runs) = (Seen::default(), 0);
    for (of_thread, runs_of_thread) in with_two {
        seen.merge(&of_thread);
        runs += runs_of_thread;
    }
    #[expect(clippy::disallowed_macros, reason = "the developer sees how many")]
    {
        println!("{} runs with one crash, {runs} with two", with_one.len());
    }
    for sight in [
        Sight::CrashIdle,
        Sight::CrashBeforePersisting,
        Sight::CrashAmidPersisting,
        Sight::CrashBeforeSending,
        Sight::CrashAmidSending,
        Sight::CrashBeforeSettling,
        Sight::AgentCrashes,
        Sight::SupervisorCrashes,
        Sight::SupervisorTakeOvers,
        Sight::TakeOvers,
        Sight::Splits,
    ] {
        assert!(seen.of(sight) > 0, "{sight:?}");
    }
}

fn skipped(what: &str) {
    #[expect(
        clippy::disallowed_macros,
        reason = "the developer sees what did not run"
    )]
    {
        println!("SKIPPED: {what}");
    }
}

/// Every course in every variant with a crash at every point.
fn with_one_crash(variants: u64) -> Vec<(Course, u64, Vec<Crash>)> {
    let mut all = Vec::new();
    for (course, variant) in COURSES
        .into_iter()
        .flat_map(|course| (0..variants).map(move |variant| (course, variant)))
    {
        let without = survive(course, variant, &[]);
        assert!(without.of(course.sight()) > 0, "{course:?}, {variant}");
        let points = next_points(&[], without.points);
        all.extend(points.map(|crashes| (course, variant, crashes)));
    }
    all
}

/// One crash reveals planted bugs that no run without a crash reveals.
///
/// # Panics
///
/// If it does not.
pub fn check_crashes_reveal_bugs() {
    let with_one = with_one_crash(VARIANTS);
    for bug in [
        Bug::IgnoreStamps,
        Bug::ForgetUnknownInUndo,
        Bug::ResumeWithoutAsking,
        Bug::ForgetRefused,
    ] {
        let reveals = |course: Course, variant, crashes: &[Crash]| {
            let outcome = course.run(variant, crashes, Some(bug), false);
            outcome.violation.is_some()
        };
        let without = COURSES.into_iter().find(|&course| reveals(course, 0, &[]));
        assert_eq!(without, None, "{bug:?}");
        let mut with_one = with_one.iter();
        let is_revealed =
            with_one.any(|(course, variant, crashes)| reveals(*course, *variant, crashes));
        assert!(is_revealed, "{bug:?}");
    }
}
