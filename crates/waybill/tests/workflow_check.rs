//! The output of `waybill workflow check` and `waybill workflow test`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use waybill_test_support::process::without_variables;

const WORKFLOW: &str = "\
name: errand
version: 3
steps:
  - name: go
    agent: walker
    compensation: {}
  - name: buy
    agent: buyer
    after: [go]
    kind: pure
";

const AGENTS: &str = "\
agents:
  - name: walker
    http:
      baseUrl: http://walker.example
      request:
        method: PUT
        path: /ways/{{operation}}
        compensate: { method: DELETE }
";

#[test]
fn a_valid_workflow_is_reported_on_one_line() {
    let dir = Dir::new();
    let workflow = dir.write("errand.yaml", WORKFLOW);
    assert_eq!(
        check(&[&workflow], &[]),
        (
            Some(0),
            "ok: errand, version 3, 2 steps; agents not checked: buyer, walker (name their files with --agents)\n"
                .to_owned()
        )
    );
    let agents = dir.write("agents.yaml", AGENTS);
    assert_eq!(
        check(&[&workflow], &[&agents]),
        (
            Some(0),
            "ok: errand, version 3, 2 steps; agents not in any file: buyer\n".to_owned()
        )
    );
    let buyer = AGENTS.replace("name: walker", "name: buyer");
    let buyer = dir.write("buyer.yaml", &buyer);
    assert_eq!(
        check(&[&workflow], &[&agents, &buyer]),
        (Some(0), "ok: errand, version 3, 2 steps\n".to_owned())
    );
}

#[test]
fn the_cases_of_every_example_pass() {
    let with_agents = [
        (
            "examples/first-workflow/workflow",
            "examples/first-workflow/",
        ),
        (
            "examples/order-fulfilment/workflow",
            "examples/order-fulfilment/",
        ),
        ("examples/orders/workflow", "examples/orders/"),
        ("workflows/drone-delivery", "workflows/drone-delivery-"),
    ];
    for (workflow, prefix) in with_agents {
        let workflow = format!("{workflow}.yaml");
        let [cases, agents] = ["cases", "agents"].map(|file| format!("{prefix}{file}.yaml"));
        let (code, text) = test(&[&workflow, "--cases", &cases, "--agents", &agents]);
        assert_eq!(code, Some(0), "{text}");
    }
    let directory = "examples/failure-walkthrough";
    let [workflow, cases] = ["workflow", "cases"].map(|file| format!("{directory}/{file}.yaml"));
    let (code, text) = test(&[&workflow, "--cases", &cases]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_case_that_fails_ends_with_1_and_an_invalid_file_with_2() {
    let dir = Dir::new();
    let workflow = dir.write("errand.yaml", WORKFLOW);
    let cases =
        "cases: [{ name: go, answers: { go: [{}], buy: [{}] }, expect: { state: Error } }]\n";
    let cases = dir.write("cases.yaml", cases);
    let [workflow, cases] = [&workflow, &cases].map(|path| path.to_str().unwrap());
    let junit = format!("{cases}.xml");
    let arguments = [
        workflow, "--cases", cases, "--junit", &junit, "--output", "json",
    ];
    let (code, text) = test(&arguments);
    assert_eq!(code, Some(1), "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["cases"][0]["state"], "Processed", "{report}");
    assert_eq!(report["cases"][0]["differences"][0]["key"], "expect.state");
    let xml = std::fs::read_to_string(junit).unwrap();
    assert!(
        xml.contains("<failure message=\"not as expected: expect.state\">"),
        "{xml}"
    );
    let invalid = dir.write("invalid.yaml", "cases: [{ name: go, expcet: {} }]\n");
    let invalid = invalid.to_str().unwrap();
    let (code, text) = test(&[workflow, "--cases", invalid]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("did you mean cases.expect?"), "{text}");
}

/// Runs `waybill workflow test` at the root of the repository: its exit code and all its output.
fn test(arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(&["workflow", "test"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), format!("{text}{errors}"))
}

#[test]
fn a_misspelt_agent_is_refused_with_the_nearest_name() {
    let dir = Dir::new();
    let workflow = dir.write(
        "errand.yaml",
        &WORKFLOW.replace("agent: walker", "agent: wakler"),
    );
    // Agents with such names are unknown.
    assert_eq!(check(&[&workflow], &[]).0, Some(0));
    let agents = dir.write("agents.yaml", AGENTS);
    assert_refused(
        &check(&[&workflow], &[&agents]),
        &format!(
            "{}: step go: unknown agent \"wakler\"; did you mean \"walker\"?",
            workflow.display()
        ),
    );
    // The built-in agents are known without a file.
    let workflow = dir.write(
        "errand.yaml",
        &WORKFLOW.replace("agent: walker", "agent: packge"),
    );
    let answer = check(&[&workflow], &[]);
    assert_eq!(answer.0, Some(2), "{}", answer.1);
    assert!(
        answer.1.contains("did you mean \"package\"?"),
        "{}",
        answer.1
    );
}

#[test]
fn the_fields_that_a_request_needs_are_listed_with_their_steps() {
    let dir = Dir::new();
    let workflow = dir.write("errand.yaml", WORKFLOW);
    let agents = AGENTS.replace(
        "/ways/{{operation}}",
        "/ways/{{input.to.street}}/{{input.note?}}",
    );
    let agents = dir.write("agents.yaml", &agents);
    let (code, text) = check(&[&workflow], &[&agents]);
    assert_eq!(code, Some(0), "{text}");
    let listed = "\nrequired input fields:\n  to.street (used by go)\n";
    assert!(text.ends_with(listed), "{text}");
}

#[test]
fn an_unquoted_placeholder_is_refused_with_its_line_and_the_fix() {
    let dir = Dir::new();
    let workflow = dir.write("errand.yaml", WORKFLOW);
    for (value, key) in [("{{input}}", ""), ("{{input.a}} and more", "")] {
        let text = AGENTS.replace(
            "        compensate",
            &format!("        body: {value}\n        compensate"),
        );
        let agents = dir.write("agents.yaml", &text);
        let answer = check(&[&workflow], &[&agents]);
        assert_refused(&answer, &format!("{}:8:15: {key}", agents.display()));
        assert!(
            answer
                .1
                .contains("a value that begins with {{ needs quotes"),
            "{}",
            answer.1
        );
    }
}

#[test]
fn check_prints_json() {
    let dir = Dir::new();
    let workflow = dir.write("errand.yaml", WORKFLOW);
    let agents = dir.write("agents.yaml", AGENTS);
    let found = json!({ "name": "errand", "version": 3, "steps": 2 });
    let json = |arguments: &[&str]| -> Value {
        let output = command(arguments).args(["--output", "json"]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let [workflow, agents] = [&workflow, &agents].map(|path| path.to_str().unwrap());
    assert_eq!(
        json(&["workflow", "check", workflow]),
        json!({ "workflow": found, "agentsNotChecked": ["buyer", "walker"] })
    );
    assert_eq!(
        json(&["workflow", "check", workflow, "--agents", agents]),
        json!({ "workflow": found, "agentsElsewhere": ["buyer"] })
    );
    let mut checked = json(&["config", "check"]);
    // A warning on a machine whose disk is too small.
    checked.as_object_mut().unwrap().remove("disk");
    assert_eq!(checked, json!({ "agentsElsewhere": [] }));
}

#[test]
fn the_shipped_workflows_fit_their_agents() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = root.join("examples/order-fulfilment");
    let (code, text) = check(
        &[&example.join("workflow.yaml")],
        &[&example.join("agents.yaml")],
    );
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("not in any file"), "{text}");
    let (code, text) = check(&[&root.join("workflows/drone-delivery.yaml")], &[]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn invalid_workflows_are_refused_with_position_and_reason() {
    let dir = Dir::new();
    let fine = dir.write("fine.yaml", WORKFLOW);
    let cases = [
        (
            WORKFLOW.replace("kind: pure", "kidn: pure"),
            ":10:5: unknown key steps.kidn",
        ),
        (WORKFLOW.replace("[go]", "[fly]"), ":7: invalid workflow: "),
        (WORKFLOW.replace("[go]", "[buy]"), ":7: invalid workflow: "),
        (
            WORKFLOW.replace("kind: pure", "kind: pur"),
            ":10:11: steps.kind: pur is not one of pure, ",
        ),
        (
            WORKFLOW.replace("kind: pure", "timeout: 5"),
            ":10:5: steps.timeout: ",
        ),
        (
            WORKFLOW.replace("compensation: {}", "kind: irreversible"),
            ":4: invalid workflow: ",
        ),
        (
            WORKFLOW.replace("agent: buyer", "agent: Buyers!"),
            ":8: invalid workflow: workflow \"errand\": steps.agent \"Buyers!\" must be 1 to 64 of",
        ),
    ];
    for (text, reason) in cases {
        let file = dir.write("bad.yaml", &text);
        assert_refused(
            &check(&[&file], &[]),
            &format!("{}{reason}", file.display()),
        );
    }
    let missing = dir.path("missing.yaml");
    let cannot_be_read = format!("{} cannot be read: ", missing.display());
    assert_refused(&check(&[&missing], &[]), &cannot_be_read);
    assert_refused(&check(&[&fine], &[&missing]), &cannot_be_read);
}

#[test]
fn unsuitable_agents_are_refused_with_the_step() {
    let dir = Dir::new();
    let workflow = dir.write("errand.yaml", WORKFLOW);
    let cases = [
        (
            AGENTS.replace("        compensate: { method: DELETE }\n", ""),
            ":6: agent \"walker\" does not fit step \"go\" of workflow \"errand\", version 3",
        ),
        (
            AGENTS.replace("{{operation}}", "{{results.buy.price}}"),
            ":6: agent \"walker\" does not fit step \"go\"",
        ),
        (
            AGENTS.replace("baseUrl", "baseUlr"),
            ":4:7: unknown key agents.http.baseUlr; did you mean agents.http.baseUrl?",
        ),
    ];
    for (text, reason) in cases {
        let agents = dir.write("agents.yaml", &text);
        let answer = check(&[&workflow], &[&agents]);
        assert_refused(&answer, &format!("{}{reason}", agents.display()));

        // The same rules apply to a configuration.
        let configuration = dir.write(
            "waybill.yaml",
            &format!(
                "workflows: {{builtIn: false, files: [{}]}}\n\
                 agents: {{builtIn: false, files: [{}]}}\n",
                workflow.display(),
                agents.display()
            ),
        );
        for arguments in [
            &["config", "check"][..],
            &["agents", "--brokers", "127.0.0.1:1"],
        ] {
            let output = command(arguments)
                .arg("--config")
                .arg(&configuration)
                .args(["--admin", "127.0.0.1:0"])
                .output()
                .unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert_refused(&(output.status.code(), text.clone()), "");
            assert!(text.contains(reason), "{arguments:?}: {text}");
        }
    }
}

fn assert_refused((code, text): &(Option<i32>, String), reason: &str) {
    assert_eq!(*code, Some(2), "{text}");
    assert!(text.starts_with(&format!("waybill: {reason}")), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// The exit code of `waybill workflow check`, and its output.
fn check(files: &[&Path], agents: &[&Path]) -> (Option<i32>, String) {
    let mut command = command(&["workflow", "check"]);
    command.args(files);
    for path in agents {
        command.arg("--agents").arg(path);
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// The program without Waybill's environment variables.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command).args(arguments);
    command
}

/// A directory with files.
struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}
