//! Streams of an operation's events.

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use waybill_engine::{
    Action, Attempt, OperationId, ProcessState, Stamp, StepProgress, StepState, Timestamp,
};
use waybill_store::RowWrite;

use super::setup::*;

/// A received event: its ID and its data.
type Event = (String, Value);

/// An open stream.
struct Stream {
    response: Response,
    text: String,
}

impl Stream {
    async fn open(setup: &Setup, path: &str, last: Option<&str>) -> Self {
        let mut request = setup.http.get(setup.url(path));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        Self {
            response,
            text: String::new(),
        }
    }

    /// The next block, up to its empty line; `None` at the end.
    async fn piece(&mut self) -> Option<String> {
        loop {
            if let Some((piece, rest)) = self.text.split_once("\n\n") {
                let (piece, rest) = (piece.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(piece);
            }
            let chunk = within(self.response.chunk()).await.unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next event; `None` at the end.
    async fn event(&mut self) -> Option<Event> {
        loop {
            let piece = self.piece().await?;
            let Some(data) = piece.lines().find_map(|line| line.strip_prefix("data: ")) else {
                continue;
            };
            let id = piece.lines().find_map(|line| line.strip_prefix("id: "));
            let data: Value = serde_json::from_str(data).unwrap();
            let kind = format!("event: {}", data["type"].as_str().unwrap());
            assert!(piece.lines().any(|line| line == kind), "{piece}");
            return Some((id.unwrap_or_default().to_owned(), data));
        }
    }
}

fn step(state: StepState, attempt: u32) -> StepProgress {
    StepProgress {
        state,
        action: Action::Run,
        attempt: Attempt(attempt),
        changed_at: Timestamp(5),
        ..StepProgress::default()
    }
}

fn at(id: OperationId, stamp: i64, state: ProcessState, step: StepProgress) -> RowWrite {
    let mut row = row(id, "order", state);
    row.state.steps = vec![step];
    RowWrite {
        stamp: Stamp(stamp),
        ..row
    }
}

/// The path of the events of an operation whose step is running.
async fn events_of_a_running_one(setup: &Setup) -> String {
    let id = OperationId::of_caller("", "slow");
    let running = step(StepState::Running, 1);
    setup
        .write(at(id, 1, ProcessState::Processing, running))
        .await;
    format!("{OPERATIONS}/{id}/events")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_waits_for_a_pending_operation_and_ends_with_its_end() {
    let setup = Setup::start().await;
    let accepted = setup.request(order("o-1", 1)).await;
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    let id = OperationId::of_caller("", "o-1");
    let path = format!("{OPERATIONS}/o-1/events");
    let mut stream = Stream::open(&setup, &path, None).await;
    assert_eq!(stream.piece().await.as_deref(), Some("retry: 1000"));

    let running = step(StepState::Running, 1);
    setup
        .write(at(id, 1, ProcessState::Processing, running))
        .await;
    let (_, received) = stream.event().await.unwrap();
    assert_eq!(received["type"], "received");
    assert_eq!(received["operation"], id.to_string());
    let (seen, running) = stream.event().await.unwrap();
    assert_eq!(
        running,
        json!({"operation": id.to_string(), "type": "step", "state": "Running", "step": "one",
               "attempt": 1, "action": "Run", "at": "1970-01-01T00:00:00.000005Z"})
    );

    let completed = step(StepState::Completed, 1);
    setup
        .write(at(id, 2, ProcessState::Processed, completed))
        .await;
    let mut states = Vec::new();
    let mut last = String::new();
    while let Some((id, event)) = stream.event().await {
        states.push((event["type"].clone(), event["state"].clone()));
        last = id;
    }
    let expected = [("step", "Completed"), ("final", "Processed")];
    assert_eq!(
        states,
        expected.map(|(kind, state)| (json!(kind), json!(state)))
    );

    let mut resumed = Stream::open(&setup, &path, Some(&seen)).await;
    let (_, first) = resumed.event().await.unwrap();
    assert_eq!(
        (&first["type"], &first["state"]),
        (&json!("step"), &json!("Completed"))
    );
    let resumed_at_end = setup
        .http
        .get(setup.url(&path))
        .header("last-event-id", last);
    assert_eq!(
        resumed_at_end.send().await.unwrap().status(),
        StatusCode::NO_CONTENT
    );
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_final_operation_sends_the_end_and_closes() {
    let setup = Setup::start().await;
    let id = OperationId::of_caller("", "done");
    let completed = step(StepState::Completed, 3);
    setup
        .write(at(id, 1, ProcessState::Processed, completed))
        .await;
    let mut stream = Stream::open(&setup, &format!("{OPERATIONS}/{id}/events"), None).await;
    let mut kinds = Vec::new();
    while let Some((_, event)) = stream.event().await {
        kinds.push(event["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(kinds, ["received", "step", "final"]);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_rejected_duplicate_reports_it() {
    let setup = Setup::with(|config| config.recent_accepted_max = 0).await;
    setup.request(order("twin", 1)).await;
    let loser = setup.request(order("twin", 2)).await;
    let location = location(&loser);
    let (_, at) = location.split_once('?').unwrap();
    let events = format!("{OPERATIONS}/twin/events?{at}");
    let mut waiting = Stream::open(&setup, &events, None).await;
    setup
        .schedule(&setup.records()[0], ProcessState::Processing)
        .await;
    let mut late = Stream::open(&setup, &events, None).await;
    for stream in [&mut waiting, &mut late] {
        let (id, event) = stream.event().await.unwrap();
        assert_eq!((id.as_str(), &event["state"]), ("", &json!("Rejected")));
        assert_eq!(event["error"]["code"], "id-conflict");
        assert_eq!(stream.event().await, None);
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_and_freed_when_the_client_disconnects() {
    // The server notices a disconnected client only when it sends something.
    let setup = Setup::with(|config| {
        config.event_streams_max = 2;
        config.accept_timeout = Duration::from_millis(100);
        config.idle_timeout = Duration::from_secs(1);
    })
    .await;
    let path = events_of_a_running_one(&setup).await;
    let first = Stream::open(&setup, &path, None).await;
    let _second = Stream::open(&setup, &path, None).await;
    let third = setup.http.get(setup.url(&path)).send().await.unwrap();
    let (status, kind, _) = problem(third).await;
    assert_eq!((status, kind.as_str()), (503, "overloaded"));

    drop(first);
    within(async {
        loop {
            let response = setup.http.get(setup.url(&path)).send().await.unwrap();
            if response.status() == StatusCode::OK {
                return;
            }
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            tokio::task::yield_now().await;
        }
    })
    .await;
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_kept_alive_beyond_the_idle_time_out_and_ends_at_shutdown() {
    let setup = Setup::with(|config| {
        config.accept_timeout = Duration::from_millis(100);
        config.idle_timeout = Duration::from_secs(1);
    })
    .await;
    let path = events_of_a_running_one(&setup).await;
    let mut stream = Stream::open(&setup, &path, None).await;
    let mut heartbeats = 0;
    while heartbeats < 4 {
        let piece = stream.piece().await.expect("the stream continues");
        heartbeats += usize::from(piece == ": keep-alive");
    }
    setup.ingestion.shutdown().await;
    assert_eq!(stream.event().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_operation_has_no_events_and_an_invalid_event_id_is_refused() {
    let setup = Setup::start().await;
    let (status, _) = setup.get(&format!("{OPERATIONS}/nobody/events")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let path = events_of_a_running_one(&setup).await;
    let response = setup
        .http
        .get(setup.url(&path))
        .header("last-event-id", "made-up")
        .send()
        .await
        .unwrap();
    let (status, kind, _) = problem(response).await;
    assert_eq!((status, kind.as_str()), (422, "invalid-values"));
    setup.ingestion.shutdown().await;
}
