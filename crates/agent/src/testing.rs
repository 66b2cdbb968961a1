//! The test kit: a handler is run against one request, without Kafka.
//!
//! ```
//! use std::time::Duration;
//!
//! use waybill_agent::testing::{StepRequestBuilder, attempt};
//! use waybill_agent::{BoxFuture, Handler, Outcome, StepCall, success};
//!
//! struct Greeter;
//!
//! impl Handler for Greeter {
//!     fn run<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
//!         Box::pin(async { success(vec![("greeting".into(), "hello".into())]) })
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let request = StepRequestBuilder::new("greeter", "greet")
//!     .input(r#"{"name":"Ada"}"#)
//!     .complete_within(Duration::from_secs(5))
//!     .build();
//! let outcome = attempt(&Greeter, request).await;
//! assert!(matches!(outcome, Some(Outcome::Success { .. })));
//! # });
//! ```

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    Action, Attempt, Epoch, Nonce, OperationId, Outcome, PartitionId, StepRequest, Timestamp,
};

use crate::handler::Handler;
use crate::run::{self, wall_clock};

/// Builds a [`StepRequest`] with a value for every field.
#[derive(Clone, Debug)]
pub struct StepRequestBuilder {
    request: StepRequest,
}

impl StepRequestBuilder {
    /// A first attempt at `step` of a fresh operation, for `agent`, with the input `{}` and 30
    /// seconds until complete-by.
    #[must_use]
    pub fn new(agent: &str, step: &str) -> Self {
        Self {
            request: StepRequest {
                operation: OperationId(Uuid::now_v7()),
                workflow: "test".into(),
                step: step.into(),
                agent: agent.into(),
                attempt: Attempt(1),
                epoch: Epoch(1),
                action: Action::Run,
                complete_by: wall_clock() + Duration::from_secs(30),
                tenant: "".into(),
                input: Arc::from(&b"{}"[..]),
                results: Vec::new(),
                reply_partition: PartitionId(0),
                shard: None,
                nonce: Some(Nonce(Uuid::new_v4().into_bytes())),
                traceparent: None,
            },
        }
    }

    /// Sets the operation.
    #[must_use]
    pub fn operation(mut self, operation: OperationId) -> Self {
        self.request.operation = operation;
        self
    }

    /// Sets the workflow's name.
    #[must_use]
    pub fn workflow(mut self, workflow: &str) -> Self {
        self.request.workflow = workflow.into();
        self
    }

    /// Sets the attempt.
    #[must_use]
    pub fn attempt(mut self, attempt: Attempt) -> Self {
        self.request.attempt = attempt;
        self
    }

    /// Sets the action.
    #[must_use]
    pub fn action(mut self, action: Action) -> Self {
        self.request.action = action;
        self
    }

    /// Sets the epoch of the requesting owner.
    #[must_use]
    pub fn epoch(mut self, epoch: Epoch) -> Self {
        self.request.epoch = epoch;
        self
    }

    /// Sets the tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: &str) -> Self {
        self.request.tenant = tenant.into();
        self
    }

    /// Sets the operation's input: a JSON object.
    #[must_use]
    pub fn input(mut self, json: &str) -> Self {
        self.request.input = Arc::from(json.as_bytes());
        self
    }

    /// Adds an output of an earlier step.
    #[must_use]
    pub fn result(mut self, step: &str, name: &str, value: &str) -> Self {
        self.request
            .results
            .push((format!("{step}.{name}"), value.to_owned()));
        self
    }

    /// Sets complete-by to this long from now.
    #[must_use]
    pub fn complete_within(self, time: Duration) -> Self {
        self.complete_by(wall_clock() + time)
    }

    /// Sets complete-by.
    #[must_use]
    pub fn complete_by(mut self, at: Timestamp) -> Self {
        self.request.complete_by = at;
        self
    }

    /// Sets the partition to answer to.
    #[must_use]
    pub fn reply_partition(mut self, partition: PartitionId) -> Self {
        self.request.reply_partition = partition;
        self
    }

    /// The request.
    #[must_use]
    pub fn build(self) -> StepRequest {
        self.request
    }
}

/// Runs one attempt as the run loop does: until complete-by, with panics caught. `None` means no
/// answer: complete-by passed first.
pub async fn attempt(handler: &dyn Handler, request: StepRequest) -> Option<Outcome> {
    run::attempt(handler, request).await
}
