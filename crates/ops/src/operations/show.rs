//! `waybill ops show`: one operation in full.

use std::fmt;
use std::io::{self, Write};

use clap::Args;
use serde_json::value::RawValue;
use waybill_api::verb::as_typed;
use waybill_api::view::{ErrorView, HistoryView, OperationView, StepView};
use waybill_telemetry::visible::{escaped, escaped_json};
use waybill_terminal::{
    ColorArgs, Column, NOTHING, Output, Table, Tone, report_left_out, terminal_width,
};

use super::OpsError;
use super::api::{Api, Found};

/// The arguments of `waybill ops show`.
#[derive(Clone, Debug, Args)]
pub(super) struct ShowArgs {
    /// The operation's id, or the id that its caller chose
    #[arg(value_name = "ID")]
    id: String,
    /// The tenant whose caller chose the id
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// The output format; JSON is the answer of the API
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    color: ColorArgs,
}

impl ShowArgs {
    pub(super) async fn run(&self, api: &Api) -> Result<(), OpsError> {
        let Found { json, operation } = api.find(&self.id, self.tenant.as_deref()).await?;
        let mut out = io::stdout().lock();
        match self.output {
            Output::Json => {
                let json: Box<RawValue> = api.read(&json)?;
                writeln!(out, "{}", escaped_json(json.get()))?;
            }
            Output::Table => {
                let shown = Shown {
                    operation: &operation,
                    is_colored: self.color.is_colored(),
                };
                write!(out, "{shown}")?;
                if !operation.steps.is_empty() {
                    report_left_out(&step_table(&operation.steps).left_out());
                }
            }
        }
        Ok(())
    }
}

/// The output for one operation.
struct Shown<'a> {
    operation: &'a OperationView,
    is_colored: bool,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            is_colored,
        } = *self;
        facts(operation, is_colored, f)?;
        if !operation.steps.is_empty() {
            steps(&operation.steps, is_colored, f)?;
        }
        if !operation.history.is_empty() {
            history(&operation.history, f)?;
        }
        Ok(())
    }
}

fn facts(operation: &OperationView, is_colored: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let OperationView {
        id,
        state,
        workflow,
        workflow_version,
        tenant,
        caller_id,
        ahead,
        error,
        cause,
        what_next,
        verbs,
        cancel,
        abandoned,
        resubmission_of,
        resubmitted_as,
        failure_count,
        next_due,
        priority,
        handed_off,
        locked_by,
        epoch,
        deadline,
        created_at,
        updated_at,
        input,
        payload_withheld,
        trace_id,
        ..
    } = operation;
    let owner = epoch.map(|epoch| match locked_by {
        Some(owner) => format!("{owner}, epoch {epoch}"),
        None => format!("none (not in memory); last epoch {epoch}"),
    });
    let typed: Vec<&str> = verbs.iter().map(|verb| as_typed(verb)).collect();
    let verbs = (!typed.is_empty()).then(|| typed.join(", "));
    let workflow = workflow.as_deref().map(|name| match workflow_version {
        Some(version) => format!("{name}, version {version}"),
        None => name.to_owned(),
    });
    let failures = (*failure_count > 0).then(|| failure_count.to_string());
    let yes = |flag: bool| flag.then(|| "yes".to_owned());
    let facts = [
        ("operation", Some(id.to_string())),
        ("state", Some(state.to_string())),
        ("abandoned", yes(*abandoned)),
        ("next", what_next.clone()),
        ("verbs", verbs),
        ("error", error.as_ref().map(ErrorView::to_string)),
        ("failed before", cause.as_ref().map(ErrorView::to_string)),
        ("cancel", cancel.as_ref().map(ToString::to_string)),
        ("workflow", workflow),
        ("tenant", tenant.as_ref().map(ToString::to_string)),
        ("caller's id", caller_id.as_ref().map(ToString::to_string)),
        ("requests ahead", ahead.map(|ahead| ahead.to_string())),
        ("resubmits", resubmission_of.map(|id| id.to_string())),
        ("resubmitted as", resubmitted_as.map(|id| id.to_string())),
        ("created", created_at.as_deref().map(time)),
        ("changed", updated_at.as_deref().map(time)),
        ("deadline", deadline.as_deref().map(time)),
        ("next due", next_due.as_deref().map(time)),
        ("priority", priority.as_ref().map(ToString::to_string)),
        ("handed off", yes(*handed_off)),
        ("failures", failures),
        ("owner", owner),
        ("trace", trace_id.clone()),
        ("input", input.as_ref().map(ToString::to_string)),
        (
            "payload",
            payload_withheld.as_ref().map(ToString::to_string),
        ),
    ];
    for (name, fact) in facts {
        if let Some(fact) = fact {
            let fact = match Tone::of_state(&fact) {
                Some(tone) if is_colored && name == "state" => tone.paint(&fact),
                Some(_) | None => escaped(&fact),
            };
            writeln!(f, "{name:<14}  {fact}")?;
        }
    }
    Ok(())
}

/// A line for each step.
fn step_table(steps: &[StepView]) -> Table<'static> {
    const COLUMNS: [Column; 7] = [
        Column::whole("STEP", 16),
        Column::of_states("STATE", 12),
        Column::new("ATTEMPT", 16),
        Column::whole("FAILED", 6).ranked(2),
        Column::whole("UNDO FAILED", 11).ranked(3),
        Column::whole("CHANGED", 24).ranked(4),
        Column::new("UNTIL", 24),
    ];
    let mut table = Table::new(&COLUMNS, terminal_width()).with_heading();
    for step in steps {
        let attempt = match (&step.action, step.attempt) {
            (_, 0) => NOTHING.to_owned(),
            (Some(action), attempt) => format!("{attempt} {action}"),
            (None, attempt) => attempt.to_string(),
        };
        let until = match (&step.complete_by, &step.retry_at) {
            (Some(complete_by), _) => time(complete_by),
            (None, Some(retry_at)) => format!("again {}", time(retry_at)),
            (None, None) => NOTHING.to_owned(),
        };
        let changed = step.changed_at.as_deref().map(time);
        table.add([
            &*step.name,
            &step.state,
            &attempt,
            &count(step.failure_count),
            &count(step.undo_failure_count),
            changed.as_deref().unwrap_or(NOTHING),
            &until,
        ]);
    }
    table
}

fn steps(steps: &[StepView], is_colored: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let table = step_table(steps).colored(is_colored);
    writeln!(f, "\n{}", table.into_text())?;
    for StepView { name, error, .. } in steps {
        if let Some(error) = error {
            writeln!(f, "{}: {}", escaped(name), escaped(&error.to_string()))?;
        }
    }
    for StepView { name, outputs, .. } in steps {
        if let Some(outputs) = outputs {
            let listed = outputs
                .iter()
                .map(|(name, value)| format!("{name}={value}"));
            let listed = listed.collect::<Vec<_>>().join(", ");
            writeln!(f, "outputs of {}: {}", escaped(name), escaped(&listed))?;
        }
    }
    for step in steps {
        if let Some(attempt) = step.late_success {
            let name = escaped(&step.name);
            writeln!(
                f,
                "{name}: attempt {attempt} succeeded after it was given up"
            )?;
        }
    }
    Ok(())
}

fn history(history: &[HistoryView], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\n{:<24}  VERB", "TIME")?;
    for entry in history {
        let HistoryView {
            at,
            by,
            verb,
            reason,
            refused,
        } = entry;
        let mut line = format!("{:<24}  {verb} by {by}", time(at));
        if let Some(code) = refused {
            line.push_str(&format!(", refused: {code}"));
        }
        if !reason.is_empty() {
            line.push_str(&format!(" ({reason})"));
        }
        writeln!(f, "{}", escaped(&line))?;
    }
    Ok(())
}

fn count(number: u32) -> String {
    match number {
        0 => NOTHING.to_owned(),
        number => number.to_string(),
    }
}

/// A time to the millisecond. Text that is not a time stays unchanged.
fn time(text: &str) -> String {
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => format!("{time:.3}"),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn shown(operation: &OperationView) -> String {
        let is_colored = false;
        Shown {
            operation,
            is_colored,
        }
        .to_string()
    }

    #[test]
    fn the_page_of_an_operation_is_complete() {
        let failure = ErrorView {
            code: "no-drone".to_owned(),
            message: "none is free".to_owned(),
            step: None,
        };
        let drone = StepView {
            name: "drone".into(),
            state: "Failed".into(),
            attempt: 20,
            action: Some("Compensate".into()),
            failure_count: 3,
            retry_at: text("2030-01-01T00:00:05.000001Z"),
            changed_at: text("2030-01-01T00:00:00.25Z"),
            late_success: Some(2),
            error: Some(failure.clone()),
            ..StepView::default()
        };
        let account = StepView {
            name: "account".into(),
            state: "NotStarted".into(),
            ..StepView::default()
        };
        let operation = OperationView {
            id: Uuid::from_u128(7),
            state: "Error".into(),
            what_next: text("Waiting for an operator: resubmit."),
            verbs: vec!["resubmit".into(), "abandon".into()],
            error: Some(ErrorView {
                step: text("drone"),
                ..failure
            }),
            cause: Some(ErrorView {
                code: "suspended".to_owned(),
                message: "it is late".to_owned(),
                step: text("account"),
            }),
            workflow: Some("order".into()),
            workflow_version: Some(3),
            epoch: Some(3),
            failure_count: 3,
            handed_off: true,
            created_at: text("2030-01-01T00:00:00Z"),
            steps: vec![account, drone],
            history: vec![HistoryView {
                at: "2030-01-01T00:00:01Z".to_owned(),
                by: "kim".to_owned(),
                verb: "compensate".to_owned(),
                reason: "why\nnot".to_owned(),
                refused: text("past-pivot"),
            }],
            ..OperationView::default()
        };
        let expected = "\
operation       00000000-0000-0000-0000-000000000007
state           Error
next            Waiting for an operator: resubmit.
verbs           resubmit, abandon
error           no-drone at step drone: none is free
failed before   suspended at step account: it is late
workflow        order, version 3
created         2030-01-01T00:00:00.000Z
handed off      yes
failures        3
owner           none (not in memory); last epoch 3

STEP             STATE        ATTEMPT          FAILED UNDO FAILED CHANGED                  UNTIL
account          NotStarted   -                -      -           -                        -
drone            Failed       20 Compensate    3      -           2030-01-01T00:00:00.250Z again 2030-01-01T00:00:05.000Z
drone: no-drone: none is free
drone: attempt 2 succeeded after it was given up

TIME                      VERB
2030-01-01T00:00:01.000Z  compensate by kim, refused: past-pivot (why\\nnot)
";
        assert_eq!(shown(&operation), expected);
    }

    #[test]
    fn the_page_of_a_pending_operation_is_short() {
        let pending = OperationView {
            id: Uuid::from_u128(7),
            state: "Pending".into(),
            ahead: Some(0),
            ..OperationView::default()
        };
        assert_eq!(
            shown(&pending),
            "operation       00000000-0000-0000-0000-000000000007\nstate           Pending\nrequests ahead  0\n"
        );
    }
}
