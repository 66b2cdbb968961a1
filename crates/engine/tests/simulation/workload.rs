//! What is asked for in a run: two workflows, and requests of every kind.

use std::time::Duration;

use waybill_engine::{
    Backoff, Condition, IdOrigin, OperationId, StepDefinition, Timestamp, Workflow,
    WorkflowDefinition, Workflows,
};

use crate::rng::Rng;
use crate::world::{Record, create};

/// A chain with a condition, and a diamond.
pub fn workflows(rng: &mut Rng) -> Workflows {
    let mut step =
        |name: &str, after: Option<&[&str]>, when: Option<(&str, &str)>| StepDefinition {
            name: name.to_owned(),
            agent: format!("{name}-agent"),
            after: after.map(|names| names.iter().map(|&name| name.to_owned()).collect()),
            when: when.map(|(step, equals)| Condition {
                step: step.to_owned(),
                output: "needed".to_owned(),
                equals: equals.to_owned(),
            }),
            complete_by: Duration::from_millis(50 + rng.below(8_000)),
            failures_max: 1 + u32::try_from(rng.below(8)).unwrap(),
            backoff: Backoff {
                initial: Duration::from_millis(1 + rng.below(300)),
                factor: 2.0,
                max: Duration::from_secs(1 + rng.below(10)),
            },
        };
    let definitions = [
        WorkflowDefinition {
            name: "chain".to_owned(),
            version: 2,
            steps: vec![
                step("account", None, None),
                step("package", None, None),
                step("transport", None, None),
                step("drone", None, Some(("transport", "no"))),
                step("delivery", None, None),
            ],
        },
        WorkflowDefinition {
            name: "diamond".to_owned(),
            version: 1,
            steps: vec![
                step("join", Some(&["left", "right"]), None),
                step("left", Some(&["top"]), Some(("top", "yes"))),
                step("right", Some(&["top"]), None),
                step("top", Some(&[]), None),
            ],
        },
    ];
    let workflows = definitions.map(|definition| Workflow::try_from(definition).unwrap());
    Workflows::new(workflows.into()).unwrap()
}

/// Requests, last first: fresh ones, repeats, conflicts, strays and rubbish.
pub fn requests(rng: &mut Rng, start: Timestamp) -> Vec<(Timestamp, Record)> {
    let mut records = Vec::new();
    let mut callers: Vec<OperationId> = Vec::new();
    for _ in 0..4 + rng.below(14) {
        let at = start + Duration::from_micros(rng.below(3_000_000));
        let workflow = match rng.below(20) {
            0 => "forgotten",
            1..=9 => "chain",
            _ => "diamond",
        };
        let fresh = OperationId(rng.uuid());
        match rng.below(20) {
            0 => records.push((at, Record::Poison)),
            1 => records.push((
                at,
                Record::Misplaced {
                    already_rerouted: rng.chance(50),
                },
            )),
            2..=3 => {
                // Sent home by another scheduler, twice.
                for _ in 0..2 {
                    let at = at + Duration::from_micros(rng.below(3_000_000));
                    let request = Box::new(create(fresh, IdOrigin::Server, workflow, 1, start));
                    let rerouted = true;
                    records.push((at, Record::Create { request, rerouted }));
                }
            }
            4..=9 => {
                let known = callers.get(rng.index(callers.len() + 1)).copied();
                let id = known.unwrap_or(fresh);
                callers.push(id);
                let hash = if rng.chance(80) { 1 } else { 2 };
                let request = Box::new(create(id, IdOrigin::Caller, "chain", hash, start));
                let rerouted = false;
                records.push((at, Record::Create { request, rerouted }));
            }
            _ => {
                let request = Box::new(create(fresh, IdOrigin::Server, workflow, 1, start));
                let rerouted = false;
                records.push((at, Record::Create { request, rerouted }));
            }
        }
    }
    records.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    records
}
