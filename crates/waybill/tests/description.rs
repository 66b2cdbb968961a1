//! The API against its own OpenAPI description: answers to generated requests must match the
//! description, which is about the configured workflows alone.
//!
//! Schemathesis generates the requests (<https://schemathesis.readthedocs.io>). One of its checks
//! is disabled: that every request that matches the description is accepted. A schema cannot
//! express some rules, for example that a contact must be on a channel of this server. Schemathesis
//! does not support batches, whose lines are read like single requests.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use waybill_test_support::process::{Process, log_tail, without_variables};

/// The version on Python's package index. Other versions may generate other requests.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
/// Makes the same requests every time.
const SEED: &str = "1";

#[test]
fn every_answer_matches_its_description() {
    let Some(schemathesis) = schemathesis() else {
        return;
    };
    for is_guarded in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let token = is_guarded.then(|| token(&directory));
        let auth = match is_guarded {
            true => format!(
                "auth: {{tokensFile: {}/tokens.yaml}}\n",
                directory.path().display()
            ),
            false => String::new(),
        };
        let (_process, addresses) = up(&directory, &auth, &[]);
        let mut play = Command::new(&schemathesis);
        play.args([
            "run",
            "--seed",
            SEED,
            "--no-color",
            "--request-timeout",
            "20",
        ])
        .args(["--exclude-checks", "positive_data_acceptance"])
        .args(["--exclude-operation-id", "createOperations"])
        .arg(format!("http://{}/openapi.json", addresses["http"]));
        if let Some(token) = token {
            play.arg("--header")
                .arg(format!("Authorization: Bearer {token}"));
        }
        let played = play.current_dir(directory.path()).output().unwrap();
        let log = directory.path().join("log");
        let message = String::from_utf8_lossy(&played.stdout);
        assert!(
            played.status.success(),
            "with tokens: {is_guarded}\n{message}\n{}\n{}",
            String::from_utf8_lossy(&played.stderr),
            log_tail(&log)
        );
        let log = std::fs::read_to_string(log).unwrap();
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[tokio::test]
async fn another_workflow_alone_is_described_without_the_built_in_one() {
    let directory = tempfile::tempdir().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/order-fulfilment");
    let files = [("agents", "agents.yaml"), ("workflows", "workflow.yaml")];
    let files = files.map(|(of, file)| {
        let file = example.join(file);
        format!("{of}: {{builtIn: false, files: ['{}']}}\n", file.display())
    });
    let (_process, addresses) = up(&directory, &files.concat(), &["--no-services"]);
    let get = async |listener: &str, path: &str| {
        let url = format!("http://{}{path}", addresses[listener]);
        // Otherwise each answer would have an id of its own.
        let request = reqwest::Client::new()
            .get(url)
            .header("x-request-id", "same");
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let has_none_of = |text: &str, words: &[&str], what: &str| {
        let text = text.to_lowercase();
        for word in words {
            let found = text.find(word).map(|at| &text[..at + word.len()]);
            let line = found.and_then(|text| text.lines().last());
            assert_eq!(line, None, "{what}");
        }
    };
    for path in ["/openapi.json", "/docs", "/problems/outcome-unknown"] {
        let (status, text) = get("http", path).await;
        assert_eq!(status, 200, "{path}");
        has_none_of(&text, &["drone", "deliver"], path);
    }
    // Alerts are delivered, too.
    let (_, metrics) = get("admin", "/metrics").await;
    has_none_of(&metrics, &["drone", "-delivery"], "/metrics");
    let of_no_form = get("http", "/api/deliveryrequests/order-1").await;
    assert_eq!(of_no_form, get("http", "/api/no-such-path").await);
    assert_eq!(of_no_form.0, 404);
    let log = std::fs::read_to_string(directory.path().join("log")).unwrap();
    has_none_of(&log, &["drone"], "the log");
}

#[test]
fn a_browser_shows_the_page_about_the_api_within_its_policy() {
    let directory = tempfile::tempdir().unwrap();
    let (_process, addresses) = up(&directory, "", &[]);
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut shown = names.iter().filter_map(|name| {
        Command::new(name)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--no-first-run"])
            // What the page reports, such as a violation of its policy.
            .arg("--enable-logging=stderr")
            // Scripts and requests have ended when this much of the page's own time has passed.
            .args(["--virtual-time-budget=30000", "--dump-dom"])
            .arg(format!(
                "--user-data-dir={}/profile",
                directory.path().display()
            ))
            .arg(format!("http://{}/docs", addresses["http"]))
            .output()
            .ok()
    });
    let Some(shown) = shown.next().filter(|shown| shown.status.success()) else {
        println!("SKIPPED: no Chromium on this machine");
        return;
    };
    let page = String::from_utf8_lossy(&shown.stdout);
    for operation in ["Deliveries-createDelivery", "Operators-listOperations"] {
        assert!(
            page.contains(&format!("id=\"operations-{operation}\"")),
            "{page}"
        );
    }
    let log = String::from_utf8_lossy(&shown.stderr);
    let reported: Vec<_> = log
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert!(reported.is_empty(), "{reported:?}");
}

/// A token for everything, in the program's tokens file.
fn token(directory: &TempDir) -> String {
    let made = waybill()
        .args(["token", "create", "--name", "tester", "--tenant", "*"])
        .args(["--scopes", "submit,read,repair,admin"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    std::fs::write(directory.path().join("tokens.yaml"), made.stdout).unwrap();
    String::from_utf8(made.stderr).unwrap().trim().to_owned()
}

/// The program, with free ports and these further settings and arguments.
fn up(
    directory: &TempDir,
    settings: &str,
    arguments: &[&str],
) -> (Process, HashMap<String, SocketAddr>) {
    let here = directory.path().display();
    let listen = ["http", "admin", "broker", "services"]
        .map(|listener| format!("{listener}: {{listen: '127.0.0.1:0'}}\n"))
        .concat();
    let settings = format!("dataDir: {here}/data\n{listen}{settings}");
    let file = directory.path().join("waybill.yaml");
    std::fs::write(&file, settings).unwrap();
    let mut command = waybill();
    command.arg("up").args(arguments).arg("--config").arg(file);
    let log = directory.path().join("log");
    Process::start(command, &["http", "admin"], &log)
}

fn waybill() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command);
    command
}

/// Schemathesis, installed once for all runs. If that fails, prints a line and returns `None`.
fn schemathesis() -> Option<PathBuf> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(SCHEMATHESIS);
    let program = place.join("bin/schemathesis");
    let is_there = || {
        let version = Command::new(&program).arg("--version").output();
        version.is_ok_and(|version| version.status.success())
    };
    if is_there() {
        return Some(program);
    }
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        SCHEMATHESIS,
    ];
    let installed = run(Command::new("python3").args(["-m", "venv"]).arg(&place))
        .and_then(|()| run(Command::new(place.join("bin/python")).args(pip)));
    match installed {
        Ok(()) => {
            assert!(is_there(), "what was installed does not run");
            Some(program)
        }
        Err(reason) => {
            println!("SKIPPED: the API against its description: {reason}");
            None
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
