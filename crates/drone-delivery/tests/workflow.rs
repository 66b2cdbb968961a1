//! The committed workflow and agents load, fit each other, and fit the services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use waybill_agent::Handler;
use waybill_agent::http::{AgentsFile, Variables};
use waybill_agent::testing::{StepRequestBuilder, attempt};
use waybill_drone_delivery::request::validate;
use waybill_drone_delivery::services::{Services, ServicesSettings, StepCounts, Summary};
use waybill_drone_delivery::{AGENTS_YAML, WORKFLOW_YAML};
use waybill_engine::{OperationId, Outcome, Outputs, Workflow, WorkflowDefinition};

const STEPS: [&str; 5] = ["account", "package", "third-party", "drone", "delivery"];

fn workflow() -> Workflow {
    let definition: WorkflowDefinition = serde_saphyr::from_str(WORKFLOW_YAML).expect("YAML");
    Workflow::try_from(definition).expect("a workflow that can run")
}

fn agents(services: &str) -> BTreeMap<String, Arc<dyn Handler>> {
    let program = [("services".to_owned(), services.to_owned())];
    let variables = Variables::new(program.into(), BTreeMap::new());
    AgentsFile::from_yaml(AGENTS_YAML)
        .expect("YAML")
        .load(&variables)
        .expect("agents that can work")
        .into_iter()
        .collect()
}

/// The five agents, and the services that they call.
struct Site {
    _directory: tempfile::TempDir,
    services: Services,
    agents: BTreeMap<String, Arc<dyn Handler>>,
}

impl Site {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = ServicesSettings::new(([127, 0, 0, 1], 0).into(), directory.path().to_owned());
        let services = Services::start(config).await.expect("the services start");
        let agents = agents(&format!("http://{}", services.address()));
        Self {
            _directory: directory,
            services,
            agents,
        }
    }

    /// One attempt at a step of a delivery.
    async fn attempt(
        &self,
        operation: OperationId,
        step: &str,
        input: &str,
        results: &Outputs,
    ) -> Outcome {
        let mut request = StepRequestBuilder::new(step, step)
            .operation(operation)
            .input(input)
            .build();
        request.results = results.clone();
        attempt(&*self.agents[step], request)
            .await
            .expect("an outcome before complete-by")
    }

    async fn summary(&self) -> Summary {
        let url = format!("http://{}/ledger/summary", self.services.address());
        let answer = reqwest::get(url).await.expect("an answer");
        answer.json().await.expect("JSON")
    }
}

fn input(change: impl FnOnce(&mut Value)) -> String {
    let mut request = json!({
        "ownerId": "my/owner", "pickupLocation": "here", "dropOffLocation": "there",
        "packageInfo": { "packageId": "package 1?", "size": "Small" }
    });
    change(&mut request);
    let request = validate(&request).expect("a good request");
    String::from_utf8(request.canonical_json()).expect("UTF-8")
}

fn operation() -> OperationId {
    OperationId::of_caller("", "a delivery")
}

fn outputs(outcome: Outcome) -> Outputs {
    match outcome {
        Outcome::Success { outputs } => outputs,
        other => panic!("no success: {other:?}"),
    }
}

#[test]
fn the_workflow_has_the_five_steps_and_every_agent_is_defined() {
    let workflow = workflow();
    let steps: Vec<_> = workflow.steps().iter().map(|step| &*step.name).collect();
    assert_eq!(steps, STEPS);
    let agents = agents("http://127.0.0.1:8082");
    let agents: BTreeSet<_> = agents.keys().map(String::as_str).collect();
    let used: BTreeSet<_> = workflow.steps().iter().map(|step| &*step.agent).collect();
    assert_eq!(agents, used);
}

#[tokio::test]
async fn repeated_requests_perform_each_step_once() {
    let site = Site::start().await;
    let input = input(|_| {});
    for _ in 0..2 {
        let mut results = Outputs::new();
        for step in STEPS {
            let produced = outputs(site.attempt(operation(), step, &input, &results).await);
            results.extend(
                produced
                    .into_iter()
                    .map(|(name, value)| (format!("{step}.{name}"), value)),
            );
        }
        let results: BTreeMap<_, _> = results.into_iter().collect();
        assert_eq!(results["third-party.required"], "false");
        assert!(results["drone.droneId"].starts_with("drone-"));
    }
    let once = StepCounts {
        run: 1,
        standing: 1,
        repeats: 1,
        ..StepCounts::default()
    };
    let summary = site.summary().await;
    assert_eq!(
        summary.effects,
        ["package", "drone", "delivery"]
            .map(|step| (step.to_owned(), once))
            .into()
    );
    assert_eq!((summary.repeats, summary.double), (3, 0));
    assert_eq!((summary.operations, summary.complete), (1, 1));
}

#[tokio::test]
async fn a_remote_delivery_books_transport_instead_of_a_drone() {
    let site = Site::start().await;
    let input = input(|request| request["dropOffLocation"] = "a remote island".into());
    let required = site
        .attempt(operation(), "third-party", &input, &Outputs::new())
        .await;
    assert_eq!(
        outputs(required),
        [("required".to_owned(), "true".to_owned())]
    );
    let results = vec![("third-party.required".to_owned(), "true".to_owned())];
    outputs(
        site.attempt(operation(), "delivery", &input, &results)
            .await,
    );
    let effects = site.summary().await.effects;
    assert_eq!(
        effects.keys().collect::<Vec<_>>(),
        ["delivery", "third-party"]
    );
}

#[tokio::test]
async fn a_suspended_owner_is_refused_for_good_with_a_stable_code() {
    let site = Site::start().await;
    let input = input(|request| request["ownerId"] = "suspended-1".into());
    let outcome = site
        .attempt(operation(), "account", &input, &Outputs::new())
        .await;
    match outcome {
        Outcome::Permanent { error } => assert_eq!(error.code, "owner-suspended"),
        other => panic!("not permanent: {other:?}"),
    }
}
