//! Web pages in a real browser: its requests for a page of another origin, and for a page whose
//! host name resolves to this machine.
//!
//! Relays between the browser and the program record the program's answers. One of them is the
//! browser's proxy: it serves the attacker's page and then redirects that page's host name to the
//! program (DNS rebinding).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};

use super::*;

const ATTACKER: &str = "attacker.example";

/// The requests of the page. In the browser its origin is that of the program; `there` and `admin`
/// are others.
const PAGE: &str = r#"<!doctype html><title>a page</title><body><script>
const there = "http://THERE", admin = "http://ADMIN", operation = "/v1/operations/private";
const json = {"content-type": "application/json"}, plain = {"content-type": "text/plain"};
const form = {"content-type": "application/x-www-form-urlencoded"};
const attempts = {
    "rebound read": [operation, {}],
    "rebound list": ["/v1/operations", {}],
    "rebound change": [operation + ":compensate", {method: "POST", headers: json, body: "{}"}],
    "foreign read": [there + operation, {}],
    "foreign change": [there + operation + ":compensate", {method: "POST", headers: json, body: "{}"}],
    "foreign delete": [there + "/api/deliveryrequests/private", {method: "DELETE"}],
    "foreign log": [admin + "/log", {method: "PUT", body: "debug"}],
    "blind, no body": [there + operation + ":cancel", {method: "POST", mode: "no-cors"}],
    "blind, text": [there + operation + ":resubmit", {method: "POST", mode: "no-cors", headers: plain, body: "{}"}],
    "blind, fields": [there + operation + ":abandon", {method: "POST", mode: "no-cors", headers: form, body: "a=b"}],
    "blind, admin": [admin + "/backup", {method: "POST", mode: "no-cors"}],
};
const submitted = () => new Promise(done => {
    const frame = document.createElement("iframe"), form = document.createElement("form");
    frame.name = "frame";
    document.body.append(frame, form);
    // Not of the empty page that a new frame shows.
    frame.onload = done;
    const action = there + operation + ":compensate";
    Object.assign(form, {method: "POST", action, target: "frame", enctype: "text/plain"});
    form.submit();
});
addEventListener("load", async () => {
    const results = {};
    for (const [name, [url, options]] of Object.entries(attempts)) {
        try {
            const answer = await fetch(url, options);
            results[name] = {status: answer.status, text: await answer.text()};
        } catch (error) {
            results[name] = {error: String(error)};
        }
    }
    await submitted();
    await fetch("/results", {method: "POST", body: JSON.stringify(results)});
});
</script></body>"#;

/// A browser that is stopped with the test.
struct Browser(Child);

impl Browser {
    /// Opens a page. Returns `None` if this machine has no Chromium.
    fn open(url: &str, proxy: SocketAddr, profile: &Path) -> Option<Self> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let browser = names.iter().find_map(|name| {
            Command::new(name)
                .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
                .args(["--disable-dev-shm-usage", "--no-first-run"])
                // Otherwise it asks the user for permission, because it classifies the page as
                // public.
                .arg("--disable-features=LocalNetworkAccessChecks")
                .arg(format!("--user-data-dir={}", profile.display()))
                .arg(format!("--proxy-server=http://{proxy}"))
                .arg(url)
                .process_group(0)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .ok()
        });
        browser.map(Self)
    }

    /// Whether it ended on its own, as a placeholder for a missing browser does.
    fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.0.wait();
    }
}

/// A request that a relay forwards.
struct Request {
    method: String,
    /// The host of a request to a proxy; empty otherwise.
    host: String,
    path: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

/// What a relay does with a request.
enum Passage {
    To(SocketAddr),
    /// This page is the answer.
    Page(String),
    /// The page reports its results.
    Results,
    Nowhere,
}

/// Forwards requests, one per connection, and records the status of each answer.
#[derive(Clone)]
struct Relay {
    address: SocketAddr,
    /// Method, path and status.
    answers: Arc<Mutex<Vec<(String, String, u16)>>>,
}

impl Relay {
    /// Handles requests as `passage` decides. The page's results are sent to `results`.
    fn start(
        passage: impl Fn(&Request) -> Passage + Clone + Send + 'static,
        results: &mpsc::Sender<Value>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap(),
            answers: Arc::default(),
        };
        let (own, results) = (relay.clone(), results.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (own, passage, results) = (own.clone(), passage.clone(), results.clone());
                // The browser also requests its own updates, and may disconnect at any time.
                std::thread::spawn(move || own.pass_on(connection, &passage, &results).ok());
            }
        });
        relay
    }

    fn pass_on(
        &self,
        mut browser: TcpStream,
        passage: &impl Fn(&Request) -> Passage,
        results: &mpsc::Sender<Value>,
    ) -> std::io::Result<()> {
        let Some(request) = read(&browser)? else {
            return Ok(());
        };
        match passage(&request) {
            Passage::Nowhere => Ok(()),
            Passage::Page(page) => write!(
                browser,
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{page}",
                page.len()
            ),
            Passage::Results => {
                let reported = serde_json::from_slice(&request.body).unwrap_or_default();
                results.send(reported).ok();
                browser.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
            }
            Passage::To(program) => {
                let Request {
                    method,
                    path,
                    headers,
                    body,
                    ..
                } = &request;
                let headers = headers.join("\r\n");
                let mut program = TcpStream::connect(program)?;
                write!(
                    program,
                    "{method} {path} HTTP/1.1\r\n{headers}\r\nconnection: close\r\n\r\n"
                )?;
                program.write_all(body)?;
                let mut answer = Vec::new();
                program.read_to_end(&mut answer)?;
                let status = answer.get(b"HTTP/1.1 ".len()..).unwrap_or_default();
                let status = String::from_utf8_lossy(status.get(..3).unwrap_or_default()).parse();
                let record = (method.clone(), path.clone(), status.unwrap_or(0));
                self.answers.lock().unwrap().push(record);
                browser.write_all(&answer)
            }
        }
    }

    /// The status of the only answer to this request.
    fn answered(&self, method: &str, path: &str) -> u16 {
        let answers = self.answers.lock().unwrap();
        let mut of_it = answers
            .iter()
            .filter(|(other, at, _)| other == method && at == path);
        match (of_it.next(), of_it.next()) {
            (Some((_, _, status)), None) => *status,
            _ => panic!("{method} {path}: {answers:?}"),
        }
    }
}

/// Reads a request; `None` if the connection ends without one.
fn read(browser: &TcpStream) -> std::io::Result<Option<Request>> {
    let mut reader = BufReader::new(browser.try_clone()?);
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end().to_owned();
        let name = line.split(':').next().unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "" => break,
            // These apply to one connection only.
            "connection" | "proxy-connection" => continue,
            "content-length" => {
                let value = line.rsplit(':').next().unwrap_or_default();
                length = value.trim().parse().unwrap_or(0);
            }
            _ => {}
        }
        head.push(line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = head.remove(0);
    words.truncate(words.rfind(' ').unwrap_or(0));
    let (method, url) = words.split_once(' ').unwrap_or_default();
    let (host, path) = match url.strip_prefix("http://").map(|rest| rest.split_once('/')) {
        Some(Some((host, path))) => (host.to_owned(), format!("/{path}")),
        _ => (String::new(), url.to_owned()),
    };
    Ok(Some(Request {
        method: method.to_owned(),
        host,
        path,
        headers: head,
        body,
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_in_a_real_browser_reads_and_changes_nothing() {
    let site = Site::start();
    site.deliver("private").await;
    let (api, admin) = (site.address("http"), site.address("admin"));
    let (send, results) = mpsc::channel();
    let there = Relay::start(move |_| Passage::To(api), &send);
    let admin = Relay::start(move |_| Passage::To(admin), &send);
    let page = PAGE.replace("THERE", &there.address.to_string());
    let page = page.replace("ADMIN", &admin.address.to_string());
    let origin = format!("{ATTACKER}:{}", api.port());
    let url = format!("http://{origin}/page");
    let passage = move |request: &Request| match request.path.as_str() {
        _ if request.host != origin => Passage::Nowhere,
        "/page" => Passage::Page(page.clone()),
        "/results" => Passage::Results,
        _ => Passage::To(api),
    };
    let proxy = Relay::start(passage, &send);
    let (_, filter) = site.get("admin", "/log").await;

    let profile = tempfile::tempdir().unwrap();
    let Some(mut browser) = Browser::open(&url, proxy.address, profile.path()) else {
        println!("SKIPPED: web pages in a real browser: there is no Chromium here");
        return;
    };
    let deadline = Instant::now() + PATIENCE;
    let results = loop {
        match results.recv_timeout(Duration::from_millis(100)) {
            Ok(results) => break results,
            Err(RecvTimeoutError::Timeout) if browser.has_ended() => {
                println!("SKIPPED: web pages in a real browser: Chromium does not start here");
                return;
            }
            Err(error) => assert!(
                Instant::now() < deadline,
                "the page reports nothing: {error}"
            ),
        }
    };
    drop(browser);
    for rebound in ["rebound read", "rebound list", "rebound change"] {
        assert_eq!(results[rebound]["status"], 421, "{rebound}: {results:#}");
    }
    let foreign = [
        "foreign read",
        "foreign change",
        "foreign delete",
        "foreign log",
    ];
    for foreign in foreign {
        assert!(
            results[foreign]["error"].is_string(),
            "{foreign}: {results:#}"
        );
    }
    assert!(
        !results.to_string().contains("Harbour Street"),
        "{results:#}"
    );
    // The browser sends these without a preflight request. The program refuses them, though it
    // cannot notify the page.
    for (relay, path) in [
        (&there, "/v1/operations/private:cancel"),
        (&there, "/v1/operations/private:resubmit"),
        (&there, "/v1/operations/private:abandon"),
        (&there, "/v1/operations/private:compensate"),
        (&admin, "/backup"),
    ] {
        assert_eq!(relay.answered("POST", path), 403, "{path}");
    }
    let (_, operation) = site.get("http", "/v1/operations/private").await;
    assert!(operation.contains("\"state\":\"Processed\""), "{operation}");
    assert_eq!(site.get("admin", "/log").await.1, filter);
}
