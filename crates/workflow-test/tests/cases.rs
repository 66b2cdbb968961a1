//! Cases of small workflows: their courses, differences and faults.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tempfile::TempDir;
use waybill_agent::http::{AgentsFile, Variables};
use waybill_engine::{Workflow, WorkflowDefinition, Workflows};
use waybill_workflow_test::{Report, Suite, to_junit};

const WORKFLOW: &str = "
name: trip
version: 1
steps:
  - name: seat
    agent: seat
    timeout: 2s
    retry: { maxAttempts: 3 }
    compensation: { tombstones: true }
  - name: room
    agent: room
    when: { step: seat, output: night, equals: yes }
    retry: { maxAttempts: 2 }
    uses: [city]
    compensation: { tombstones: true }
  - name: bill
    agent: bill
    kind: pivot
    probe: true
    onFailure: park
    retry: { maxAttempts: 2 }
";

const AGENTS: &str = "
agents:
  - name: seat
    http:
      baseUrl: http://seats.example/api
      tombstones: true
      request:
        method: PUT
        path: /seats/{{operation}}?class={{input.class?}}
        headers: { X-From: '{{input.from}}' }
        body: { to: '{{input.to}}' }
        keep: { night: /night, number: /number? }
        compensate: { method: DELETE }
";

/// The answers of a trip by night.
const BY_NIGHT: &str = "
    answers:
      seat: [{ outputs: { night: yes } }]
      room: [{}]
      bill: [{}]
";

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn suite(&self, cases: &str, with_agents: bool) -> Result<Suite, String> {
        let definition: WorkflowDefinition = serde_saphyr::from_str(WORKFLOW).unwrap();
        let workflow = Workflow::try_from(definition).unwrap();
        let workflows = Workflows::new(vec![workflow]).unwrap();
        let file = AgentsFile::from_yaml(AGENTS).unwrap();
        let agents = match with_agents {
            true => file.offline(&Variables::default()).unwrap(),
            false => BTreeMap::new(),
        };
        std::fs::write(self.path(), cases).unwrap();
        let suite = Suite::load(&self.path(), workflows, agents);
        suite.map_err(|error| self.without_directory(&error.to_string()))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("cases.yaml")
    }

    fn without_directory(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "")
    }

    /// The text of a report.
    fn text(&self, report: &Report) -> String {
        self.without_directory(&report.to_string())
    }
}

/// The text of the report of a file, without agents.
fn run(cases: &str) -> String {
    let files = Files::new();
    let report = files.suite(cases, false).unwrap().run(&[]).unwrap();
    files.text(&report)
}

/// A file with one case.
fn one(answers: &str, expect: &str) -> String {
    format!("cases:\n  - name: one{answers}    expect: {expect}\n")
}

fn refused(cases: &str, with_agents: bool) -> String {
    Files::new().suite(cases, with_agents).unwrap_err()
}

#[test]
fn a_case_passes_if_its_operation_takes_the_expected_course() {
    let cases = one(
        BY_NIGHT,
        "{ state: Processed, path: [seat#1, room, bill], undone: [], skipped: [],
               outputs: { seat: { night: yes } }, duration: { max: 1ms } }",
    );
    assert_eq!(
        run(&cases),
        "ok    one: Processed after 0s, 3 requests\n1 case passed"
    );
}

#[test]
fn a_step_whose_condition_does_not_hold_is_skipped_and_needs_no_answer() {
    let answers = "
    answers:
      seat: [{ outputs: { night: no } }]
      bill: [{}]
";
    let expect = "{ state: Processed, path: [seat, bill], skipped: [room] }";
    assert!(run(&one(answers, expect)).starts_with("ok "));
}

#[test]
fn a_permanent_failure_undoes_the_completed_steps_without_answers_for_that() {
    let answers = "
    answers:
      seat: [{ outcome: transient, code: busy, times: 2 }, { outputs: { night: yes }, after: 1s }]
      room: [{ outcome: permanent, code: full }]
";
    let expect = "{ state: Compensated, error: full, failingStep: room, undone: [seat, room],
              path: [seat, seat, seat#3, room, undo room, undo seat], duration: { min: 1s, max: 2s } }";
    let text = run(&one(answers, expect));
    assert!(
        text.starts_with("ok    one: Compensated (full at step room) after 1"),
        "{text}"
    );
}

#[test]
fn an_attempt_without_an_answer_times_out_and_is_probed_if_the_step_says_so() {
    let answers = "
    answers:
      seat: [{ outputs: { night: no } }]
      bill: [{ outcome: noAnswer }]
    probeAnswers:
      bill: [{ outcome: success }]
";
    let expect =
        "{ state: Processed, path: [seat, bill, probe bill#2], duration: { min: 10s, max: 11s } }";
    let text = run(&one(answers, expect));
    assert!(text.starts_with("ok "), "{text}");
}

#[test]
fn a_late_success_is_undone_once_more() {
    let answers = "
    answers:
      seat: [{ outcome: noAnswer, times: 2 }, { outputs: { night: yes }, after: 1h }]
";
    let expect = "{ state: Compensated, error: complete-by-passed,
              path: [seat, seat, seat, undo seat, undo seat], duration: { min: 1h, max: 61m } }";
    let text = run(&one(answers, expect));
    assert!(text.starts_with("ok "), "{text}");
}

#[test]
fn a_parked_operation_continues_at_the_verbs_of_people() {
    let answers = "
    answers:
      seat: [{ outputs: { night: no } }]
      bill: [{ outcome: permanent, code: closed }, {}]
    verbs:
      - { at: 1h, verb: resubmit }
      - { at: 2h, verb: cancel, refused: final }
";
    let expect = "{ state: Processed, path: [seat, bill, bill#2], duration: { min: 1h, max: 1h } }";
    let text = run(&one(answers, expect));
    assert!(text.starts_with("ok "), "{text}");
    let abandoned = answers.replace("verb: resubmit", "verb: abandon");
    let abandoned = abandoned.replace(
        "{ at: 2h, verb: cancel, refused: final }",
        "{ at: 2h, verb: retry-compensation }",
    );
    let text = run(&one(&abandoned, "{ state: Error, error: closed }"));
    let expected = "\
FAIL  one: Error (closed at step bill) after 0s, 2 requests
      cases.yaml:8:25: verbs: retry-compensation at 2h
        - applied
        + refused: not-compensation-failed
1 of 1 case failed";
    assert_eq!(text, expected);
}

#[test]
fn a_reschedule_changes_the_input_of_later_requests_and_is_refused_once_its_step_was_requested() {
    let answers = "
    input: { city: London }
    answers:
      seat: [{ outputs: { night: yes }, after: 1s }]
      room: [{ after: 2s }]
      bill: [{}]
    verbs:
      - { at: 500ms, verb: reschedule, fields: { city: Paris } }
      - { at: 1500ms, verb: reschedule, fields: { city: Rome }, refused: step-sent }
";
    let expect = "{ state: Processed,
              requests: [{ step: seat, input: { city: London } }, { step: bill, input: { city: Paris } }] }";
    let text = run(&one(answers, expect));
    assert!(text.starts_with("ok "), "{text}");
}

#[test]
fn every_difference_is_shown_with_its_place() {
    let answers = "
    answers:
      seat: [{ outputs: { night: yes, number: 12 } }]
      room: [{ outcome: permanent, code: full }]
";
    let expect = "
      state: Processed
      path: [seat, room, bill]
      undone: [seat]
      outputs:
        seat: { night: no, number: 12 }
      requests:
        - { step: room, results: { seat.night: no } }
        - { step: bill }
      duration: { min: 1s }";
    assert_eq!(
        run(&one(answers, expect)),
        "\
FAIL  one: Compensated (full at step room) after 0s, 4 requests
      cases.yaml:7:14: expect.state
        - Processed
        + Compensated (full at step room)
      cases.yaml:8:14: expect.path
          seat#1
          room#1
        - bill
        + undo room#2
        + undo seat#2
      cases.yaml:9:16: expect.undone
          seat
        + room
      cases.yaml:11:9: expect.outputs.seat
        - night: no
        + night: yes
          number: 12
      cases.yaml:13:11: expect.requests: room, results, seat.night
        - no
        + yes
      cases.yaml:14:11: expect.requests: bill
        - a request to perform the step
        + no such request
      cases.yaml:15:17: expect.duration
        - at least 1s
        + 0s
1 of 1 case failed"
    );
}

#[test]
fn a_request_without_an_answer_is_reported_with_the_key_to_add() {
    let text = run(&one(
        "\n    answers: { seat: [{ outputs: { night: yes } }] }\n",
        "{ state: Processed }",
    ));
    assert!(
        text.contains("cases.yaml:2: no answer for step room, attempt 1: add answers.room"),
        "{text}"
    );
    let text = run(&one(
        "\n    answers: { seat: [{ outcome: transient }] }\n",
        "{ state: Processed }",
    ));
    assert!(
        text.contains("no answer left for step seat, attempt 2: answers.seat has 1"),
        "{text}"
    );
}

#[test]
fn cases_share_the_input_and_the_answers_of_the_file_and_may_replace_them() {
    let cases = "
input: { a: 1, b: 2 }
answers:
  seat: [{ outputs: { night: no } }]
  bill: [{}]
cases:
  - name: as the file says
    expect: { state: Processed, requests: [{ step: bill, input: { a: 1, b: 2 } }] }
  - name: another input and another answer
    input: { b: 3 }
    answers: { bill: [{ outcome: permanent }] }
    expect: { state: Error, error: permanent, requests: [{ step: bill, input: { a: 1, b: 3 } }] }
";
    let text = run(cases);
    assert!(text.ends_with("2 cases passed"), "{text}");
    let files = Files::new();
    let suite = files.suite(cases, false).unwrap();
    let one = suite.run(&["as the file says".to_owned()]).unwrap();
    assert_eq!(one.cases.len(), 1);
    let unknown = suite.run(&["as the fiel says".to_owned()]).unwrap_err();
    let unknown = unknown.to_string();
    assert!(
        unknown.ends_with("did you mean \"as the file says\"?"),
        "{unknown}"
    );
}

#[test]
fn a_declared_agent_renders_requests_and_interprets_responses() {
    let cases = "
input: { from: Turin, to: London }
answers: { bill: [{}], room: [{}] }
cases:
  - name: rendered
    answers: { seat: [{ status: 503 }, { status: 201, body: { night: 'no' } }] }
    expect:
      state: Processed
      path: [seat, seat, bill]
      outputs: { seat: { night: 'no' } }
      requests:
        - step: seat
          method: PUT
          path: /api/seats/{{operation}}?class=
          headers: { X-From: Turin, idempotency-key: '{{operation}}/seat' }
          body: { to: London }
  - name: without a value
    input: { to: null }
    expect: { state: Compensated, error: template-value-missing }
  - name: a body without the kept value
    answers: { seat: [{ status: 200, body: {}, times: 3 }] }
    expect: { state: Compensated, error: answer-value-missing }
";
    let files = Files::new();
    let report = files.suite(cases, true).unwrap().run(&[]).unwrap();
    let text = files.text(&report);
    assert!(text.ends_with("3 cases passed"), "{text}");
}

#[test]
fn faults_of_the_file_have_line_column_and_a_suggestion() {
    let with = |answers: &str, expect: &str| refused(&one(answers, expect), false);
    for (answers, expect, expected) in [
        (
            "\n    answers: { saet: [{}] }\n",
            "{ state: Processed }",
            "cases.yaml:3:16: answers: unknown step \"saet\"; did you mean \"seat\"?",
        ),
        (
            "\n    answers:\n      lounge: [{}]\n",
            "{ state: Processed }",
            "cases.yaml:4:7: answers: unknown step \"lounge\"; expected one of seat, room, bill",
        ),
        (
            "\n    answers: { seat: [{ outcme: success }] }\n",
            "{ state: Processed }",
            "cases.yaml:3:25: unknown key cases.answers.seat.outcme; did you mean cases.answers.seat.outcome?",
        ),
        (
            "\n    answers: { seat: [{ outcome: transient, outputs: { a: b } }] }\n",
            "{ state: Processed }",
            "cases.yaml:3:23: answers.seat: only a success has outputs",
        ),
        (
            "\n    answers: { seat: [{ status: 200 }] }\n",
            "{ state: Processed }",
            "cases.yaml:3:23: answers.seat: status needs the file that declares the step's agent: name it with --agents",
        ),
        (
            "\n    answers: { seat: [{ times: 0 }] }\n",
            "{ state: Processed }",
            "cases.yaml:3:23: answers.seat: times must be 1 to 1000",
        ),
        (
            "\n    verbs: [{ at: 1s, verb: undone }]\n",
            "{ state: Processed }",
            "cases.yaml:3:29: cases.verbs: undone needs a step",
        ),
        (
            "\n",
            "{ state: Processed, path: [seat, 'redo room'] }",
            "cases.yaml:3:46: cases.expect.path: \"redo room\" is not `STEP`, `undo STEP` or `probe STEP`, with an optional `#N`",
        ),
        (
            "\n",
            "{ state: Processed, undone: [seats] }",
            "cases.yaml:3:42: cases.expect.undone: unknown step \"seats\"; did you mean \"seat\"?",
        ),
        (
            "\n",
            "{ state: Procesed }",
            "cases.yaml:3:22: cases.expect.state: Procesed is not one of Processed, Compensated, Cancelled, Error, CompensationFailed",
        ),
        (
            "\n",
            "{ state: Processed, duration: { min: 2s, max: 1s } }",
            "cases.yaml:3:43: cases.expect.duration: min exceeds max",
        ),
    ] {
        assert_eq!(with(answers, expect), expected);
    }
    let twice = "cases:\n  - name: a\n    expect: { state: Error }\n  - name: a\n    expect: { state: Error }\n";
    assert_eq!(
        refused(twice, false),
        "cases.yaml:4:11: cases.name: there are two cases \"a\""
    );
    let agents = one(
        "\n    answers: { seat: [{ outputs: { nigth: yes } }] }\n",
        "{ state: Processed }",
    );
    assert_eq!(
        refused(&agents, true),
        "cases.yaml:3:23: answers.seat: the agent keeps no output \"nigth\" (`keep`); did you mean \"night\"?"
    );
}

#[test]
fn junit_has_an_element_for_each_case_with_its_text_escaped() {
    let cases = format!(
        "cases:\n  - name: 'a <b> & \"c\"'{BY_NIGHT}    expect: {{ state: Processed }}\n  - name: d{BY_NIGHT}    expect: {{ state: Error, error: \"<\\u0007>\" }}\n  - name: e\n    expect: {{ state: Error }}\n"
    );
    let files = Files::new();
    let report = files.suite(&cases, false).unwrap().run(&[]).unwrap();
    assert!(!report.passed());
    let xml = files.without_directory(&to_junit(&report));
    assert_eq!(
        xml,
        "\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<testsuites tests=\"3\" failures=\"1\" errors=\"1\">
  <testsuite name=\"trip, version 1\" tests=\"3\" failures=\"1\" errors=\"1\">
    <testcase name=\"a &lt;b&gt; &amp; &quot;c&quot;\" classname=\"trip\" file=\"cases.yaml\" line=\"2\"/>
    <testcase name=\"d\" classname=\"trip\" file=\"cases.yaml\" line=\"8\">
      <failure message=\"not as expected: expect.state; expect.error\">cases.yaml:13:22: expect.state
  - Error
  + Processed
cases.yaml:13:36: expect.error
  - &lt;\\u{7}&gt;
  + (none)</failure>
    </testcase>
    <testcase name=\"e\" classname=\"trip\" file=\"cases.yaml\" line=\"14\">
      <error message=\"no answer for step seat, attempt 1: add answers.seat\">cases.yaml:14: no answer for step seat, attempt 1: add answers.seat</error>
    </testcase>
  </testsuite>
</testsuites>
"
    );
}

#[test]
fn the_same_file_gives_the_same_report() {
    let cases = one(
        "\n    answers:\n      seat: [{ outcome: transient, times: 3 }]\n",
        "{ state: Processed }",
    );
    assert_eq!(run(&cases), run(&cases));
}
