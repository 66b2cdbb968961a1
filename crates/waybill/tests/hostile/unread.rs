//! Requests with far larger answers that the client never reads, and requests that leave large
//! buffers behind.

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::*;

/// The memory limit of the program.
const MEMORY_BYTES: u64 = 256 << 20;
const CONNECTIONS: usize = 40;
/// How long a connection may stay full before its client gives up.
const FULL_MAX: Duration = Duration::from_secs(2);

/// Sends `sent` to a listener over several connections until they are full, and keeps them open.
async fn send_unread(site: &Site, listener: &str, sent: Vec<u8>) -> Vec<TcpStream> {
    let sent: std::sync::Arc<[u8]> = sent.into();
    let address = site.address(listener);
    let senders: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let sent = sent.clone();
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                for piece in sent.chunks(64 << 10) {
                    match tokio::time::timeout(FULL_MAX, stream.write_all(piece)).await {
                        Ok(Ok(())) => {}
                        // Full, or closed by the program.
                        Ok(Err(_)) | Err(_) => break,
                    }
                }
                stream
            })
        })
        .collect();
    let mut streams = Vec::new();
    for sender in senders {
        streams.push(sender.await.unwrap());
    }
    streams
}

/// A metadata request of the maximum size.
fn metadata(topic: impl Fn(usize) -> String) -> Vec<u8> {
    const BYTES: usize = (1 << 20) - 100;
    let times = BYTES / (2 + topic(0).len());
    let mut frame = Vec::with_capacity(1 << 20);
    frame.extend([0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff]);
    frame.extend(u32::try_from(times).unwrap().to_be_bytes());
    for nth in 0..times {
        let topic = topic(nth);
        frame.extend(u16::try_from(topic.len()).unwrap().to_be_bytes());
        frame.extend(topic.as_bytes());
    }
    let length = u32::try_from(frame.len()).unwrap();
    [&length.to_be_bytes(), &frame[..]].concat()
}

/// A batch of many lines, each equal to `line`.
fn batch(line: &str) -> Vec<u8> {
    const BYTES: usize = 8 << 20;
    let lines = BYTES / (line.len() + 1);
    let body = format!("{line}\n").repeat(lines);
    let head = format!(
        "POST /v1/operations:batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_metadata_answers_take_little_memory() {
    let limit = MemoryLimit::new_or_skip(MEMORY_BYTES);
    let site = Site::start_within(limit.as_ref());
    let topic = site.topic("operation-status.v1");
    let request = metadata(|_| topic.clone());
    let mut streams = send_unread(&site, "broker", request.repeat(20)).await;
    site.deliver("beside-one-topic").await;
    // Each has its own answer, which says that it does not exist.
    let request = metadata(|nth| format!("no-such-topic-{nth:05}"));
    streams.extend(send_unread(&site, "broker", request.repeat(20)).await);
    site.deliver("beside-many-topics").await;
    drop((site, streams));
    assert_eq!(limit.as_ref().map_or(0, MemoryLimit::kills), 0);
}

/// The first `sent` bytes of a produce request that announces `length` and has no records.
fn produce(length: u32, sent: usize) -> Vec<u8> {
    let head = [0, 0, 0, 3, 0, 0, 0, 1, 0xff, 0xff];
    // Without acknowledgement, followed by bytes that belong to no field.
    let body = [0xff, 0xff, 0, 0, 0, 0, 3, 0xe8, 0, 0, 0, 0];
    let mut frame = [&length.to_be_bytes()[..], &head, &body].concat();
    frame.resize(sent, 0);
    frame
}

/// A produce request of the maximum size, and `bytes` bytes of another one.
fn produce_and(bytes: usize) -> Vec<u8> {
    const BYTES: u32 = 16 << 20;
    let long = produce(BYTES, 4 + BYTES as usize);
    [long, produce(200 << 10, bytes)].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_request_after_a_long_one_keeps_no_memory() {
    let limit = MemoryLimit::new_or_skip(MEMORY_BYTES);
    let site = Site::start_within(limit.as_ref());
    let mut streams = send_unread(&site, "broker", produce_and(1)).await;
    site.deliver("behind-which-is-a-byte").await;
    // More than a small buffer.
    streams.extend(send_unread(&site, "broker", produce_and(100 << 10)).await);
    site.deliver("behind-which-is-more").await;
    drop((site, streams));
    assert_eq!(limit.as_ref().map_or(0, MemoryLimit::kills), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_batches_that_are_never_read_take_little_memory() {
    let limit = MemoryLimit::new_or_skip(MEMORY_BYTES);
    let connections_max = 4 * CONNECTIONS;
    let site = Site::start_with(&Options {
        limit: limit.as_ref(),
        connections_max,
        ..Options::default()
    });
    let unknown: Vec<String> = (0..6_000).map(|key| format!("\"k{key}\":0")).collect();
    let wide = format!("{{{}}}", unknown.join(","));
    let mut streams = send_unread(&site, "http", batch(&wide)).await;
    streams.extend(send_unread(&site, "http", batch("{}")).await);
    site.deliver("beside-batches").await;
    drop((site, streams));
    assert_eq!(limit.as_ref().map_or(0, MemoryLimit::kills), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_announced_or_stop_halfway_keep_no_memory_from_others() {
    const LENGTH: u32 = 16 << 20;
    const DELIVERIES: usize = 3_000;
    /// Less than a request may take to arrive.
    const SOON: Duration = Duration::from_secs(40);
    let site = Site::start_with(&Options {
        connections_max: 4 * CONNECTIONS,
        ..Options::default()
    });
    let mut streams = send_unread(&site, "broker", produce(LENGTH, 30)).await;
    streams.extend(send_unread(&site, "broker", produce(LENGTH, 12 << 20)).await);
    let started = Instant::now();
    // So many that a fetch of their records needs memory.
    let line = |nth| {
        let delivery = delivery(&format!("beside-half-requests-{nth}"));
        json!({"workflow": "drone-delivery", "input": delivery}).to_string()
    };
    let lines: Vec<String> = (0..DELIVERIES).map(line).collect();
    let request = site.http.post(site.url("http", "/v1/operations:batch"));
    let request = request.header("Content-Type", "application/x-ndjson");
    let answer = request.body(lines.join("\n")).send().await.unwrap();
    let answers = answer.text().await.unwrap();
    let accepted = answers.lines().filter(|line| line.contains("202"));
    assert_eq!(accepted.count(), DELIVERIES, "{answers}");
    site.deliver("behind-the-batch").await;
    let took = started.elapsed();
    assert!(took < SOON, "{took:?}");
    assert!(site.metric("waybill_broker_slow_transfers_total").await > 0.0);
    drop((site, streams));
}
