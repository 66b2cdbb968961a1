//! The connection over HTTP/2, against a service that a test simulates frame by frame.

use bytes::Bytes;
use h2::server::{self, SendResponse};
use hyper::{Request, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::*;

type Line = server::Connection<TcpStream, Bytes>;

async fn listen() -> (TcpListener, HttpAgent) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // No retries inside the attempt.
    let settings = format!("http2: true\nretries: {{ max: 0 }}\ntimeout: 10s\n{PUT}");
    let agent = agent(&url, &settings);
    (listener, agent)
}

async fn accept(listener: &TcpListener) -> Line {
    let (stream, _) = listener.accept().await.unwrap();
    server::handshake(stream).await.unwrap()
}

/// The connection of a service that accepts one request at a time.
async fn accept_one_at_a_time(listener: &TcpListener) -> Line {
    let (stream, _) = listener.accept().await.unwrap();
    let mut builder = server::Builder::new();
    let handshake = builder.max_concurrent_streams(1).handshake(stream);
    handshake.await.unwrap()
}

async fn next(line: &mut Line) -> (Request<h2::RecvStream>, SendResponse<Bytes>) {
    line.accept().await.unwrap().unwrap()
}

fn answer(mut to: SendResponse<Bytes>, body: &'static str) {
    let head = Response::builder().status(200).body(()).unwrap();
    let mut sending = to.send_response(head, false).unwrap();
    sending
        .send_data(Bytes::from_static(body.as_bytes()), true)
        .unwrap();
}

/// Drives the connection until the other side has received all frames.
async fn serve(mut line: Line) {
    while let Some(Ok(_)) = line.accept().await {}
}

#[tokio::test]
async fn many_requests_share_one_connection_and_each_has_its_body_and_length() {
    let (listener, agent) = listen().await;
    let service = tokio::spawn(async move {
        let mut line = accept(&listener).await;
        let mut asked = Vec::new();
        for _ in 0..3 {
            asked.push(next(&mut line).await);
        }
        let mut lengths = Vec::new();
        for (request, to) in asked {
            lengths.push(request.headers()["content-length"].clone());
            answer(to, "{}");
        }
        serve(line).await;
        lengths
    });
    let outcomes = tokio::join!(outcome(&agent), outcome(&agent), outcome(&agent));
    for outcome in [outcomes.0, outcomes.1, outcomes.2] {
        assert_eq!(kind_and_code(&outcome).0, "success", "{outcome:?}");
    }
    drop(agent);
    assert_eq!(service.await.unwrap(), ["10", "10", "10"]);
}

#[tokio::test]
async fn a_connection_that_ended_is_opened_again() {
    let (listener, agent) = listen().await;
    let service = tokio::spawn(async move {
        for _ in 0..2 {
            let mut line = accept(&listener).await;
            let (_, to) = next(&mut line).await;
            answer(to, "{}");
            line.graceful_shutdown();
            serve(line).await;
        }
    });
    for _ in 0..2 {
        let outcome = outcome(&agent).await;
        assert_eq!(kind_and_code(&outcome).0, "success", "{outcome:?}");
    }
    service.await.unwrap();
}

#[tokio::test]
async fn a_connection_that_breaks_under_a_request_leaves_its_outcome_unknown() {
    let (listener, agent) = listen().await;
    let service = tokio::spawn(async move {
        let mut line = accept(&listener).await;
        let asked = next(&mut line).await;
        drop((line, asked));
    });
    let outcome = outcome(&agent).await;
    assert_eq!(kind_and_code(&outcome), ("unknown", "outcome-unknown"));
    service.await.unwrap();
}

#[tokio::test]
async fn a_request_that_the_service_refused_unprocessed_had_no_effect() {
    let (listener, agent) = listen().await;
    let service = tokio::spawn(async move {
        let mut line = accept(&listener).await;
        let (_, mut to) = next(&mut line).await;
        to.send_reset(h2::Reason::REFUSED_STREAM);
        serve(line).await;
    });
    let outcome = outcome(&agent).await;
    assert_eq!(kind_and_code(&outcome), ("transient", "request-unread"));
    drop(agent);
    service.await.unwrap();
}

#[tokio::test]
async fn a_request_that_cannot_connect_in_time_has_no_effect() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // Nothing is accepted: once the queue is full, connections hang.
    let mut queued = Vec::new();
    let wait = Duration::from_millis(200);
    while let Ok(stream) = tokio::time::timeout(wait, TcpStream::connect(address)).await {
        queued.push(stream.unwrap());
    }
    let settings = format!("http2: true\nretries: {{ max: 0 }}\ntimeout: 300ms\n{PUT}");
    let agent = agent(&format!("http://{address}"), &settings);
    let both = tokio::join!(outcome(&agent), outcome(&agent));
    for outcome in [both.0, both.1] {
        assert_eq!(kind_and_code(&outcome), ("transient", "connect-failed"));
    }
}

#[tokio::test]
async fn a_request_without_a_free_stream_in_time_is_never_sent() {
    let (listener, mut agent) = listen().await;
    let service = tokio::spawn(async move {
        let mut line = accept_one_at_a_time(&listener).await;
        let (_, to) = next(&mut line).await;
        answer(to, "{}");
        let mut seen = 0;
        let mut held = Vec::new();
        while let Some(Ok(asked)) = line.accept().await {
            seen += 1;
            held.push(asked);
        }
        seen
    });
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
    agent.timeout = Duration::from_millis(300);
    let both = tokio::join!(outcome(&agent), outcome(&agent));
    assert_eq!(kind_and_code(&both.0), ("unknown", "outcome-unknown"));
    assert_eq!(kind_and_code(&both.1), ("transient", "connect-failed"));
    drop(agent);
    let seen = tokio::time::timeout(PATIENCE, service).await.unwrap();
    assert_eq!(seen.unwrap(), 1);
}

#[tokio::test]
async fn requests_get_free_streams_in_order() {
    const CALLS: usize = 60;
    const CALLERS: usize = 3;
    let (listener, agent) = listen().await;
    let service = tokio::spawn(async move {
        let mut line = accept_one_at_a_time(&listener).await;
        while let Some(Ok((_, to))) = line.accept().await {
            answer(to, "{}");
        }
    });
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
    let made = [const { AtomicUsize::new(0) }; CALLERS];
    let sum = || made.iter().map(|made| made.load(Ordering::Relaxed)).sum();
    let call = async |made: &AtomicUsize| {
        while CALLS > sum() {
            assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
            made.fetch_add(1, Ordering::Relaxed);
        }
    };
    tokio::join!(call(&made[0]), call(&made[1]), call(&made[2]));
    for made in &made {
        let made = made.load(Ordering::Relaxed);
        assert!(made >= CALLS / CALLERS / 2, "one made {made} calls");
    }
    drop(agent);
    service.await.unwrap();
}

#[tokio::test]
async fn large_bodies_and_answers_pass_and_an_answer_above_the_limit_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let request = "request: { method: PUT, path: /p, body: { size: '{{input.size}}' }, keep: { shelf: /shelf } }";
    let agent = agent(&url, &format!("http2: true\n{request}"));
    let service = tokio::spawn(async move {
        let mut line = accept(&listener).await;
        for bytes in [60_000, 70_000] {
            let (request, mut to) = next(&mut line).await;
            let mut reading = tokio::spawn(async move {
                let mut body = request.into_body();
                let mut length = 0;
                while let Some(Ok(data)) = body.data().await {
                    length += data.len();
                    body.flow_control().release_capacity(data.len()).unwrap();
                }
                let head = Response::builder().status(200).body(()).unwrap();
                let mut sending = to.send_response(head, false).unwrap();
                let text = format!(r#"{{"shelf":"{}"}}"#, "x".repeat(bytes));
                sending.send_data(Bytes::from(text), true).unwrap();
                length
            });
            // The connection only makes progress while it is polled.
            let length = tokio::select! {
                length = &mut reading => length.unwrap(),
                _ = line.accept() => panic!("a request too many"),
            };
            assert!(length > 200_000);
        }
        serve(line).await;
    });
    let call = async || {
        let input = format!(r#"{{"size":"{}"}}"#, "y".repeat(200_000));
        let request = StepRequestBuilder::new("package", "create")
            .input(&input)
            .build();
        attempt(&agent, request).await.unwrap()
    };
    assert_eq!(kind_and_code(&call().await).0, "success");
    assert_eq!(
        kind_and_code(&call().await),
        ("unknown", "answer-too-large")
    );
    drop(agent);
    tokio::time::timeout(PATIENCE, service)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn requests_that_a_closing_service_did_not_process_had_no_effect() {
    const HEADERS: u8 = 1;
    // The request is on stream 1. Last stream 0 means that the service has processed none.
    for (last, expected) in [
        (0, ("transient", "request-unread")),
        (1, ("unknown", "outcome-unknown")),
    ] {
        let (listener, agent) = listen().await;
        let service = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; 24]).await.unwrap();
            // Settings, empty.
            stream
                .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
                .await
                .unwrap();
            loop {
                let mut head = [0; 9];
                stream.read_exact(&mut head).await.unwrap();
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                let mut payload = vec![0; length as usize];
                stream.read_exact(&mut payload).await.unwrap();
                if head[3] == HEADERS {
                    break;
                }
            }
            let goes_away = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, last, 0, 0, 0, 0];
            stream.write_all(&goes_away).await.unwrap();
        });
        assert_eq!(kind_and_code(&outcome(&agent).await), expected, "{last}");
        service.await.unwrap();
    }
}

#[tokio::test]
async fn an_unused_connection_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let agent = agent(
        &url,
        &format!("http2: true\npool: {{ idleFor: 50ms }}\n{PUT}"),
    );
    let service = tokio::spawn(async move {
        let mut line = accept(&listener).await;
        let (_, to) = next(&mut line).await;
        answer(to, "{}");
        serve(line).await;
    });
    let outcome = outcome(&agent).await;
    assert_eq!(kind_and_code(&outcome).0, "success", "{outcome:?}");
    // The service sees the connection close, though the agent still exists.
    tokio::time::timeout(PATIENCE, service)
        .await
        .unwrap()
        .unwrap();
    drop(agent);
}
