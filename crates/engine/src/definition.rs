//! Workflow definitions as read from files: data, checked only for their shape.
//!
//! The engine has no parser; the program reads these values from YAML. The conversion to a
//! [`Workflow`](crate::Workflow) validates a definition.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_units::{DurationText, optional_duration};

/// A workflow.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkflowDefinition {
    /// Its name: `[a-z0-9-]`, at most 64 characters.
    #[schemars(regex(pattern = "^[a-z0-9-]{1,64}$"))]
    pub name: String,
    /// Its version. Operations keep the version that they started with.
    pub version: u32,
    /// Until when a caller may cancel an operation.
    #[serde(default)]
    pub cancel: CancelPolicy,
    /// What happens after a step has failed for good, unless the step overrides it.
    #[serde(default)]
    pub on_failure: Option<OnFailure>,
    /// How long an operation may take from its creation, if its caller sets no deadline.
    #[serde(default, deserialize_with = "optional_duration")]
    #[schemars(with = "DurationText")]
    pub deadline: Option<Duration>,
    /// The sensitive fields of the input: JSON pointers, at most 64. The API and the
    /// commands show `***` in their place.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub sensitive: Vec<String>,
    /// Its steps, at most 64.
    #[schemars(length(min = 1, max = 64))]
    pub steps: Vec<StepDefinition>,
}

impl WorkflowDefinition {
    /// A workflow with everything else at its default.
    #[must_use]
    pub fn new(name: impl Into<String>, version: u32, steps: Vec<StepDefinition>) -> Self {
        Self {
            name: name.into(),
            version,
            cancel: CancelPolicy::default(),
            on_failure: None,
            deadline: None,
            sensitive: Vec::new(),
            steps,
        }
    }
}

/// Until when a caller may cancel an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CancelPolicy {
    /// Until the operation is final.
    #[default]
    UntilFinal,
    /// Also after it is `Processed`: then all steps are undone.
    Always,
}

/// What happens after a step has failed for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// The completed steps are undone.
    Compensate,
    /// The operation is parked, and operators are alerted.
    Park,
    /// The step is retried at long intervals without limit. (A refusal ends that.)
    Retry,
}

/// Whether and how a step can be undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum StepKind {
    /// It has no effect, so it needs no undo.
    Pure,
    /// Its agent can undo it.
    #[default]
    Compensable,
    /// Once it is completed, the operation only goes forward.
    Pivot,
    /// It cannot be undone.
    Irreversible,
}

/// How a step is undone.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CompensationDefinition {
    /// A person undoes it, and confirms that.
    pub manual: bool,
    /// The agent that undoes it; by default the one that performs it.
    pub agent: Option<String>,
    /// How long one attempt may take.
    #[serde(with = "DurationText")]
    pub timeout: Duration,
    /// How often and when an undo is retried.
    pub retry: RetryPolicy,
    /// How long after its complete-by an attempt of unknown outcome may still take effect. The step
    /// is not undone before that.
    #[serde(with = "DurationText")]
    pub settle: Duration,
    /// Whether the step's service refuses late requests to perform the step after it was undone. By
    /// default it does not, and an undo counts only once no late attempt can follow it.
    pub tombstones: bool,
    /// The outputs that the agent needs to undo the step, as `step.output`: of the step itself, or
    /// of earlier steps.
    pub needs: Vec<String>,
}

impl Default for CompensationDefinition {
    fn default() -> Self {
        Self {
            manual: false,
            agent: None,
            timeout: StepDefinition::timeout_default(),
            retry: RetryPolicy::default(),
            settle: Duration::from_secs(1),
            tombstones: false,
            needs: Vec::new(),
        }
    }
}

impl CompensationDefinition {
    /// The default of `retry.maxAttempts`: compensations have more attempts than steps.
    #[must_use]
    pub const fn max_attempts_default() -> u32 {
        16
    }
}

/// A step of a workflow.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepDefinition {
    /// Its name, unique in the workflow: `[a-z0-9-]`, at most 64 characters.
    #[schemars(regex(pattern = "^[a-z0-9-]{1,64}$"))]
    pub name: String,
    /// The agent that performs it: `[a-z0-9-]`, at most 64 characters.
    #[schemars(regex(pattern = "^[a-z0-9-]{1,64}$"))]
    pub agent: String,
    /// The steps that must be completed or skipped first; by default the preceding step in the
    /// file, if there is one. Empty: none.
    #[serde(default)]
    pub after: Option<Vec<String>>,
    /// The step is skipped unless this condition holds.
    #[serde(default)]
    pub when: Option<Condition>,
    /// How long one attempt may take, for example `10s`.
    #[serde(default = "StepDefinition::timeout_default", with = "DurationText")]
    pub timeout: Duration,
    /// Whether and how it can be undone.
    #[serde(default)]
    pub kind: StepKind,
    /// How it is undone; optional, and for `compensable` steps only.
    #[serde(default)]
    pub compensation: Option<CompensationDefinition>,
    /// What happens after it has failed for good; by default as the workflow says.
    #[serde(default)]
    pub on_failure: Option<OnFailure>,
    /// Whether the agent is asked if an attempt of unknown outcome took effect, before the attempt
    /// is repeated.
    #[serde(default)]
    pub probe: bool,
    /// The input fields that the step uses and that a reschedule may change. They are fixed once
    /// the step was requested.
    #[serde(default)]
    pub uses: Vec<String>,
    /// The sensitive outputs: JSON pointers, such as `/token`, at most 64.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub sensitive: Vec<String>,
    /// How often and when it is retried.
    #[serde(default)]
    pub retry: RetryPolicy,
}

impl StepDefinition {
    /// A step with default values for all other fields.
    #[must_use]
    pub fn new(name: impl Into<String>, agent: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            agent: agent.into(),
            after: None,
            when: None,
            timeout: Self::timeout_default(),
            kind: StepKind::default(),
            compensation: None,
            on_failure: None,
            probe: false,
            uses: Vec::new(),
            sensitive: Vec::new(),
            retry: RetryPolicy::default(),
        }
    }

    /// The default of `timeout`.
    #[must_use]
    pub const fn timeout_default() -> Duration {
        Duration::from_secs(10)
    }

    /// The default of `retry.maxAttempts`.
    #[must_use]
    pub const fn max_attempts_default() -> u32 {
        8
    }

    /// The default of `retry.longInterval`.
    #[must_use]
    pub const fn long_interval_default() -> Duration {
        Duration::from_secs(10 * 60)
    }
}

/// How many times an action is attempted, and how the waits between attempts grow:
/// `initialInterval`, multiplied by `multiplier` after each failure, up to `maxInterval`. The
/// actual wait is between half and all of it, so that steps that failed together do not retry
/// together.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// After this many failed or timed-out attempts it fails for good; by default 8 for a step, 16
    /// for its compensation.
    pub max_attempts: Option<u32>,
    /// The wait after the first failure.
    #[serde(with = "DurationText")]
    pub initial_interval: Duration,
    /// The factor by which the wait grows after each failure.
    pub multiplier: f64,
    /// The longest wait.
    #[serde(with = "DurationText")]
    pub max_interval: Duration,
    /// With `onFailure: retry`, the wait before each attempt after `maxAttempts`; by default 10
    /// minutes. Not for compensations.
    #[serde(deserialize_with = "optional_duration")]
    #[schemars(with = "DurationText")]
    pub long_interval: Option<Duration>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: None,
            initial_interval: Duration::from_millis(200),
            multiplier: 2.0,
            max_interval: Duration::from_secs(30),
            long_interval: None,
        }
    }
}

/// A condition on an output of an earlier step. It holds if that step is completed and the output
/// has the value. A skipped step has no outputs, so the condition does not hold.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    /// The earlier step.
    pub step: String,
    /// The name of the output.
    pub output: String,
    /// The required value.
    #[schemars(extend("type" = ["string", "number", "boolean"]))]
    pub equals: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_and_agents_are_required_in_a_definition() {
        let workflow: WorkflowDefinition = serde_json::from_str(
            r#"{"name": "order", "version": 3, "steps": [{"name": "pay", "agent": "payment"}]}"#,
        )
        .unwrap();
        assert_eq!(
            workflow,
            WorkflowDefinition {
                name: "order".to_owned(),
                version: 3,
                cancel: CancelPolicy::UntilFinal,
                on_failure: None,
                deadline: None,
                sensitive: Vec::new(),
                steps: vec![StepDefinition {
                    name: "pay".to_owned(),
                    agent: "payment".to_owned(),
                    after: None,
                    when: None,
                    timeout: Duration::from_secs(10),
                    kind: StepKind::Compensable,
                    compensation: None,
                    on_failure: None,
                    probe: false,
                    uses: Vec::new(),
                    sensitive: Vec::new(),
                    retry: RetryPolicy {
                        max_attempts: None,
                        initial_interval: Duration::from_millis(200),
                        multiplier: 2.0,
                        max_interval: Duration::from_secs(30),
                        long_interval: None,
                    },
                }],
            }
        );
    }

    #[test]
    fn a_definition_may_set_every_field() {
        let step: StepDefinition = serde_json::from_str(
            r#"{"name": "drone", "agent": "drones", "after": ["account", "package"],
                "when": {"step": "transport", "output": "booked", "equals": "false"},
                "timeout": "1500ms", "kind": "pivot", "onFailure": "retry",
                "probe": true, "uses": ["pickupTime"], "sensitive": ["/code"],
                "compensation": {"agent": "yard", "timeout": "2s", "retry": {"maxAttempts": 5},
                                 "settle": "3s", "tombstones": true, "needs": ["drone.id"]},
                "retry": {"maxAttempts": 3, "initialInterval": "50ms", "multiplier": 1.5,
                          "maxInterval": "1m", "longInterval": "5m"}}"#,
        )
        .unwrap();
        assert_eq!(
            step,
            StepDefinition {
                name: "drone".to_owned(),
                agent: "drones".to_owned(),
                after: Some(vec!["account".to_owned(), "package".to_owned()]),
                when: Some(Condition {
                    step: "transport".to_owned(),
                    output: "booked".to_owned(),
                    equals: "false".to_owned(),
                }),
                timeout: Duration::from_millis(1500),
                kind: StepKind::Pivot,
                compensation: Some(CompensationDefinition {
                    manual: false,
                    agent: Some("yard".to_owned()),
                    timeout: Duration::from_secs(2),
                    retry: RetryPolicy {
                        max_attempts: Some(5),
                        ..RetryPolicy::default()
                    },
                    settle: Duration::from_secs(3),
                    tombstones: true,
                    needs: vec!["drone.id".to_owned()],
                }),
                on_failure: Some(OnFailure::Retry),
                probe: true,
                uses: vec!["pickupTime".to_owned()],
                sensitive: vec!["/code".to_owned()],
                retry: RetryPolicy {
                    max_attempts: Some(3),
                    initial_interval: Duration::from_millis(50),
                    multiplier: 1.5,
                    max_interval: Duration::from_secs(60),
                    long_interval: Some(Duration::from_secs(300)),
                },
            }
        );
    }

    #[test]
    fn unknown_keys_and_wrong_durations_are_refused_by_name() {
        for (json, expected) in [
            (r#"{"name": "a", "agent": "b", "retries": 3}"#, "retries"),
            (
                r#"{"name": "a", "agent": "b", "on_failure": "park"}"#,
                "on_failure",
            ),
            (
                r#"{"name": "a", "agent": "b", "timeout": "soon"}"#,
                "string \"soon\", expected a duration with its unit",
            ),
            (
                r#"{"name": "a", "agent": "b", "timeout": 5}"#,
                "expected a duration with its unit",
            ),
            (
                r#"{"name": "a", "agent": "b", "retry": {"first": "5s"}}"#,
                "first",
            ),
        ] {
            let error = serde_json::from_str::<StepDefinition>(json).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
