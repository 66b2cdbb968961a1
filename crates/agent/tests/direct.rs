//! Directly called agents: their answers, the receivers of these, and when they do not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, Semaphore};
use waybill_agent::testing::StepRequestBuilder;
use waybill_agent::{
    BoxFuture, DirectAgents, DirectConfig, Handler, Outcome, StartError, StepCall, StepRequest,
    WorkerPanicked, success,
};
use waybill_engine::{Epoch, LayoutShard, StepReply};

const ROOMY: DirectConfig = DirectConfig {
    in_flight_max: 1_000,
    in_flight_bytes_max: 1 << 20,
};

/// Performs each step once a permit is available; panics if the step is named `panic`.
struct Gated {
    gate: Semaphore,
    workers: usize,
    /// The number of attempts that were begun.
    entered: AtomicUsize,
}

impl Gated {
    fn new(permits: usize) -> Arc<Self> {
        Self::with_workers(4, permits)
    }

    fn with_workers(workers: usize, permits: usize) -> Arc<Self> {
        Arc::new(Self {
            gate: Semaphore::new(permits),
            workers,
            entered: AtomicUsize::new(0),
        })
    }
}

impl Handler for Gated {
    fn run<'a>(&'a self, call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        async {
            assert!(&*call.request.step != "panic", "the scripted panic");
            self.entered.fetch_add(1, Ordering::Relaxed);
            self.gate.acquire().await.expect("it stays open").forget();
            success(vec![("did".to_owned(), call.request.step.to_string())])
        }
        .boxed()
    }

    fn concurrency_max(&self) -> usize {
        self.workers
    }
}

/// Agents, and the notification of their answers.
struct Stage {
    agents: DirectAgents<usize>,
    notified: Arc<(Notify, AtomicUsize)>,
}

impl Stage {
    fn new(handlers: Vec<(&str, Arc<dyn Handler>)>, config: DirectConfig) -> Self {
        let notified = Arc::new((Notify::new(), AtomicUsize::new(0)));
        let notify = notified.clone();
        let handlers = handlers
            .into_iter()
            .map(|(name, handler)| (name.to_owned(), handler))
            .collect();
        let agents = DirectAgents::start(handlers, config, move || {
            notify.1.fetch_add(1, Ordering::Relaxed);
            notify.0.notify_one();
        });
        Self {
            agents: agents.expect("the agents can be started"),
            notified,
        }
    }

    /// Waits for this many answers.
    async fn answers(&self, count: usize) -> Vec<(usize, StepReply)> {
        let mut answers = Vec::new();
        while answers.len() < count {
            self.notified.0.notified().await;
            answers.extend(self.agents.take_answers());
        }
        assert_eq!(answers.len(), count);
        answers.sort_by_key(|(from, _)| *from);
        answers
    }
}

fn request(agent: &str, step: &str) -> StepRequest {
    StepRequestBuilder::new(agent, step).build()
}

#[tokio::test]
async fn each_answer_returns_to_the_requester_of_its_attempt() {
    let stage = Stage::new(
        vec![
            ("one", Gated::new(1_000) as Arc<dyn Handler>),
            ("two", Gated::new(1_000)),
        ],
        ROOMY,
    );
    assert!(stage.agents.has("two") && !stage.agents.has("three"));
    let requests: Vec<StepRequest> = (0..100)
        .map(|index| {
            request(
                if index % 2 == 0 { "one" } else { "two" },
                &format!("step-{index}"),
            )
        })
        .collect();
    stage.agents.ask(requests.iter().cloned().enumerate());
    let answers = stage.answers(100).await;
    for (index, (request, (from, reply))) in requests.iter().zip(answers).enumerate() {
        assert_eq!(from, index);
        let outputs = vec![("did".to_owned(), format!("step-{index}"))];
        assert_eq!(reply, StepReply::to(request, Outcome::Success { outputs }));
    }
}

/// A superseded owner in the same process: its request is refused when it comes, and also if it
/// waits already when a newer owner asks.
#[tokio::test]
async fn a_direct_request_of_a_superseded_owner_is_refused_and_not_performed() {
    let gated = Gated::with_workers(1, 0);
    let stage = Stage::new(vec![("one", gated.clone() as Arc<dyn Handler>)], ROOMY);
    let of_epoch = |step: &str, epoch: u64| StepRequest {
        shard: Some(LayoutShard {
            layout: 0,
            number: 4,
        }),
        ..StepRequestBuilder::new("one", step)
            .epoch(Epoch(epoch))
            .build()
    };
    stage.agents.ask([(0, of_epoch("running", 7))]);
    while gated.entered.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    stage.agents.ask([(1, of_epoch("queued", 7))]);
    stage.agents.ask([(2, of_epoch("newer", 8))]);
    stage.agents.ask([(3, of_epoch("late", 7))]);
    gated.gate.add_permits(10);
    for (from, reply) in stage.answers(4).await {
        match reply.outcome {
            Outcome::NotAttempted { error, .. } => {
                assert_eq!(error.code, "owner-superseded");
                assert!(from == 1 || from == 3, "{from}");
            }
            outcome => assert!(from == 0 || from == 2, "{from}: {outcome:?}"),
        }
    }
    assert_eq!(gated.entered.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_agent_without_capacity_refuses_work_and_blocks_no_other() {
    let (stuck, free) = (Gated::new(0), Gated::new(1_000));
    let narrow = DirectConfig {
        in_flight_max: 3,
        ..ROOMY
    };
    let stage = Stage::new(
        vec![("stuck", stuck.clone() as Arc<dyn Handler>), ("free", free)],
        narrow,
    );
    stage
        .agents
        .ask((0..5).map(|from| (from, request("stuck", "wait"))));
    stage.agents.ask([(9, request("free", "go"))]);
    let answers = stage.answers(3).await;
    for (from, reply) in &answers[..2] {
        assert!(*from >= 3, "those that came first are held");
        match &reply.outcome {
            Outcome::NotAttempted {
                error,
                retry_after_ms,
            } => {
                assert_eq!(error.code, "no-room");
                assert!(*retry_after_ms >= 100, "{retry_after_ms}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(answers[2].1.outcome, Outcome::Success { .. }));
    stuck.gate.add_permits(3);
    assert_eq!(stage.answers(3).await.len(), 3);
}

#[tokio::test]
async fn no_answer_is_sent_past_complete_by_and_a_panic_ends_one_attempt() {
    let stuck = Gated::new(0);
    let stage = Stage::new(
        vec![
            ("stuck", stuck as Arc<dyn Handler>),
            ("free", Gated::new(1_000)),
        ],
        ROOMY,
    );
    let hurried = |within| {
        StepRequestBuilder::new("stuck", "wait")
            .complete_within(within)
            .build()
    };
    stage.agents.ask([
        (0, hurried(Duration::ZERO)),
        (1, hurried(Duration::from_millis(20))),
    ]);
    tokio::time::sleep(Duration::from_millis(60)).await;
    stage
        .agents
        .ask([(2, request("free", "panic")), (3, request("free", "go"))]);
    let answers = stage.answers(2).await;
    let Outcome::Unknown { error } = &answers[0].1.outcome else {
        panic!("{:?}", answers[0]);
    };
    assert_eq!((answers[0].0, error.code.as_str()), (2, "agent-panicked"));
    assert_eq!(answers[1].0, 3);
}

#[tokio::test]
async fn new_answers_are_signalled_once_until_they_are_taken() {
    let stage = Stage::new(
        vec![("one", Gated::new(1_000) as Arc<dyn Handler>)],
        DirectConfig {
            in_flight_max: 0,
            ..ROOMY
        },
    );
    // Each agent has room for one request; a refused one is answered immediately.
    stage
        .agents
        .ask((0..10).map(|from| (from, request("one", "go"))));
    assert_eq!(stage.notified.1.load(Ordering::Relaxed), 1);
    assert_eq!(stage.agents.take_answers().len(), 9);
}

#[tokio::test]
async fn a_panic_outside_of_a_handler_is_notified_and_reported() {
    // Notifying is the caller's code that runs in a worker.
    let notified = Arc::new(Semaphore::new(0));
    let notify = {
        let notified = Arc::clone(&notified);
        move || {
            let is_first = notified.available_permits() == 0;
            notified.add_permits(1);
            assert!(!is_first, "a bug");
        }
    };
    let handler = ("one".to_owned(), Gated::new(1_000) as Arc<dyn Handler>);
    let agents = DirectAgents::start(vec![handler], ROOMY, notify).unwrap();
    assert_eq!(agents.check(), Ok(()));
    agents.ask([(0, request("one", "go"))]);
    let _both = notified.acquire_many(2).await.unwrap();
    assert_eq!(agents.check(), Err(WorkerPanicked));
}

#[tokio::test]
async fn missing_and_duplicate_agents_are_refused() {
    let handler = || ("one".to_owned(), Gated::new(0) as Arc<dyn Handler>);
    let start = |handlers| DirectAgents::<usize>::start(handlers, ROOMY, || {});
    assert!(matches!(start(Vec::new()), Err(StartError::NoAgent)));
    let twice = start(vec![handler(), handler()]);
    assert!(matches!(twice, Err(StartError::Twice { agent }) if agent == "one"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_hands_back_waiting_attempts_and_finishes_running_ones() {
    let stuck = Gated::new(0);
    let stage = Stage::new(vec![("stuck", stuck.clone() as Arc<dyn Handler>)], ROOMY);
    stage
        .agents
        .ask((0..6).map(|from| (from, request("stuck", "wait"))));
    // Four run, one per worker; two wait.
    while stuck.entered.load(Ordering::Relaxed) < 4 {
        tokio::task::yield_now().await;
    }
    let gate = stuck.clone();
    let opened = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        gate.gate.add_permits(4);
    });
    tokio::task::block_in_place(|| stage.agents.drain(Duration::from_secs(20)));
    opened.await.unwrap();
    let mut answers = stage.agents.take_answers();
    answers.sort_by_key(|(from, _)| *from);
    assert_eq!(answers.len(), 6);
    for (from, reply) in answers {
        match reply.outcome {
            Outcome::Success { .. } => assert!(from < 4),
            Outcome::NotAttempted { error, .. } => {
                assert_eq!((from >= 4, error.code.as_str()), (true, "agent-stopping"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn attempts_for_forgotten_requesters_are_skipped() {
    let stuck = Gated::new(0);
    let stage = Stage::new(vec![("stuck", stuck.clone() as Arc<dyn Handler>)], ROOMY);
    stage
        .agents
        .ask((0..10).map(|from| (from, request("stuck", "wait"))));
    while stuck.entered.load(Ordering::Relaxed) < 4 {
        tokio::task::yield_now().await;
    }
    stage.agents.forget(|from| *from >= 6);
    stuck.gate.add_permits(10);
    let answers = stage.answers(6).await;
    let froms: Vec<usize> = answers.iter().map(|(from, _)| *from).collect();
    assert_eq!(froms, [0, 1, 2, 3, 4, 5]);
    assert_eq!(stuck.entered.load(Ordering::Relaxed), 6);
}
