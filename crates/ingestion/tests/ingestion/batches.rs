//! Batches of requests.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use waybill_engine::OperationId;

use super::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_answers_each_line_in_order_and_bad_lines_harm_no_other() {
    let setup = Setup::start().await;
    setup.request(order("taken", 1)).await;
    let lines = [
        order("b-1", 1).to_string(),
        "{oops".to_owned(),
        format!("\"{}\"", "x".repeat(65 * 1024)),
        String::new(),
        json!({"workflow": "drone-delivery", "input": delivery()}).to_string() + "\r",
        order("taken", 2).to_string(),
        json!({"workflow": "nope", "input": {}}).to_string(),
        order("b-2", 1).to_string(),
    ];
    let blank = "\n \t\r\n";
    let body = format!("{blank}{}{blank}", lines.join("\n"));
    let response = setup.post(BATCH, body).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[CONTENT_TYPE], "application/x-ndjson");
    let text = response.text().await.unwrap();
    let answers: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let statuses: Vec<_> = answers
        .iter()
        .map(|answer| answer["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [202, 400, 413, 202, 409, 422, 202], "{text}");
    let numbers: Vec<_> = answers
        .iter()
        .map(|answer| answer["line"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [3, 4, 5, 7, 8, 9, 10], "{text}");
    assert_eq!(
        answers[0]["id"],
        OperationId::of_caller("", "b-1").to_string()
    );
    assert!(answers[0]["location"].as_str().unwrap().contains("?at="));
    assert_eq!(answers[1]["problem"]["type"], "/problems/malformed-json");
    assert_eq!(answers[5]["problem"]["errors"][0]["pointer"], "/workflow");
    assert_eq!(setup.records().len(), 4);

    let with_key = setup.post(BATCH, "").header("idempotency-key", "k");
    assert_eq!(problem(with_key.send().await.unwrap()).await.0, 422);
    let (status, ..) = problem(
        setup
            .http
            .post(setup.url(BATCH))
            .header(CONTENT_TYPE, "application/json")
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(status, 415);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_is_streamed_and_a_truncated_line_is_refused() {
    let setup = Setup::with(|config| config.batch_lines_max = 50).await;
    let count = 2_000;
    let mut body = String::new();
    for number in 0..count {
        body.push_str(&order(&format!("n-{number}"), number).to_string());
        body.push('\n');
    }
    let text = setup
        .post(BATCH, body)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert_eq!(
        text.lines()
            .filter(|line| line.contains("\"status\":202"))
            .count(),
        count as usize
    );
    for (number, line) in text.lines().enumerate() {
        let id = OperationId::of_caller("", &format!("n-{number}")).to_string();
        assert!(line.contains(&id), "line {number} is {line}");
    }
    assert_eq!(setup.records().len(), count as usize);

    let whole = order("whole", 1).to_string();
    let cut = order("cut-off", 1).to_string();
    let mut socket = TcpStream::connect(setup.ingestion.address()).await.unwrap();
    let head = format!(
        "POST {BATCH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-ndjson\r\nContent-Length: 9999\r\n\r\n"
    );
    socket
        .write_all(format!("{head}{whole}\n{cut}").as_bytes())
        .await
        .unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = String::new();
    within(socket.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.contains("\"status\":202"), "{answer}");
    assert!(answer.contains("/problems/incomplete-body"), "{answer}");
    let records = setup.records();
    assert_eq!(records.len(), count as usize + 1);
    assert!(
        records
            .iter()
            .all(|record| record.request.caller_id.as_deref() != Some("cut-off"))
    );
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_one_batch_with_one_id_share_an_answer_or_conflict() {
    let setup = Setup::start().await;
    let lines = [order("same", 1), order("same", 2), order("same", 1)];
    let lines = lines.map(|line| line.to_string()).join("\n");
    let response = setup.post(BATCH, lines).send().await.unwrap();
    let text = response.text().await.unwrap();
    let answers: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let statuses: Vec<_> = answers.iter().map(|answer| &answer["status"]).collect();
    assert_eq!(statuses, [202, 409, 202], "{text}");
    assert_eq!(answers[0]["location"], answers[2]["location"]);
    assert_eq!(answers[1]["problem"]["type"], "/problems/id-conflict");
    assert_eq!(setup.records().len(), 1);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_line_ends_its_batch() {
    let setup = Setup::with(|config| config.body_timeout = Duration::from_millis(300)).await;
    let mut socket = TcpStream::connect(setup.ingestion.address()).await.unwrap();
    let line = order("whole", 1).to_string() + "\n";
    let begun = format!(
        "POST {BATCH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-ndjson\r\n\
         Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{line}\r\n",
        line.len()
    );
    socket.write_all(begun.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = socket.into_split();
    let dripping = tokio::spawn(async move {
        let mut drip = tokio::time::interval(Duration::from_millis(10));
        loop {
            drip.tick().await;
            if writer.write_all(b"1\r\n \r\n").await.is_err() {
                return;
            }
        }
    });
    let mut answer = String::new();
    let mut part = [0; 1024];
    while !answer.contains("No complete line arrived for 0.3 seconds") {
        let n = within(reader.read(&mut part)).await.unwrap();
        assert!(n > 0, "it ended without saying why: {answer}");
        answer.push_str(std::str::from_utf8(&part[..n]).unwrap());
    }
    dripping.abort();
    assert!(answer.contains("\"status\":202"), "{answer}");
    assert!(answer.contains("\"status\":408"), "{answer}");
    setup.ingestion.shutdown().await;
}
