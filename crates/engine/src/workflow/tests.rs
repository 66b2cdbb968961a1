use super::*;
use crate::definition::{
    CancelPolicy, CompensationDefinition, Condition, OnFailure, RetryPolicy, StepDefinition,
    StepKind, WorkflowDefinition,
};

fn step(name: &str) -> StepDefinition {
    StepDefinition::new(name, format!("{name}-agent"))
}

fn after(name: &str, after: &[&str]) -> StepDefinition {
    StepDefinition {
        after: Some(after.iter().map(|&name| name.to_owned()).collect()),
        ..step(name)
    }
}

fn when(name: &str, read: &str) -> StepDefinition {
    StepDefinition {
        when: Some(Condition {
            step: read.to_owned(),
            output: "booked".to_owned(),
            equals: "true".to_owned(),
        }),
        ..step(name)
    }
}

fn compile(steps: Vec<StepDefinition>) -> Result<Workflow, WorkflowError> {
    Workflow::try_from(WorkflowDefinition::new("order", 1, steps))
}

fn names(workflow: &Workflow, steps: impl Iterator<Item = usize>) -> Vec<&str> {
    steps.map(|index| &*workflow.step_names()[index]).collect()
}

#[test]
fn a_step_depends_on_the_previous_one_by_default() {
    let workflow = compile(vec![step("a"), step("b"), after("c", &[]), step("d")]).unwrap();
    let before: Vec<_> = workflow
        .steps()
        .iter()
        .map(|step| names(&workflow, step.after.iter()))
        .collect();
    assert_eq!(before, [vec![], vec!["a"], vec![], vec!["c"]]);
}

#[test]
fn steps_are_sorted_after_their_dependencies() {
    let workflow = compile(vec![
        after("join", &["left", "right"]),
        after("left", &["top"]),
        after("right", &["top"]),
        after("top", &[]),
    ])
    .unwrap();
    let order = workflow.order().iter().copied();
    assert_eq!(names(&workflow, order), ["top", "left", "right", "join"]);
    let ancestors = names(&workflow, workflow.steps()[0].ancestors.iter());
    assert_eq!(ancestors, ["left", "right", "top"]);
    assert_eq!(workflow.step_index("right"), Some(2));
    assert_eq!(workflow.step_index("wrong"), None);
}

#[test]
fn an_invalid_definition_is_refused_with_its_path() {
    let long = "x".repeat(65);
    let many = (0..65).map(|count| step(&format!("s{count}"))).collect();
    let second = Duration::from_secs(1);
    let week = DURATION_MAX + Duration::from_millis(1);
    let retry = |retry| StepDefinition { retry, ..step("a") };
    let undo_retry = |retry| StepDefinition {
        compensation: Some(CompensationDefinition {
            retry,
            ..CompensationDefinition::default()
        }),
        ..step("a")
    };
    let cases: Vec<(Vec<StepDefinition>, &str)> = vec![
        (vec![], "workflow \"order\" has no steps"),
        (
            many,
            "workflow \"order\" has 65 steps; at most 64 are allowed",
        ),
        (
            vec![step("A")],
            "steps.name \"A\" must be 1 to 64 of a-z, 0-9 and -",
        ),
        (vec![step("")], "steps.name \"\" must be"),
        (vec![step(&long)], "must be 1 to 64"),
        (
            vec![StepDefinition {
                agent: "a b".to_owned(),
                ..step("a")
            }],
            "steps.agent \"a b\" must be",
        ),
        (vec![step("a"), step("a")], "has two steps named \"a\""),
        (
            vec![after("a", &["z"])],
            "step \"a\": after names \"z\", which is not a step of this workflow",
        ),
        (
            vec![step("a"), when("b", "z")],
            "step \"b\": when names \"z\", which is not a step of this workflow",
        ),
        (
            vec![step("a"), after("b", &["c"]), after("c", &["b"])],
            "these steps form a cycle: b, c",
        ),
        (vec![after("a", &["a"])], "form a cycle: a"),
        (
            vec![after("a", &["b"]), after("b", &["b"])],
            "these steps form a cycle: b",
        ),
        (
            vec![when("a", "b"), step("b")],
            "step \"a\": when reads step \"b\", which does not come before this step",
        ),
        (
            vec![when("a", "a")],
            "step \"a\": when reads step \"a\", which does not come before this step",
        ),
        (
            vec![StepDefinition {
                timeout: Duration::ZERO,
                ..step("a")
            }],
            "step \"a\": timeout must be more than 0 and at most 7d",
        ),
        (
            vec![StepDefinition {
                timeout: week,
                ..step("a")
            }],
            "timeout must be",
        ),
        (
            vec![retry(RetryPolicy {
                max_attempts: Some(0),
                ..RetryPolicy::default()
            })],
            "retry.maxAttempts must be between 1 and 1000",
        ),
        (
            vec![retry(RetryPolicy {
                initial_interval: Duration::ZERO,
                ..RetryPolicy::default()
            })],
            "retry.initialInterval must be",
        ),
        (
            vec![retry(RetryPolicy {
                max_interval: week,
                ..RetryPolicy::default()
            })],
            "retry.maxInterval must be more than 0",
        ),
        (
            vec![retry(RetryPolicy {
                initial_interval: 2 * second,
                max_interval: second,
                ..RetryPolicy::default()
            })],
            "retry.maxInterval must be at least retry.initialInterval; the default is 30s",
        ),
        (
            vec![retry(RetryPolicy {
                multiplier: 0.5,
                ..RetryPolicy::default()
            })],
            "retry.multiplier must be between 1 and 100",
        ),
        (
            vec![retry(RetryPolicy {
                multiplier: f64::NAN,
                ..RetryPolicy::default()
            })],
            "retry.multiplier must be",
        ),
        (
            vec![retry(RetryPolicy {
                long_interval: Some(week),
                ..RetryPolicy::default()
            })],
            "retry.longInterval must be more than 0 and at most 7d",
        ),
        (
            vec![retry(RetryPolicy {
                long_interval: Some(second),
                ..RetryPolicy::default()
            })],
            "retry.longInterval must be omitted unless onFailure is retry",
        ),
        (
            vec![undo_retry(RetryPolicy {
                max_attempts: Some(1_001),
                ..RetryPolicy::default()
            })],
            "compensation.retry.maxAttempts must be between 1 and 1000",
        ),
        (
            vec![undo_retry(RetryPolicy {
                long_interval: Some(second),
                ..RetryPolicy::default()
            })],
            "compensation.retry.longInterval must be omitted",
        ),
    ];
    for (steps, expected) in cases {
        let error = compile(steps).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn sixty_four_steps_are_accepted() {
    let steps = (0..64).map(|count| step(&format!("s{count}"))).collect();
    let workflow = compile(steps).unwrap();
    assert_eq!(workflow.steps()[63].ancestors.iter().count(), 63);
    assert!(workflow.steps()[63].after.contains(62));
}

#[test]
fn new_operations_get_the_newest_version_and_every_version_is_kept() {
    let version = |version| {
        let mut workflow = compile(vec![step("a"), after("b", &[])]).unwrap();
        workflow.version = version;
        workflow
    };
    let workflows = Workflows::new(vec![version(2), version(10), version(9)]).unwrap();
    assert_eq!(workflows.newest("order").unwrap().version(), 10);
    assert_eq!(workflows.get("order", 9).unwrap().version(), 9);
    assert_eq!(workflows.get("order", 3), None);
    assert_eq!(workflows.newest("other"), None);
    assert_eq!(workflows.iter().count(), 3);
    let agents = workflows.agents();
    assert_eq!(agents, ["a-agent".into(), "b-agent".into()]);

    let error = Workflows::new(vec![version(2), version(2)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "workflow \"order\" is defined twice with version 2"
    );
}

fn pivot(name: &str) -> StepDefinition {
    StepDefinition {
        kind: StepKind::Pivot,
        ..step(name)
    }
}

fn irreversible(name: &str) -> StepDefinition {
    StepDefinition {
        kind: StepKind::Irreversible,
        ..step(name)
    }
}

fn undone_with(name: &str, needs: &[&str]) -> StepDefinition {
    StepDefinition {
        compensation: Some(CompensationDefinition {
            needs: needs.iter().map(|&need| need.to_owned()).collect(),
            ..CompensationDefinition::default()
        }),
        ..step(name)
    }
}

fn on_failure(step: StepDefinition, on_failure: OnFailure) -> StepDefinition {
    StepDefinition {
        on_failure: Some(on_failure),
        ..step
    }
}

#[test]
fn an_unsafe_workflow_is_refused_with_its_fix() {
    let beside = |step: StepDefinition| StepDefinition {
        after: Some(Vec::new()),
        ..step
    };
    for (steps, expected) in [
        (
            vec![irreversible("mail"), step("pay")],
            "step \"mail\" cannot be undone, but \"pay\" may fail after it",
        ),
        (
            vec![irreversible("mail"), beside(step("pay"))],
            "\"pay\" may fail after it",
        ),
        (
            vec![pivot("pay"), beside(step("mail"))],
            "pivot \"pay\" and step \"mail\" may run at the same time",
        ),
        (
            vec![
                pivot("pay"),
                on_failure(step("ship"), OnFailure::Compensate),
            ],
            "onFailure cannot be compensate after pivot \"pay\"",
        ),
        (
            vec![undone_with("pay", &["ship.id"]), step("ship")],
            "compensation.needs has \"ship.id\"",
        ),
        (
            vec![undone_with("pay", &["receipt"])],
            "compensation.needs has \"receipt\"",
        ),
        (
            vec![StepDefinition {
                kind: StepKind::Pure,
                ..undone_with("look", &[])
            }],
            "a step of kind pure cannot have a compensation",
        ),
    ] {
        let error = compile(steps).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn a_safe_workflow_is_accepted() {
    for steps in [
        vec![step("pay"), irreversible("mail")],
        vec![pivot("pay"), irreversible("mail"), step("ship")],
        vec![
            irreversible("mail"),
            on_failure(step("note"), OnFailure::Park),
        ],
        vec![
            step("stock"),
            undone_with("pay", &["pay.receipt", "stock.id"]),
        ],
    ] {
        compile(steps).unwrap();
    }
}

#[test]
fn after_a_pivot_a_failed_step_parks_unless_it_is_retried() {
    let steps = vec![
        step("stock"),
        pivot("pay"),
        step("ship"),
        on_failure(step("note"), OnFailure::Retry),
    ];
    let workflow = compile(steps).unwrap();
    let policies: Vec<_> = workflow
        .steps()
        .iter()
        .map(|step| step.on_failure)
        .collect();
    assert_eq!(
        policies,
        [
            OnFailure::Compensate,
            OnFailure::Compensate,
            OnFailure::Park,
            OnFailure::Retry
        ]
    );
}

#[test]
fn a_workflow_that_can_always_be_cancelled_has_no_step_that_cannot_be_undone() {
    let always = |steps| {
        Workflow::try_from(WorkflowDefinition {
            cancel: CancelPolicy::Always,
            ..WorkflowDefinition::new("order", 1, steps)
        })
    };
    assert!(always(vec![step("pay")]).is_ok());
    for last in [pivot("pay"), irreversible("pay")] {
        let error = always(vec![last]).unwrap_err().to_string();
        assert!(error.contains("but step \"pay\""), "{error}");
    }
}

#[test]
fn a_retry_schedule_longer_than_the_deadline_is_refused_with_both() {
    let within = |deadline| {
        Workflow::try_from(WorkflowDefinition {
            deadline: Some(Duration::from_secs(deadline)),
            ..WorkflowDefinition::new("order", 1, vec![step("pay")])
        })
    };
    // Eight attempts of ten seconds, and waits of 0.2, 0.4, ... 12.8 seconds between them.
    assert!(within(106).is_ok());
    let error = within(105).unwrap_err().to_string();
    assert!(error.contains("may take 105.4s"), "{error}");
}

#[test]
fn sensitive_fields_are_named_by_json_pointers() {
    let checked = |pointers: &[&str]| {
        let pointers: Vec<_> = pointers.iter().map(|it| it.to_string()).collect();
        let of_input = Workflow::try_from(WorkflowDefinition {
            sensitive: pointers.clone(),
            ..WorkflowDefinition::new("order", 1, vec![step("a")])
        });
        let of_outputs = StepDefinition {
            sensitive: pointers,
            ..step("a")
        };
        let of_outputs = WorkflowDefinition::new("order", 1, vec![of_outputs]);
        (of_input, Workflow::try_from(of_outputs))
    };
    let (of_input, of_outputs) = checked(&["/card", "/people/1/a~1b~0c"]);
    assert_eq!(
        of_input.unwrap().sensitive(),
        ["/card", "/people/1/a~1b~0c"]
    );
    let of_step = of_outputs.unwrap().steps()[0].sensitive.clone();
    assert_eq!(of_step, ["/card", "/people/1/a~1b~0c"]);
    let many = vec!["/a"; 65];
    for wrong in [
        &["card"][..],
        &[""],
        &["/"],
        &["/a~2"],
        &["/a~"],
        &["/a", "b"],
        &many,
    ] {
        let (of_input, of_outputs) = checked(wrong);
        let workflow = "order".to_owned();
        assert_eq!(
            of_input,
            Err(WorkflowError::Sensitive { workflow }),
            "{wrong:?}"
        );
        let error = of_outputs.unwrap_err();
        assert!(
            matches!(&error, WorkflowError::Value { field, .. } if field == "sensitive"),
            "{error}"
        );
    }
}
