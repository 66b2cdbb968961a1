#![allow(missing_docs)]
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use waybill_agent::http::AgentsFile;
use waybill_agent::testing::{StepRequestBuilder, attempt};
use waybill_agent::Handler;
use http_body_util::{BodyExt, Full};
use bytes::Bytes;

fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    s.split(' ').next().unwrap().parse::<f64>().unwrap() / 1000.0
}

const N: usize = 40_000;
const C: usize = 32;

async fn drive<F, Fut>(name: &str, f: F)
where F: Fn() -> Fut + Clone + 'static, Fut: Future<Output = ()> + 'static {
    for round in 0..3 {
        let start = cpu();
        let wall = std::time::Instant::now();
        let mut set = tokio::task::JoinSet::new();
        for _ in 0..C {
            let f = f.clone();
            set.spawn_local(async move { for _ in 0..N / C { f().await } });
        }
        while set.join_next().await.is_some() {}
        println!("{name} round {round}: {:.2} us CPU per call, {:.0} calls/s", (cpu() - start) / N as f64, N as f64 / wall.elapsed().as_secs_f64());
    }
}

struct Echo;
impl Handler for Echo {
    fn run<'a>(&'a self, _: &'a waybill_agent::StepCall) -> waybill_agent::BoxFuture<'a, waybill_agent::Outcome> {
        Box::pin(async { tokio::task::yield_now().await; waybill_agent::success(vec![]) })
    }
}

fn main() {
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async move {
            let app = axum::Router::new().fallback(|body: Bytes| async move { let _ = body; ([("content-type", "application/json")], r#"{"id":"x","code":"ok"}"#) });
            let l = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tx.send(l.local_addr().unwrap()).unwrap();
            use axum::serve::ListenerExt;
            axum::serve(l.tap_io(|s| { let _ = s.set_nodelay(true); }), app).await.unwrap();
        });
    });
    let addr = rx.recv().unwrap();
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let input = r#"{"deliveryId":"d1","ownerId":"o1","pickupLocation":"here","dropOffLocation":"there","pickupTime":"2026-01-01T00:00:00Z","deadline":"2026-01-01T03:00:00Z","expedited":true,"confirmationRequired":"None","packageInfo":{"packageId":"p1","size":"Small","weight":1.5,"tag":"t"}}"#;
    for http2 in [false, true] {
    let yaml = format!(r#"
agents:
  - name: package
    http:
      baseUrl: http://{{services}}
      http2: {http2}
      request:
        method: PUT
        path: /api/packages/{{{{operation}}}}
        body: {{ packageId: "{{{{input.packageInfo.packageId}}}}", size: "{{{{input.packageInfo.size}}}}", weight: "{{{{input.packageInfo.weight}}}}", tag: "{{{{input.packageInfo.tag?}}}}" }}
        keep: {{ id: /id }}
"#);
    let file = AgentsFile::from_yaml(&yaml).unwrap();
    let agents = file.load(&BTreeMap::from([("services".to_owned(), addr.to_string())])).unwrap();
    let agent = agents[0].1.clone();
    local.block_on(&rt, drive(if http2 {"agent h2"} else {"agent h1"}, move || {
        let agent = agent.clone();
        async move {
            let r = StepRequestBuilder::new("package", "package").input(input).build();
            let o = attempt(&*agent, r).await;
            assert!(matches!(o, Some(waybill_agent::Outcome::Success { .. })), "{o:?}");
        }
    }));
    }
    let echo = Arc::new(Echo);
    local.block_on(&rt, drive("echo handler only", move || {
        let echo = echo.clone();
        async move { attempt(&*echo, StepRequestBuilder::new("package", "package").input(input).build()).await; }
    }));
    let client: hyper_util::client::legacy::Client<_, Full<Bytes>> = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
    let uri: hyper::Uri = format!("http://{addr}/api/packages/0197a6b0-0000-7000-8000-000000000000").parse().unwrap();
    let u2 = uri.clone();
    local.block_on(&rt, drive("legacy bare", move || {
        let (client, uri) = (client.clone(), u2.clone());
        async move {
            let r = hyper::Request::put(uri).header("content-type", "application/json").header("idempotency-key", "x/y").body(Full::new(Bytes::from_static(br#"{"packageId":"p1","size":"Small","weight":1.5,"tag":"t"}"#))).unwrap();
            let r = client.request(r).await.unwrap();
            r.into_body().collect().await.unwrap();
        }
    }));
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).tcp_nodelay(true).build().unwrap();
    let url = uri.to_string();
    local.block_on(&rt, drive("reqwest bare", move || {
        let (client, url) = (client.clone(), url.clone());
        async move {
            let r = client.put(&url).header("content-type", "application/json").header("idempotency-key", "x/y").body(r#"{"packageId":"p1","size":"Small","weight":1.5,"tag":"t"}"#).timeout(Duration::from_secs(10)).send().await.unwrap();
            r.bytes().await.unwrap();
        }
    }));
    // one connection per worker, driven in place
    use std::cell::RefCell; use std::rc::Rc;
    type Conn = (hyper::client::conn::http1::SendRequest<Full<Bytes>>, std::pin::Pin<Box<hyper::client::conn::http1::Connection<hyper_util::rt::TokioIo<tokio::net::TcpStream>, Full<Bytes>>>>);
    let pool: Rc<RefCell<Vec<Conn>>> = Rc::default();
    local.block_on(&rt, drive("in place", move || {
        let (pool, uri) = (pool.clone(), uri.clone());
        async move {
            let taken = pool.borrow_mut().pop();
            let (mut s, mut c) = match taken { Some(c) => c, None => {
                let io = tokio::net::TcpStream::connect(addr).await.unwrap(); io.set_nodelay(true).unwrap();
                let (s, c) = hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(io)).await.unwrap(); (s, Box::pin(c)) } };
            let r = hyper::Request::put(uri.path()).header("host", "localhost").header("content-type", "application/json").header("idempotency-key", "x/y").body(Full::new(Bytes::from_static(br#"{"packageId":"p1","size":"Small","weight":1.5,"tag":"t"}"#))).unwrap();
            let ex = async { let r = s.send_request(r).await.unwrap(); r.into_body().collect().await.unwrap(); };
            let mut ex = Box::pin(ex);
            std::future::poll_fn(|cx| {
                if ex.as_mut().poll(cx).is_ready() { return std::task::Poll::Ready(()); }
                let _ = Future::poll(c.as_mut(), cx);
                ex.as_mut().poll(cx)
            }).await;
            drop(ex);
            std::future::poll_fn(|cx| { let _ = Future::poll(c.as_mut(), cx); s.poll_ready(cx) }).await.unwrap();
            pool.borrow_mut().push((s, c));
        }
    }));
}
