//! Small runs of both baselines, and comparisons of hand-written parts with their originals.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use uuid::Uuid;
use waybill_agent::StepCall;
use waybill_agent::http::{AgentsFile, Variables};
use waybill_drone_delivery::services::{Services, ServicesSettings, Summary};
use waybill_engine::{
    Action, Attempt, Epoch, OperationId, OperationRequest, OperationStatus, Outcome as StepOutcome,
    PartitionId, ProcessState, Stamp, StepReply, StepRequest, Timestamp,
};
use waybill_messages::{Framing, Record};

use super::calls::{Call, Step};
use super::pattern::{Patterns, Template};
use super::{Arguments, Baseline, Outcome, floor, textbook};
use crate::delivery::Delivery;

/// The number of deliveries; a fifth of them are remote.
const COUNT: &str = "200";
const FLOWN: Delivery = Delivery::new(7);
const REMOTE: Delivery = Delivery::new(10);
const DRONE: &str = "drone-0123456789ab";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

/// Runs a command line.
fn run(line: &[&str]) -> Outcome {
    let line = ["baseline"].iter().chain(line);
    match Line::parse_from(line).arguments.baseline {
        Baseline::Floor(arguments) => floor::run(&arguments).unwrap(),
        Baseline::Textbook(arguments) => textbook::run(&arguments).unwrap(),
    }
}

#[test]
fn the_floor_completes_every_delivery_without_services() {
    let outcome = run(&["floor", "--no-services", "--count", COUNT]);
    assert_eq!(outcome.completed, 200);
    assert!(outcome.seconds > 0.0);
}

#[test]
fn the_floor_completes_with_fewer_deliveries_in_progress_than_in_total() {
    let small = ["--window", "7", "--batch", "3", "--partitions", "1"];
    let line = ["floor", "--no-services", "--count", COUNT];
    assert_eq!(run(&[&line[..], &small[..]].concat()).completed, 200);
}

#[test]
fn the_textbook_completes_every_delivery_without_services() {
    let outcome = run(&["textbook", "--no-services", "--count", COUNT]);
    assert_eq!(outcome.completed, 200);
    assert!(outcome.seconds > 0.0);
}

#[test]
fn the_floor_makes_every_effect_once() {
    has_every_effect_made_once("floor");
}

#[test]
fn the_textbook_makes_every_effect_once() {
    has_every_effect_made_once("textbook");
}

fn has_every_effect_made_once(baseline: &str) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let config = ServicesSettings::new("127.0.0.1:0".parse().unwrap(), dir.path().to_owned());
    let services = runtime.block_on(Services::start(config)).unwrap();
    let address = services.address();
    let at = address.to_string();
    let outcome = run(&[baseline, "--services", &at, "--count", COUNT]);
    assert_eq!(outcome.completed, 200);

    let summary = runtime.block_on(summary(address));
    assert_eq!((summary.operations, summary.complete), (200, 200));
    assert_eq!((summary.repeats, summary.double), (0, 0));
    let made = |step: &str| summary.effects[step].run;
    assert_eq!(
        ["package", "third-party", "drone", "delivery"].map(made),
        [200, 40, 160, 200]
    );
    runtime.block_on(services.shutdown());
}

async fn summary(services: SocketAddr) -> Summary {
    let answer = reqwest::get(format!("http://{services}/ledger/summary"));
    let body = answer.await.unwrap().bytes().await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[test]
fn an_existing_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let line = ["baseline", "floor", "--no-services", "--data-dir", path];
    let Baseline::Floor(arguments) = Line::parse_from(line).arguments.baseline else {
        unreachable!("it was requested");
    };
    let refused = floor::run(&arguments).unwrap_err().to_string();
    assert!(refused.contains("cannot create"), "{refused}");
    assert!(dir.path().exists());
}

#[test]
fn running_without_services_requires_a_flag() {
    let arguments = Line::parse_from(["baseline", "floor", "--count", "1"]).arguments;
    let Baseline::Floor(mut arguments) = arguments.baseline else {
        unreachable!("it was requested");
    };
    // Independent of the environment.
    arguments.common.services = None;
    let refused = floor::run(&arguments).unwrap_err().to_string();
    assert!(refused.contains("--no-services"), "{refused}");
}

#[test]
fn copied_records_decode_as_those_of_their_operations() {
    let patterns = Patterns::new(&Framing::single_object()).unwrap();
    let id = OperationId(Uuid::from_u128(0x1234_5678));
    for (delivery, steps) in [(FLOWN, &Step::ALL[..]), (REMOTE, &remote_steps()[..])] {
        let pattern = patterns.of(delivery);
        let create: OperationRequest = copied(&pattern.request, id);
        assert_eq!(create.operation(), id);
        let OperationRequest::Create(create) = create else {
            panic!("{create:?}");
        };
        let input = String::from_utf8(create.input).unwrap();
        assert!(input.contains(&id.to_string()), "{input}");
        assert!(input.contains(delivery.place()), "{input}");

        let row = pattern.created.write(id, Stamp(1));
        assert!(row.created.is_some());
        let mut step = Some(Step::Account);
        let mut taken = Vec::new();
        while let Some(of) = step {
            taken.push(of);
            let request: StepRequest = copied(&pattern.step(of).request, id);
            assert_eq!((request.operation, &*request.step), (id, of.name()));
            let reply: StepReply = copied(&pattern.step(of).reply, id);
            assert_eq!((reply.operation, &*reply.step), (id, of.name()));
            assert!(matches!(reply.outcome, StepOutcome::Success { .. }));
            step = of.next(delivery.is_remote());
            let row = pattern.row(of).write(id, Stamp(2));
            let is_final = step.is_none();
            assert_eq!(row.state.state == ProcessState::Processed, is_final);
            assert_eq!(row.created.is_some(), is_final);
            assert_eq!(row.keep_for.is_some(), is_final);
        }
        assert_eq!(taken, steps);
        let status: OperationStatus = copied(&pattern.status, id);
        assert_eq!(
            (status.operation, status.state),
            (id, ProcessState::Processed)
        );
    }
}

fn remote_steps() -> Vec<Step> {
    let mut steps = Step::ALL.to_vec();
    steps.retain(|step| *step != Step::Drone);
    steps
}

fn copied<R: Record>(template: &Template, id: OperationId) -> R {
    let mut value = b"what was there before".to_vec();
    template.copy(&id.key(), &mut value);
    R::decode(&value).unwrap()
}

/// A request to a service: method, path, idempotency key, type and body.
type Asked = (String, String, String, Option<String>, String);

#[tokio::test]
async fn the_calls_are_those_of_the_built_in_agents() {
    let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(answer_all(listener, Arc::clone(&asked)));
    let take = || std::mem::take(&mut *asked.lock().unwrap());

    let file = AgentsFile::from_yaml(waybill_drone_delivery::AGENTS_YAML).unwrap();
    let program = BTreeMap::from([("services".to_owned(), format!("http://{address}"))]);
    let variables = Variables::new(program, BTreeMap::new());
    let agents: BTreeMap<_, _> = file.load(&variables).unwrap().into_iter().collect();
    let services = floor::calling::Services::connect(&address).await.unwrap();
    let operation = OperationId(Uuid::now_v7());
    for (delivery, steps) in [(FLOWN, Step::ALL.to_vec()), (REMOTE, remote_steps())] {
        let flies = !delivery.is_remote();
        for step in steps {
            let call = step_call(step, operation, delivery);
            let outcome = agents[step.name()].run(&call).await;
            assert!(
                matches!(outcome, StepOutcome::Success { .. }),
                "{outcome:?}"
            );
            let of_agent = take();
            assert_eq!(of_agent.len(), 1);

            let call = Call::new(step, operation, delivery, flies.then_some(DRONE));
            let complete_by = floor::calling::complete_by().unwrap();
            services.call(step, call, complete_by).await.unwrap();
            assert_eq!(take(), of_agent, "{step:?}");
        }
    }
}

fn step_call(step: Step, operation: OperationId, delivery: Delivery) -> StepCall {
    let drone = ("drone.droneId".to_owned(), DRONE.to_owned());
    let flies = step == Step::Delivery && !delivery.is_remote();
    let request = StepRequest {
        operation,
        workflow: "drone-delivery".into(),
        step: step.name().into(),
        agent: step.name().into(),
        attempt: Attempt(1),
        epoch: Epoch(1),
        action: Action::Run,
        complete_by: Timestamp::from_millis(1_893_456_000_000),
        tenant: "".into(),
        input: delivery.body().into_bytes().into(),
        results: flies.then_some(drone).into_iter().collect(),
        reply_partition: PartitionId(0),
        shard: None,
        nonce: None,
        traceparent: None,
    };
    let sent = tokio::time::Instant::now();
    StepCall {
        request,
        sent,
        deadline: sent + Duration::from_secs(30),
    }
}

/// Records every request and answers it with a success.
async fn answer_all(listener: TcpListener, asked: Arc<Mutex<Vec<Asked>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let asked = Arc::clone(&asked);
        let service = service_fn(move |request| note(Arc::clone(&asked), request));
        let connection = http2::Builder::new(TokioExecutor::new());
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
    }
}

async fn note(
    asked: Arc<Mutex<Vec<Asked>>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let header = |name: &str| {
        let value = head.headers.get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    assert!(header("waybill-complete-by").is_some());
    let body = body.collect().await.unwrap().to_bytes();
    asked.lock().unwrap().push((
        head.method.to_string(),
        head.uri.path().to_owned(),
        header("idempotency-key").unwrap(),
        header("content-type"),
        String::from_utf8(body.to_vec()).unwrap(),
    ));
    let answer = format!(r#"{{"droneId":"{DRONE}","required":false}}"#);
    Ok(Response::new(Full::new(Bytes::from(answer))))
}
