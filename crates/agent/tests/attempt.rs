//! Properties of an attempt with any action: to perform, to undo or to probe.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use waybill_agent::testing::{StepRequestBuilder, attempt};
use waybill_agent::{Action, BoxFuture, Handler, Outcome, StepCall, StepRequest, success};

const ACTIONS: [Action; 3] = [Action::Run, Action::Compensate, Action::Probe];

fn request(action: Action) -> StepRequestBuilder {
    StepRequestBuilder::new("painter", "paint").action(action)
}

fn asked(action: Action) -> StepRequest {
    request(action).build()
}

/// Answers with the name of the called function.
struct Echo;

impl Echo {
    fn says(word: &str) -> BoxFuture<'_, Outcome> {
        Box::pin(async move { success(vec![("called".to_owned(), word.to_owned())]) })
    }
}

impl Handler for Echo {
    fn run<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        Self::says("run")
    }

    fn compensate<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        Self::says("compensate")
    }

    fn probe<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        Self::says("probe")
    }
}

#[tokio::test]
async fn every_action_calls_its_own_function() {
    for (action, word) in ACTIONS.into_iter().zip(["run", "compensate", "probe"]) {
        let outputs = vec![("called".to_owned(), word.to_owned())];
        assert_eq!(
            attempt(&Echo, asked(action)).await,
            Some(Outcome::Success { outputs })
        );
    }
}

/// Panics before it awaits anything, or after.
struct Clumsy {
    awaits_first: bool,
}

impl Clumsy {
    fn falls(&self, over: &'static str) -> BoxFuture<'_, Outcome> {
        assert!(self.awaits_first, "over {over} immediately");
        Box::pin(async move {
            tokio::task::yield_now().await;
            panic!("over {over} later");
        })
    }
}

impl Handler for Clumsy {
    fn run<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        self.falls("Run")
    }

    fn compensate<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        self.falls("Compensate")
    }

    fn probe<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        self.falls("Probe")
    }
}

#[tokio::test]
async fn a_panic_leaves_the_outcome_of_any_action_unknown() {
    for (awaits_first, when) in [(false, "immediately"), (true, "later")] {
        for action in ACTIONS {
            let outcome = attempt(&Clumsy { awaits_first }, asked(action)).await;
            let Some(Outcome::Unknown { error }) = outcome else {
                panic!("{action:?}: {outcome:?}");
            };
            assert_eq!(error.code, "agent-panicked");
            let text = format!("the agent panicked: over {} {when}", action.as_str());
            assert_eq!(error.message, text);
        }
    }
}

/// Never ends on its own; counts how often it was begun and dropped.
#[derive(Default)]
struct Endless {
    begun: AtomicUsize,
    dropped: AtomicUsize,
}

struct CountsItsDrop<'a>(&'a AtomicUsize);

impl Drop for CountsItsDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Handler for Endless {
    fn run<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        Box::pin(async {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let _guard = CountsItsDrop(&self.dropped);
            std::future::pending().await
        })
    }

    fn compensate<'a>(&'a self, call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        self.run(call)
    }

    fn probe<'a>(&'a self, call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        self.run(call)
    }
}

#[tokio::test]
async fn no_action_starts_continues_or_is_answered_past_complete_by() {
    for action in ACTIONS {
        let handler = Endless::default();
        let counts = || {
            let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
            (count(&handler.begun), count(&handler.dropped))
        };
        let past = request(action).complete_within(Duration::ZERO).build();
        assert_eq!(attempt(&handler, past).await, None, "{action:?}");
        assert_eq!(counts(), (0, 0), "{action:?}");
        let soon = request(action).complete_within(Duration::from_millis(30));
        assert_eq!(attempt(&handler, soon.build()).await, None, "{action:?}");
        assert_eq!(counts(), (1, 1), "{action:?}");
    }
}

/// Never ends on its own, and panics when it is dropped.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

impl Handler for PanicsWhenDropped {
    fn run<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        Box::pin(async {
            let _guard = Self;
            std::future::pending().await
        })
    }
}

#[tokio::test]
async fn a_panic_of_an_attempt_that_its_deadline_ends_is_caught() {
    // Forgotten, because dropping it panics as well.
    let handler = std::mem::ManuallyDrop::new(PanicsWhenDropped);
    let soon = request(Action::Run).complete_within(Duration::from_millis(30));
    assert_eq!(attempt(&*handler, soon.build()).await, None);
}

/// Performs steps, and supports neither undo nor probe.
struct Simple;

impl Handler for Simple {
    fn run<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        Box::pin(async { success(Vec::new()) })
    }
}

#[tokio::test]
async fn an_agent_that_only_performs_refuses_to_undo_and_to_probe() {
    for (action, code) in [
        (Action::Compensate, "compensation-unknown"),
        (Action::Probe, "probe-unknown"),
    ] {
        let outcome = attempt(&Simple, asked(action)).await;
        let Some(Outcome::Permanent { error }) = outcome else {
            panic!("{action:?}: {outcome:?}");
        };
        assert_eq!(error.code, code);
    }
}
