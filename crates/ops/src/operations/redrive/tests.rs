use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use waybill_api::verb::Verb;

use super::*;
use crate::access::AccessArgs;

#[test]
fn a_rate_is_a_number_a_second_within_bounds() {
    let rate = |text: &str| text.parse().map(|Rate(rate)| rate.get());
    assert_eq!(rate("5"), Ok(5));
    assert_eq!(rate("1000/s"), Ok(1_000));
    for bad in ["0", "1001", "-1", "5/m", "", "fast"] {
        assert!(rate(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_dry_run_shows_the_count_and_the_first_operations() {
    let many = many("--error e --dry-run --canary 2");
    let item = ItemView {
        id: Uuid::from_u128(7),
        state: "Error".into(),
        ..ItemView::default()
    };
    let json = RawValue::from_string(r#"{"id":"x"}"#.to_owned()).unwrap();
    let plan = Plan {
        ids: (0..5).map(Uuid::from_u128).collect(),
        first: vec![(json, item)],
        has_more: true,
    };
    let shown = |output| {
        let mut out = Vec::new();
        plan.show(&many, output, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        shown(Output::Json),
        "{\"matching\":5,\"canaries\":2,\"hasMore\":true,\"first\":[{\"id\":\"x\"}]}\n"
    );
    let table = shown(Output::Table);
    assert!(
        table.starts_with("matching  5\ncanaries  2\n\nOPERATION"),
        "{table}"
    );
    assert!(
        table.contains("\n00000000-0000-0000-0000-000000000007 Error "),
        "{table}"
    );
}

fn many(line: &str) -> Many {
    use clap::FromArgMatches as _;
    let command = clap::Command::new("verb")
        .no_binary_name(true)
        .arg(clap::Arg::new("id"));
    let command = Filter::augment_args(Many::augment_args(command));
    let matches = command.try_get_matches_from(line.split_whitespace());
    Many::from_arg_matches(&matches.unwrap()).unwrap()
}

/// An API that refuses every verb and shows one operation, first as `reads[0]`, then as the next
/// one, and so on.
async fn refusing_api(reads: Vec<Value>) -> Api {
    let count = Arc::new(AtomicUsize::new(0));
    let show = async move || {
        let read = count.fetch_add(1, Ordering::Relaxed);
        Json(reads[read.min(reads.len() - 1)].clone())
    };
    let refuse = async || (StatusCode::CONFLICT, Json(json!({ "code": "not-parked" })));
    let router = Router::new().route("/v1/operations/{id}", get(show).post(refuse));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Api::new(address.parse().unwrap(), &AccessArgs::default()).unwrap()
}

#[tokio::test]
async fn operations_that_changed_after_selection_are_skipped() {
    let id = Uuid::from_u128(7);
    let parked = json!({ "id": id, "state": "Error", "steps": [], "verbs": ["resubmit"] });
    let goes_on = json!({ "id": id, "state": "Processing", "steps": [], "verbs": ["cancel"] });
    let asking = Asking {
        verb: Verb::Resubmit,
        step: None,
        reason: None,
        by: None,
    };
    for (reads, outcome) in [
        (vec![parked.clone(), goes_on], "skipped"),
        (vec![parked], "refused"),
    ] {
        let api = refusing_api(reads).await;
        let (many, mut out) = (many("--all"), Vec::new());
        let mut redrive = Redrive::new(&api, &asking, None, &many, Output::Json, &mut out);
        let ended = redrive.run(vec![id]).await;
        assert_eq!(ended.is_ok(), outcome == "skipped", "{ended:?}");
        let report: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(report["outcome"], outcome);
    }
}
