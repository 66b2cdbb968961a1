//! How a server treats clients that connect and send little or nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use h2::client::SendRequest;
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use hyper::body::Frame;
use hyper::{Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use waybill_connections::SLOW_AFTER;
use waybill_http::{ArrivingBody, GateLimits, Server, ServerLimits, Service, Tls, TlsConfig};
use waybill_test_support::certificate::Certificate;

/// Longer than any test takes, and than every time-out that a test waits for.
const LONG: Duration = Duration::from_secs(60);

const LIMITS: ServerLimits = ServerLimits {
    connections_max: 4,
    connections_per_address_max: 4,
    requests_per_connection_max: 16,
    requests_shared_max: 8,
    gate: GateLimits {
        head_bytes_max: 1024,
        headers_max: 10,
        head_timeout: LONG,
        stall_timeout: LONG,
        idle_timeout: LONG,
    },
};

/// More than socket buffers hold.
const LARGE_BYTES: usize = 32 * 1024 * 1024;

/// Answers each request with its path. `/large` gets a large answer, `/nothing` gets none, `/wait`
/// waits for a permit, and `/body` first reads the request's body. The body for `/stream` does not
/// announce its end.
struct Echo {
    /// One permit for each request for `/wait` that has arrived.
    came: Semaphore,
    may_answer: Semaphore,
}

/// A stream of one piece.
type Once = stream::Iter<std::array::IntoIter<Result<Frame<Bytes>, Infallible>, 1>>;

impl Service for Echo {
    type Body = Either<Full<Bytes>, StreamBody<Once>>;
    type Unanswered = Unanswered;

    async fn answer(
        self: Arc<Self>,
        request: Request<ArrivingBody>,
    ) -> Result<Response<Self::Body>, Unanswered> {
        let path = request.uri().path().to_owned();
        let whole = |bytes: Bytes| Ok(Response::new(Either::Left(Full::from(bytes))));
        match path.as_str() {
            "/large" => return whole(vec![b'x'; LARGE_BYTES].into()),
            "/stream" => {
                let piece = Ok(Frame::data(Bytes::from(path)));
                let body = StreamBody::new(stream::iter([piece]));
                return Ok(Response::new(Either::Right(body)));
            }
            "/nothing" => return Err(Unanswered),
            "/body" => {
                self.came.add_permits(1);
                request.collect().await.map_err(|_| Unanswered)?;
            }
            "/wait" => {
                self.came.add_permits(1);
                let _permit = self.may_answer.acquire().await;
            }
            _ => {}
        }
        whole(path.into())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the request gets no answer")]
struct Unanswered;

struct Running {
    address: SocketAddr,
    service: Arc<Echo>,
    _stop: DropGuard,
}

async fn run(limits: ServerLimits, tls: Tls) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = Arc::new(Echo {
        came: Semaphore::new(0),
        may_answer: Semaphore::new(0),
    });
    let server = Server::new("test", listener, tls, Arc::clone(&service), limits);
    let stop = CancellationToken::new();
    tokio::spawn(server.run(stop.clone()));
    Running {
        address,
        service,
        _stop: stop.drop_guard(),
    }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Opens this many connections, each with one request in progress.
    async fn busy(&self, number: usize) -> Vec<TcpStream> {
        let mut busy = Vec::new();
        for _ in 0..number {
            let mut stream = self.connect().await;
            send(&mut stream, "/wait").await;
            self.service.came.acquire().await.unwrap().forget();
            busy.push(stream);
        }
        busy
    }
}

async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> String {
    send(stream, path).await;
    answer(stream, path).await
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

/// Reads until the path that the server echoes arrives.
async fn answer(stream: &mut (impl AsyncRead + Unpin), path: &str) -> String {
    let mut got = Vec::new();
    let reading = async {
        while !got.ends_with(path.as_bytes()) {
            assert_ne!(stream.read_buf(&mut got).await.unwrap(), 0, "closed");
        }
    };
    tokio::time::timeout(LONG / 2, reading).await.unwrap();
    String::from_utf8(got).unwrap()
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(LONG / 2, stream.read(&mut [0; 1])).await;
    read.is_ok_and(|read| read.unwrap_or(0) == 0)
}

#[tokio::test]
async fn connections_that_send_nothing_or_half_a_head_do_not_block_others() {
    let server = run(LIMITS, Tls::default()).await;
    let mut silent = Vec::new();
    for number in 0..LIMITS.connections_max {
        let mut stream = server.connect().await;
        if number % 2 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\nho").await.unwrap();
        }
        silent.push(stream);
    }
    let mut last = server.connect().await;
    assert!(ask(&mut last, "/a").await.starts_with("HTTP/1.1 200"));
    assert!(is_closed(&mut silent[0]).await);
}

#[tokio::test]
async fn the_longest_idle_connection_is_replaced() {
    let server = run(LIMITS, Tls::default()).await;
    let mut idle = Vec::new();
    for _ in 0..LIMITS.connections_max {
        let mut stream = server.connect().await;
        ask(&mut stream, "/a").await;
        idle.push(stream);
    }
    // The first connection is used again, so the second one has been idle for longest.
    ask(&mut idle[0], "/b").await;
    let mut last = server.connect().await;
    ask(&mut last, "/c").await;
    assert!(is_closed(&mut idle[1]).await);
    ask(&mut idle[0], "/d").await;
}

#[tokio::test]
async fn a_connection_waits_while_all_others_are_busy_and_none_of_these_is_cut_off() {
    let limits = ServerLimits {
        connections_per_address_max: 5,
        ..LIMITS
    };
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let shows = async |waiting: u32| {
        let shown = format!("waybill_http_connections_waiting{{listener=\"test\"}} {waiting}\n");
        let until_shown = async {
            while !metrics.render().contains(&shown) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG / 2, until_shown).await.unwrap();
    };
    let server = run(limits, Tls::default()).await;
    let mut busy = server.busy(LIMITS.connections_max).await;
    shows(0).await;
    let max = "waybill_http_connections_waiting_max{listener=\"test\"} 64\n";
    assert!(metrics.render().contains(max));
    let mut last = server.connect().await;
    send(&mut last, "/a").await;
    shows(1).await;
    server.service.may_answer.add_permits(busy.len());
    for stream in &mut busy {
        answer(stream, "/wait").await;
    }
    answer(&mut last, "/a").await;
    shows(0).await;
}

/// Sends a byte of a body periodically, until that fails.
async fn drip(mut send: impl AsyncFnMut() -> bool) {
    while send().await {
        tokio::time::sleep(SLOW_AFTER / 8).await;
    }
}

#[tokio::test]
async fn slowly_dripping_bodies_do_not_block_other_clients() {
    let server = run(LIMITS, Tls::default()).await;
    // The oldest connection is idle, and the next one waits for its answer.
    let mut idle = server.connect().await;
    ask(&mut idle, "/a").await;
    let mut busy = server.busy(1).await;
    let mut dripping = JoinSet::new();
    let mut stream = server.connect().await;
    let head = b"POST /body HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n";
    stream.write_all(head).await.unwrap();
    dripping.spawn(drip(async move || stream.write_all(b"x").await.is_ok()));
    let mut requests = connect_http2(&server).await;
    let request = Request::post("http://a/body").body(()).unwrap();
    let (_answer, mut body) = requests.send_request(request, false).unwrap();
    dripping.spawn(drip(async move || {
        body.send_data(Bytes::from_static(b"x"), false).is_ok()
    }));
    let both = server.service.came.acquire_many(2).await.unwrap();
    both.forget();
    tokio::time::sleep(2 * SLOW_AFTER).await;
    let mut new = Vec::new();
    for path in ["/b", "/c"] {
        let mut stream = server.connect().await;
        ask(&mut stream, path).await;
        new.push(stream);
    }
    while let Some(cut_off) = dripping.join_next().await {
        cut_off.unwrap();
    }
    ask(&mut idle, "/d").await;
    server.service.may_answer.add_permits(1);
    answer(&mut busy[0], "/wait").await;
}

#[tokio::test]
async fn an_address_at_its_limit_of_busy_connections_gets_no_more() {
    let limits = ServerLimits {
        connections_per_address_max: 2,
        ..LIMITS
    };
    let server = run(limits, Tls::default()).await;
    let mut busy = server.busy(2).await;
    assert!(is_closed(&mut server.connect().await).await);
    server.service.may_answer.add_permits(2);
    for stream in &mut busy {
        answer(stream, "/wait").await;
    }
    ask(&mut server.connect().await, "/a").await;
}

#[tokio::test]
async fn clients_that_never_read_their_answers_do_not_block_others() {
    let limits = ServerLimits {
        connections_per_address_max: 5,
        ..LIMITS
    };
    let server = run(limits, Tls::default()).await;
    let mut unread = Vec::new();
    for _ in 0..LIMITS.connections_max {
        let mut requests = connect_http2_with_window(&server, 0).await;
        let request = Request::get("http://a/a").body(()).unwrap();
        let (answer, _) = requests.send_request(request, true).unwrap();
        // The head of the answer has arrived. The window blocks the body.
        unread.push((answer.await.unwrap(), requests));
    }
    let mut last = server.connect().await;
    ask(&mut last, "/b").await;
}

#[tokio::test]
async fn clients_that_fill_socket_buffers_and_never_read_do_not_block_others() {
    let limits = ServerLimits {
        connections_per_address_max: 5,
        ..LIMITS
    };
    let server = run(limits, Tls::default()).await;
    let mut unread = Vec::new();
    for _ in 0..LIMITS.connections_max {
        let mut stream = server.connect().await;
        send(&mut stream, "/large").await;
        unread.push(stream);
    }
    let mut last = server.connect().await;
    let answered = tokio::time::timeout(LONG / 2, ask(&mut last, "/b")).await;
    answered.expect("one of them is slow long before its time-out");
}

#[tokio::test]
async fn small_answers_that_are_read_do_not_excuse_an_unread_one() {
    let limits = ServerLimits {
        connections_per_address_max: 5,
        ..LIMITS
    };
    let server = run(limits, Tls::default()).await;
    let mut unread = Vec::new();
    let mut reading = JoinSet::new();
    for _ in 0..LIMITS.connections_max {
        let mut requests = connect_http2_with_window(&server, 2).await;
        let request = Request::get("http://a/large").body(()).unwrap();
        let (answer, _) = requests.send_request(request, true).unwrap();
        unread.push(answer.await.unwrap());
        // This answer fits into the window.
        reading.spawn(async move {
            while ask_http2(&mut requests, "/a").await.is_ok() {
                tokio::time::sleep(SLOW_AFTER / 8).await;
            }
        });
    }
    let mut last = server.connect().await;
    ask(&mut last, "/b").await;
    let _it_was_closed = reading.join_next().await;
}

/// The result of a request for `path` on an HTTP/2 connection.
async fn ask_http2(requests: &mut SendRequest<Bytes>, path: &str) -> Result<(), h2::Error> {
    let request = Request::get(format!("http://a{path}")).body(()).unwrap();
    let (answer, _) = requests.send_request(request, true)?;
    let mut body = answer.await?.into_body();
    while let Some(piece) = body.data().await {
        body.flow_control().release_capacity(piece?.len())?;
    }
    Ok(())
}

/// Connects with a window of so many bytes for the answer of each stream.
async fn connect_http2_with_window(server: &Running, window: u32) -> SendRequest<Bytes> {
    let (requests, connection) = h2::client::Builder::new()
        .initial_window_size(window)
        .handshake(server.connect().await)
        .await
        .unwrap();
    tokio::spawn(connection);
    requests
}

async fn connect_http2(server: &Running) -> SendRequest<Bytes> {
    let (requests, connection) = h2::client::handshake(server.connect().await).await.unwrap();
    tokio::spawn(connection);
    requests
}

#[tokio::test]
async fn an_overloaded_server_leaves_a_few_requests_to_each_connection_and_all_afterwards() {
    const REFUSED: Option<h2::Reason> = Some(h2::Reason::REFUSED_STREAM);
    let server = run(LIMITS, Tls::default()).await;
    let mut greedy = connect_http2(&server).await;
    // The connection's own four, and the six of the eight shared ones that one address may have.
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        let mut requests = greedy.clone();
        waiting.spawn(async move { ask_http2(&mut requests, "/wait").await });
        server.service.came.acquire().await.unwrap().forget();
    }
    let refused = ask_http2(&mut greedy, "/a").await.unwrap_err();
    assert_eq!(refused.reason(), REFUSED);
    assert!(refused.is_remote());
    let mut other = connect_http2(&server).await;
    for _ in 0..20 {
        ask_http2(&mut other, "/a").await.unwrap();
    }
    server.service.may_answer.add_permits(10);
    while let Some(ended) = waiting.join_next().await {
        ended.unwrap().unwrap();
    }
    ask_http2(&mut greedy, "/a").await.unwrap();
}

#[tokio::test]
async fn each_further_connection_may_begin_fewer_requests() {
    let limits = ServerLimits {
        connections_max: 100,
        connections_per_address_max: 100,
        requests_per_connection_max: 128,
        requests_shared_max: 4_096,
        ..LIMITS
    };
    let server = run(limits, Tls::default()).await;
    let begin = async || {
        let mut requests = connect_http2(&server).await;
        // The server's settings arrive before the answer.
        ask_http2(&mut requests, "/a").await.unwrap();
        requests
    };
    let first: SendRequest<Bytes> = begin().await;
    let mut others = Vec::new();
    for _ in 0..98 {
        others.push(server.connect().await);
    }
    let last = begin().await;
    let allowed = [&first, &last].map(SendRequest::current_max_send_streams);
    assert_eq!(allowed, [128, 40]);
}

#[tokio::test]
async fn an_answer_counts_until_it_is_written() {
    for path in ["/long", "/stream"] {
        let server = run(LIMITS, Tls::default()).await;
        let mut requests = connect_http2_with_window(&server, 1).await;
        let mut unread = Vec::new();
        for _ in 0..10 {
            let request = Request::get(format!("http://a{path}")).body(()).unwrap();
            let (answer, _) = requests.send_request(request, true).unwrap();
            unread.push(answer.await.unwrap());
        }
        // One byte of each answer has arrived. The others wait in the server.
        let refused = ask_http2(&mut requests, path).await.unwrap_err();
        assert_eq!(refused.reason(), Some(h2::Reason::REFUSED_STREAM));
        for answer in &mut unread {
            let body = answer.body_mut();
            let mut got = Vec::new();
            while let Some(piece) = body.data().await {
                let piece = piece.unwrap();
                body.flow_control().release_capacity(piece.len()).unwrap();
                got.extend_from_slice(&piece);
            }
            assert_eq!(got, path.as_bytes());
        }
        ask_http2(&mut requests, path).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_that_gets_no_answer_ends_its_stream_or_its_connection_alone() {
    let server = run(LIMITS, Tls::default()).await;
    let mut requests = connect_http2(&server).await;
    let ended = ask_http2(&mut requests, "/nothing").await.unwrap_err();
    assert!(ended.is_reset(), "{ended}");
    ask_http2(&mut requests, "/a").await.unwrap();
    let mut stream = server.connect().await;
    send(&mut stream, "/nothing").await;
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_client_that_never_reads_its_answer_is_dropped() {
    let gate = GateLimits {
        stall_timeout: Duration::from_millis(200),
        ..LIMITS.gate
    };
    let server = run(ServerLimits { gate, ..LIMITS }, Tls::default()).await;
    let (mut requests, connection) = h2::client::Builder::new()
        .initial_window_size(0)
        .handshake::<_, Bytes>(server.connect().await)
        .await
        .unwrap();
    let ended = tokio::spawn(connection);
    let request = Request::get("http://a/a").body(()).unwrap();
    let (answer, _) = requests.send_request(request, true).unwrap();
    let _unread = answer.await.unwrap();
    let ended = tokio::time::timeout(LONG / 2, ended).await.unwrap();
    let _it_was_closed = ended.unwrap();
}

#[tokio::test]
async fn an_answer_that_is_being_read_is_not_cut_off_for_a_new_connection() {
    let limits = ServerLimits {
        connections_per_address_max: 5,
        ..LIMITS
    };
    let server = run(limits, Tls::default()).await;
    let mut reading = server.connect().await;
    send(&mut reading, "/large").await;
    let mut got = vec![0; 64 * 1024];
    reading.read_exact(&mut got).await.unwrap();
    let mut others = Vec::new();
    for _ in 0..2 * LIMITS.connections_max {
        let mut other = server.connect().await;
        ask(&mut other, "/a").await;
        others.push(other);
    }
    let mut left = LARGE_BYTES - 64 * 1024;
    while left > 0 {
        let read = reading.read(&mut got).await.unwrap();
        assert_ne!(read, 0, "cut off with {left} bytes left");
        left = left.saturating_sub(read);
    }
}

#[tokio::test]
async fn a_connection_without_a_first_byte_is_closed_after_the_time_of_a_head() {
    let gate = GateLimits {
        head_timeout: Duration::from_millis(20),
        ..LIMITS.gate
    };
    let server = run(ServerLimits { gate, ..LIMITS }, Tls::default()).await;
    assert!(is_closed(&mut server.connect().await).await);
}

#[tokio::test]
async fn slow_handshakes_do_not_block_other_clients() {
    let certificate = Certificate::new();
    let directory = tempfile::tempdir().unwrap();
    let (cert_file, key_file) = certificate.write(directory.path());
    let config = TlsConfig {
        cert_file: Some(cert_file),
        key_file: Some(key_file),
    };
    let server = run(LIMITS, Tls::load("test.tls", &config).unwrap()).await;
    let mut silent = Vec::new();
    for _ in 0..2 * LIMITS.connections_max {
        silent.push(server.connect().await);
    }
    let mut last = certificate.connect(server.address, b"\x08http/1.1").await;
    ask(&mut last, "/a").await;
}
