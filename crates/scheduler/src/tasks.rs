//! Tasks whose results the loop waits for.
//!
//! What must hold: **every task answers**. The loop sets a flag while a task is in flight, and
//! starts no other of its kind until the task has answered. So a panic in a task is an answer, too.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use waybill_scheduler_core::{Input, Panicked, StoreFailure, StoreFailureKind, Task, TaskError};
use waybill_store::StoreError;
use waybill_telemetry::chain;

use super::incoming::Inputs;
use super::metrics::TASK_PANICS;

/// Runs `work` and sends its result, converted by `input`, to the loop.
pub(super) fn spawn<T, E: From<Panicked>>(
    runtime: &Handle,
    sender: &Inputs,
    task: Task,
    work: impl Future<Output = Result<T, E>> + Send + 'static,
    input: impl FnOnce(Result<T, E>) -> Input + Send + 'static,
) {
    let sender = sender.clone();
    runtime.spawn(async move {
        let ended = AssertUnwindSafe(work).catch_unwind().await;
        let result = ended.unwrap_or_else(|payload| Err(E::from(report_panic(task, &*payload))));
        // The send fails only after the loop has ended.
        let _ = sender.send(input(result).into());
    });
}

/// Runs `work` without waiting for its result. A panic in it is counted and logged.
pub(super) fn spawn_unawaited(
    runtime: &Handle,
    task: Task,
    work: impl Future<Output = ()> + Send + 'static,
) {
    runtime.spawn(async move {
        if let Err(payload) = AssertUnwindSafe(work).catch_unwind().await {
            report_panic(task, &*payload);
        }
    });
}

/// Counts and logs the panic of a task.
pub(super) fn report_panic(task: Task, payload: &(dyn Any + Send)) -> Panicked {
    let panicked = Panicked::new(task, payload);
    TASK_PANICS.of([task.name()]).increment(1);
    tracing::error!(
        task = task.name(),
        panic = panicked.message,
        "a task panicked"
    );
    panicked
}

/// The failure of a task on the store.
pub(super) fn failed(error: &StoreError) -> TaskError {
    let kind = match error {
        StoreError::Full { .. } | StoreError::Reopening { .. } => StoreFailureKind::Interrupted,
        StoreError::Unavailable { .. } | StoreError::Unknown { .. } => StoreFailureKind::Unknown,
        StoreError::RowTooLong { .. }
        | StoreError::OutOfReach(_)
        | StoreError::Unusable { .. }
        | StoreError::Corrupt { .. }
        | StoreError::Damaged(_)
        | StoreError::Locked { .. } => StoreFailureKind::Rejected,
    };
    TaskError::Store(StoreFailure {
        kind,
        message: chain(error),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use waybill_state::Layout;

    use super::*;
    use crate::incoming::Incoming;

    #[test]
    fn a_task_that_panics_returns_its_panic_message() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (sender, inputs) = mpsc::channel();
        let answer = |work: fn() -> Result<Option<Layout>, TaskError>| {
            let work = async move { work() };
            spawn(runtime.handle(), &sender, Task::Layout, work, Input::Layout);
            let Incoming::Input(input) = inputs.recv().unwrap() else {
                panic!("a task sends an input");
            };
            match *input {
                Input::Layout(Err(error)) => error.to_string(),
                other => panic!("{other:?}"),
            }
        };
        let text = answer(|| panic!("a row"));
        assert_eq!(text, "task layout panicked: a row");
        let text = answer(|| panic!("row {}", 7));
        assert_eq!(text, "task layout panicked: row 7");
    }
}
