//! The agents of the textbook design: a step request in, a call, a reply out.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use rdkafka::Message as _;
use rdkafka::consumer::StreamConsumer;
use rdkafka::message::OwnedMessage;
use rdkafka::producer::FutureProducer;
use serde_json::Value;
use tokio::task::JoinSet;
use waybill_engine::OperationId;

use super::messages::{StepReply, StepRequest};
use super::{consumer, part, producer, send};
use crate::calls::{Call, Step};
use crate::delivery::Delivery;
use crate::installation::Installation;

/// The state of an agent.
struct Agent {
    producer: FutureProducer,
    replies: String,
    client: reqwest::Client,
    /// The services' base URL; `None` to call no service.
    services: Option<String>,
}

/// Starts an agent for each step, and returns their consumers.
pub fn start_all(
    installation: &Arc<Installation>,
    services: Option<&str>,
    parts: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<Vec<Arc<StreamConsumer>>> {
    let agent = Arc::new(Agent {
        producer: producer(installation)?,
        replies: installation.topics.step_replies().to_owned(),
        client: reqwest::Client::new(),
        services: services.map(|services| format!("http://{services}")),
    });
    let start = |step: Step| {
        let topic = installation.topics.step_requests(step.name());
        let consumer = Arc::new(consumer(installation, step.name(), &[&topic])?);
        let agent = Arc::clone(&agent);
        let handle = move |message| handle(Arc::clone(&agent), step, message);
        part::start(Arc::clone(&consumer), handle, parts);
        Ok(consumer)
    };
    Step::ALL.into_iter().map(start).collect()
}

async fn handle(agent: Arc<Agent>, step: Step, message: OwnedMessage) -> anyhow::Result<()> {
    let request: StepRequest = serde_json::from_slice(message.payload().unwrap_or_default())?;
    let outputs = agent.perform(step, &request).await?;
    let reply = StepReply {
        operation: request.operation,
        index: request.index,
        step: request.step,
        outputs,
    };
    send(&agent.producer, &agent.replies, reply.operation, &reply).await
}

impl Agent {
    async fn perform(
        &self,
        step: Step,
        request: &StepRequest,
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let delivery = Delivery::new(request.index as usize);
        let answer = match &self.services {
            Some(services) => self.call(services, step, request, delivery).await?,
            None => without_services(step, delivery),
        };
        let kept = match step {
            Step::Account | Step::Package | Step::Delivery => return Ok(BTreeMap::new()),
            Step::ThirdParty => "required",
            Step::Drone => "droneId",
        };
        let answer: Value = serde_json::from_str(&answer)?;
        let value = answer
            .get(kept)
            .context("the answer lacks the value to keep")?;
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        Ok(BTreeMap::from([(kept.to_owned(), text)]))
    }

    async fn call(
        &self,
        services: &str,
        step: Step,
        request: &StepRequest,
        delivery: Delivery,
    ) -> anyhow::Result<String> {
        let drone = request.results.get("drone.droneId").map(String::as_str);
        let call = Call::new(step, OperationId(request.operation), delivery, drone);
        let url = format!("{services}{}", call.path);
        let exchange = match call.method {
            "GET" => self.client.get(url),
            _ => self
                .client
                .put(url)
                .header("content-type", "application/json")
                .body(call.body),
        };
        let exchange = exchange.header("idempotency-key", &request.idempotency_key);
        let answer = exchange.send().await?.error_for_status()?;
        Ok(answer.text().await?)
    }
}

/// The answer of the service in a run without services.
fn without_services(step: Step, delivery: Delivery) -> String {
    match step {
        Step::ThirdParty => format!(r#"{{"required":{}}}"#, delivery.is_remote()),
        _ => r#"{"droneId":"drone-0123456789ab"}"#.to_owned(),
    }
}
