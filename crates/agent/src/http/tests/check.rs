//! Whether agents and workflows fit each other.

use waybill_engine::{Workflow, WorkflowDefinition, Workflows};
use waybill_telemetry::chain;

use super::*;

const WORKFLOW: &str = "\
name: order
version: 2
steps:
  - { name: enter, agent: book }
  - name: look
    agent: book
    kind: pure
    when: { step: enter, output: kind, equals: goods }
  - name: pay
    agent: bank
    probe: true
    compensation: { agent: returns, needs: [enter.total, pay.receipt] }
  - { name: ship, agent: carrier, compensation: { manual: true } }
";

const AGENTS: &str = "\
agents:
  - name: book
    http:
      baseUrl: '{books}'
      request:
        method: PUT
        path: /orders/{{operation}}
        keep: { total: /total, kind: '/kind?' }
        compensate: { method: DELETE }
      steps:
        look: { method: GET, path: /look }
  - name: bank
    http:
      baseUrl: http://bank
      steps:
        pay:
          method: POST
          path: /payments
          headers: { X-Total: '{{results.enter.total}}' }
          keep: { receipt: /receipt }
          probe: { method: GET, path: '/payments?of={{results.enter.total}}' }
  - name: returns
    http:
      baseUrl: http://returns
      request:
        method: POST
        path: /returns
        body: { not: '{{results.asked.for}}' }
        compensate:
          method: POST
          body:
            lines: [{ receipt: '{{results.pay.receipt}}' }, 'total {{results.enter.total}}']
            kind: '{{results.enter.kind?}}'
  - name: unused
    http:
      baseUrl: http://unused
      request: { method: PUT, path: '/{{results.no.where}}' }
";

fn workflows(yaml: &str) -> Workflows {
    let definition: WorkflowDefinition = serde_saphyr::from_str(yaml).unwrap();
    Workflows::new(vec![Workflow::try_from(definition).unwrap()]).unwrap()
}

fn check(workflow: &str, agents: &str) -> Result<(), LoadError> {
    let file = AgentsFile::from_yaml(agents).unwrap_or_else(|error| panic!("{}", chain(&error)));
    file.check(&workflows(workflow))
}

/// `text` with its only occurrence of `from` replaced.
fn changed(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from:?} in\n{text}");
    text.replace(from, to)
}

/// The error for an agent's file after one change, without the name of the workflow.
fn refusal(workflow: &str, agents: &str) -> String {
    let error = check(workflow, agents).expect_err(agents);
    assert!(
        matches!(error, LoadError::UnmetRequirement { .. }),
        "{error:?}"
    );
    chain(&error).replace(" of workflow \"order\", version 2", "")
}

#[test]
fn agents_that_support_every_step_are_accepted() {
    check(WORKFLOW, AGENTS).unwrap();
}

#[test]
fn tombstones_must_be_declared_by_the_agent_of_the_step() {
    let counts_on_it = changed(
        WORKFLOW,
        "compensation: { agent: returns,",
        "compensation: { tombstones: true, agent: returns,",
    );
    let refusal = refusal(&counts_on_it, AGENTS);
    assert!(
        refusal.starts_with(
            r#"agent "bank" does not fit step "pay": `compensation.tombstones` is true, but the agent does not declare"#
        ),
        "{refusal}"
    );
    let declared = changed(
        AGENTS,
        "      baseUrl: http://bank\n",
        "      baseUrl: http://bank\n      tombstones: true\n",
    );
    check(&counts_on_it, &declared).unwrap();
    // Agents of other files are assumed to fit.
    let others = "agents: []\n";
    check(&counts_on_it, others).unwrap();
    let refused = AgentsFile::from_yaml(&AGENTS.replace(
        "      baseUrl: http://bank\n",
        "      baseUrl: http://bank\n      tombstones: perhaps\n",
    ));
    let refused = chain(&refused.unwrap_err());
    assert!(refused.contains("14"), "it names the line: {refused}");
}

#[test]
fn a_missing_request_of_a_step_is_refused() {
    for (from, to, expected) in [
        (
            "        pay:\n",
            "        bill:\n",
            r#"agent "bank" does not fit step "pay": `steps.pay` is missing, and there is no `request` for all steps"#,
        ),
        (
            "        compensate: { method: DELETE }\n",
            "",
            r#"agent "book" does not fit step "enter": `request.compensate` is missing, but the agent must undo"#,
        ),
        (
            "          probe: { method: GET, path: '/payments?of={{results.enter.total}}' }\n",
            "",
            r#"agent "bank" does not fit step "pay": `steps.pay.probe` is missing, but the step has `probe: true`"#,
        ),
    ] {
        let refusal = refusal(WORKFLOW, &changed(AGENTS, from, to));
        assert!(refusal.starts_with(expected), "{refusal}");
    }
    // An agent that only undoes gets the same error if it does not know the step at all.
    let other = "agents:\n  - name: returns\n    http: { baseUrl: http://r, steps: { else: { method: PUT, path: / } } }\n";
    let refusal = refusal(WORKFLOW, other);
    assert!(
        refusal.starts_with(
            r#"agent "returns" does not fit step "pay": `steps.pay.compensate` is missing"#
        ),
        "{refusal}"
    );
}

#[test]
fn a_request_can_only_use_values_kept_by_earlier_steps() {
    for (from, to, expected) in [
        (
            "X-Total: '{{results.enter.total}}'",
            "X-Total: '{{results.enter.sum}}'",
            r#"agent "bank" does not fit step "pay": `steps.pay.headers.x-total` uses `{{results.enter.sum}}`, but agent "book" keeps no "sum" of step "enter"'s response (`keep`)"#,
        ),
        (
            "/payments?of={{results.enter.total}}",
            "/payments?of={{results.pay.receipt}}",
            r#"agent "bank" does not fit step "pay": `steps.pay.probe.path` uses `{{results.pay.receipt}}`, but step "pay" does not come before this one"#,
        ),
        (
            "path: /orders/{{operation}}",
            "path: /orders/{{results.pay.receipt}}",
            r#"agent "book" does not fit step "enter": `request.path` uses `{{results.pay.receipt}}`, but step "pay" does not come before this one"#,
        ),
        (
            "{{results.pay.receipt}}",
            "{{results.pai.receipt}}",
            r#"agent "returns" does not fit step "pay": `request.compensate.body` uses `{{results.pai.receipt}}`, but the workflow has no step "pai""#,
        ),
        (
            "{{results.enter.kind?}}",
            "{{results.enter.kind}}",
            r#"agent "returns" does not fit step "pay": `request.compensate.body` uses `{{results.enter.kind}}`, but agent "book" keeps it only if it is present"#,
        ),
        (
            "{{results.pay.receipt}}",
            "{{results.look.receipt}}",
            r#"agent "returns" does not fit step "pay": `request.compensate.body` uses `{{results.look.receipt}}`, but agent "book" keeps no "receipt" of step "look"'s response"#,
        ),
    ] {
        let refusal = refusal(WORKFLOW, &changed(AGENTS, from, to));
        assert!(refusal.starts_with(expected), "{refusal}\n{expected}");
    }
}

#[test]
fn values_needed_by_undos_and_conditions_must_be_kept() {
    for (from, to, expected) in [
        (
            "needs: [enter.total,",
            "needs: [enter.sum,",
            r#"agent "returns" does not fit step "pay": `compensation.needs` names "enter.sum", but agent "book" keeps no "sum""#,
        ),
        (
            "needs: [enter.total,",
            "needs: [enter.kind,",
            r#"agent "returns" does not fit step "pay": `compensation.needs` names "enter.kind", but agent "book" keeps it only if it is present"#,
        ),
        (
            "output: kind",
            "output: sort",
            r#"agent "book" does not fit step "look": `when.output` cannot be read: agent "book" keeps no "sort""#,
        ),
    ] {
        let refusal = refusal(&changed(WORKFLOW, from, to), AGENTS);
        assert!(refusal.starts_with(expected), "{refusal}\n{expected}");
    }
}

#[test]
fn values_kept_by_agents_of_other_files_are_not_checked() {
    let bank = AGENTS.find("  - name: bank").unwrap();
    let without_book = format!("agents:\n{}", &AGENTS[bank..]);
    check(WORKFLOW, &without_book).unwrap();
    // But the steps are those of the workflow, whichever agent performs them.
    let refusal = refusal(
        WORKFLOW,
        &changed(
            &without_book,
            "X-Total: '{{results.enter",
            "X-Total: '{{results.exit",
        ),
    );
    assert!(
        refusal.contains(r#"the workflow has no step "exit""#),
        "{refusal}"
    );
}

#[test]
fn a_request_that_cannot_be_loaded_is_named_with_its_agent() {
    let agents = changed(AGENTS, "/look }", "'/{{nothing}}' }");
    let error = check(WORKFLOW, &agents).unwrap_err();
    let message = chain(&error);
    assert!(
        message.starts_with(r#"agent "book" cannot be loaded: `steps.look.path`"#),
        "{message}"
    );
}

#[test]
fn the_committed_agents_fit_the_committed_workflows() {
    for (workflow, agents) in [
        (
            "workflows/drone-delivery.yaml",
            "workflows/drone-delivery-agents.yaml",
        ),
        (
            "examples/order-fulfilment/workflow.yaml",
            "examples/order-fulfilment/agents.yaml",
        ),
    ] {
        let read = |path: &str| {
            let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(path).unwrap()
        };
        check(&read(workflow), &read(agents))
            .unwrap_or_else(|error| panic!("{agents}: {}", chain(&error)));
    }
}
