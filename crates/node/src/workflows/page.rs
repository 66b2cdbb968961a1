//! Compares the page about workflows, docs/workflows.md, with what the program accepts.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use waybill_engine::{
    CancelPolicy, CompensationDefinition, Condition, OnFailure, RetryPolicy, StepDefinition,
    StepKind, Workflow, WorkflowDefinition,
};

const PAGE: &str = include_str!("../../../../docs/workflows.md");

/// A row of a table of keys.
struct Row {
    kind: String,
    default: String,
}

/// The table of keys below a heading, by key.
fn table(heading: &str) -> BTreeMap<String, Row> {
    let heading = format!("\n### {heading}\n");
    let (_, section) = PAGE.split_once(&heading).expect("the heading is there");
    let rows = section
        .lines()
        .skip_while(|line| !line.starts_with("| `"))
        .take_while(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    cells
        .map(|cells| {
            let key = in_backticks(cells[0]).remove(0);
            let row = Row {
                kind: cells[1].to_owned(),
                default: cells[2].to_owned(),
            };
            (key, row)
        })
        .collect()
}

fn in_backticks(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

/// The keys or values that a type accepts, as its error for another one lists them.
fn known<T: DeserializeOwned>(other: Value) -> Vec<String> {
    let refusal = serde_json::from_value::<T>(other);
    let refusal = refusal.err().expect("it is refused").to_string();
    let (_, expected) = refusal.split_once("expected").expect("it lists them");
    let mut known = in_backticks(expected);
    known.sort();
    known
}

/// A workflow with one step, with one more key at this place.
fn with(place: &str, key: &str, value: Value) -> Workflow {
    let mut step = json!({"name": "s", "agent": "a", "compensation": {}, "retry": {}});
    let mut workflow = json!({"name": "w", "version": 1});
    match place {
        "The workflow" => workflow[key] = value,
        "A step" => step[key] = value,
        "`compensation`" => step["compensation"][key] = value,
        "`retry`" => {
            step["retry"][key] = value;
            // `longInterval` is refused without this.
            step["onFailure"] = json!("retry");
        }
        other => panic!("{other}: no place"),
    }
    workflow["steps"] = json!([step]);
    let definition: WorkflowDefinition = serde_json::from_value(workflow).unwrap();
    Workflow::try_from(definition).unwrap()
}

fn keys_stand_on_the_page<T: DeserializeOwned>(heading: &str, required: &Value) {
    let table = table(heading);
    let keys: Vec<_> = table.keys().cloned().collect();
    assert_eq!(keys, known::<T>(json!({"no-key": 1})), "{heading}");

    let marked = table.iter().filter(|(_, row)| row.default == "required");
    let marked: Vec<&str> = marked.map(|(key, _)| key.as_str()).collect();
    let required = required.as_object().unwrap();
    let mut needed: Vec<&str> = required.keys().map(String::as_str).collect();
    needed.sort_unstable();
    assert_eq!(marked, needed, "{heading}");
    let is_taken =
        |keys: &Map<String, Value>| serde_json::from_value::<T>(keys.clone().into()).is_ok();
    assert!(is_taken(required), "{heading}");
    for key in needed {
        let mut without = required.clone();
        without.remove(key);
        assert!(!is_taken(&without), "{heading}: {key}");
    }
}

#[test]
fn every_key_is_on_the_page_and_required_keys_are_marked() {
    let step = json!({"name": "s", "agent": "a"});
    let workflow = json!({"name": "w", "version": 1, "steps": [step]});
    keys_stand_on_the_page::<WorkflowDefinition>("The workflow", &workflow);
    keys_stand_on_the_page::<StepDefinition>("A step", &step);
    let when = json!({"step": "s", "output": "o", "equals": "e"});
    keys_stand_on_the_page::<Condition>("`when`", &when);
    keys_stand_on_the_page::<CompensationDefinition>("`compensation`", &json!({}));
    keys_stand_on_the_page::<RetryPolicy>("`retry`", &json!({}));
}

#[test]
fn the_defaults_on_the_page_are_those_that_apply() {
    let places = ["The workflow", "A step", "`compensation`", "`retry`"];
    let mut held = 0;
    for place in places {
        let plain = match place {
            "`retry`" => with("A step", "onFailure", json!("retry")),
            _ => with("A step", "name", json!("s")),
        };
        for (key, row) in table(place) {
            let Some(default) = in_backticks(&row.default).pop() else {
                continue;
            };
            let value = serde_json::from_str(&default).unwrap_or_else(|_| json!(default));
            assert_eq!(with(place, &key, value), plain, "{place}: {key}");
            held += 1;
        }
    }
    assert!(held > 12, "{held}");

    let documented = &table("`retry`")["maxAttempts"].default;
    let step = StepDefinition::max_attempts_default();
    let compensation = CompensationDefinition::max_attempts_default();
    assert_eq!(
        documented,
        &format!("{step} for a step, {compensation} for a compensation")
    );
}

#[test]
fn the_values_that_keys_may_have_are_all_on_the_page() {
    let other = || json!("other");
    for (place, key, known) in [
        ("The workflow", "onFailure", known::<OnFailure>(other())),
        ("A step", "onFailure", known::<OnFailure>(other())),
        ("The workflow", "cancel", known::<CancelPolicy>(other())),
        ("A step", "kind", known::<StepKind>(other())),
    ] {
        let mut documented = in_backticks(&table(place)[key].kind);
        documented.sort();
        assert_eq!(documented, known, "{place}: {key}");
    }
}

#[test]
fn the_workflow_on_the_page_is_valid() {
    let (_, block) = PAGE.split_once("```yaml\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    super::compile("docs/workflows.md", block).unwrap();
}
