//! Additional requests about accepted ones: cancels and repeats.
//!
//! They have their own connections, so that they delay no other request.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use hyper::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::sync::mpsc::UnboundedReceiver;
use waybill_engine::OperationId;

use super::Source;
use super::client::Client;
use super::http::single;
use crate::scenario::kind::{Drawn, Kind};

/// The number of connections.
const CONNECTIONS: usize = 8;
/// The maximum number of tries while the server has no answer yet.
const TRIES: usize = 200;
const PAUSE: Duration = Duration::from_millis(50);

/// Sends the additional requests.
pub(super) struct FollowUps {
    asked: UnboundedReceiver<(OperationId, Drawn)>,
    clients: VecDeque<Client>,
    source: Rc<Source>,
}

#[derive(Deserialize)]
struct Answered {
    id: OperationId,
}

impl FollowUps {
    /// Sends requests for the operations from `asked`, until all senders are gone.
    pub(super) fn new(source: Rc<Source>, asked: UnboundedReceiver<(OperationId, Drawn)>) -> Self {
        Self {
            asked,
            clients: (0..CONNECTIONS)
                .map(|_| Client::new(source.http.clone()))
                .collect(),
            source,
        }
    }

    /// Serves until the end of the run.
    pub(super) async fn serve(mut self) {
        let mut working = tokio::task::JoinSet::new();
        loop {
            let client = match self.clients.pop_front() {
                Some(client) => client,
                None => match working.join_next().await {
                    Some(Ok(client)) => client,
                    Some(Err(_)) | None => return,
                },
            };
            let Some((id, drawn)) = self.asked.recv().await else {
                break;
            };
            let source = self.source.clone();
            working.spawn_local(async move {
                let mut client = client;
                match drawn.kind {
                    Kind::Repeated => repeat(&mut client, &source, id, drawn).await,
                    _ => cancel(&mut client, &source, id, drawn).await,
                }
                client
            });
        }
        while working.join_next().await.is_some() {}
    }
}

/// A repeated request must return the same operation.
async fn repeat(client: &mut Client, source: &Source, id: OperationId, drawn: Drawn) {
    let (path, body) = single(source, drawn);
    for _ in 0..TRIES {
        let answer = client.post(path, "application/json", body.clone()).await;
        match answer {
            Ok((StatusCode::ACCEPTED | StatusCode::OK, body)) => {
                match serde_json::from_slice::<Answered>(&body) {
                    Ok(answered) if answered.id == id => {}
                    Ok(answered) => source.results.wrong_answer(format!(
                        "{id}: a repeat of the request created another operation, {}",
                        answered.id
                    )),
                    Err(_) => source
                        .results
                        .wrong_answer(format!("{id}: a repeat was answered without an id")),
                }
                return;
            }
            Ok((status, _)) if is_for_now(status) => tokio::time::sleep(PAUSE).await,
            Err(_) => tokio::time::sleep(PAUSE).await,
            Ok((status, _)) => {
                let what = format!("{id}: a repeat of the request was answered {status}");
                source.results.wrong_answer(what);
                return;
            }
        }
    }
    let what = format!("{id}: a repeat of the request was not answered");
    source.results.wrong_answer(what);
}

/// A cancel of an accepted operation must succeed, or be too late.
async fn cancel(client: &mut Client, source: &Source, id: OperationId, drawn: Drawn) {
    let tenant = source.tenant(drawn).map(|tenant| {
        let tenant = utf8_percent_encode(tenant, NON_ALPHANUMERIC);
        format!("?tenant={tenant}")
    });
    let path = format!("/api/deliveryrequests/{id}{}", tenant.unwrap_or_default());
    for _ in 0..TRIES {
        match client.delete(&path).await {
            Ok((StatusCode::ACCEPTED | StatusCode::OK | StatusCode::CONFLICT, _)) => return,
            // An ID that was derived from a tenant's own is known once its request was consumed.
            Ok((status, _)) if is_for_now(status) || status == StatusCode::NOT_FOUND => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
            Ok((status, _)) => {
                source
                    .results
                    .wrong_answer(format!("{id}: its cancel was answered {status}"));
                return;
            }
        }
    }
    source
        .results
        .wrong_answer(format!("{id}: its cancel was not answered"));
}

/// Whether a retry may succeed soon: the server is overloaded, or its tenant is over a limit.
fn is_for_now(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}
