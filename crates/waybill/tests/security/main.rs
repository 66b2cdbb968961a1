//! The whole program with TLS and tokens: its listeners, its commands, and its output.

mod broker;
mod identity_provider;
mod jwt;
mod oidc;
mod program;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use reqwest::StatusCode;
use serde_json::{Value, json};

use self::program::{Site, Token};

fn delivery() -> Value {
    json!({
        "ownerId": "ada",
        "pickupLocation": "12 Harbour Street",
        "dropOffLocation": "7 Hill Road",
        "packageInfo": {"packageId": "p-1", "size": "Small", "weight": 1.5},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_with_authentication_serves_authorized_callers_and_shows_no_token() {
    let mut site = Site::new();
    let submit = site.token("orders", "submit,read", "acme");
    let operator = site.token("ops", "read,repair,admin", "*");
    let stranger = Token::unknown();
    site.let_everybody_read("tls.key");
    let up = site.up(&["--samples", "20", "--log", "trace"]);
    let http = site.client();

    // The samples use their own token.
    up.wait_for("completed 20  failed 0").await;

    let api = |path: &str| format!("https://localhost:{}{path}", up.http.port());
    let create = |token: Option<&str>| {
        let request = http.post(api("/api/deliveryrequests")).json(&delivery());
        match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    };
    let made = create(Some(&submit.text)).send().await.unwrap();
    assert_eq!(made.status(), StatusCode::ACCEPTED);
    let id = made.json::<Value>().await.unwrap()["id"].clone();
    let id = id.as_str().unwrap();
    for (token, status) in [
        (None, 401),
        (Some(&*stranger.text), 401),
        (Some(&*operator.text), 403),
    ] {
        assert_eq!(create(token).send().await.unwrap().status(), status);
    }

    // HTTP/2 has its own layers, which might log a header.
    let stream = site.certificate.connect(up.http, b"\x02h2").await;
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    for (token, status) in [(&submit, 200), (&stranger, 401)] {
        let request = Request::get(api(&format!("/v1/operations/{id}")))
            .header("authorization", format!("Bearer {}", token.text))
            .body(Full::<Bytes>::default())
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), status);
        answer.into_body().collect().await.unwrap();
    }

    // With Waybill's commands.
    let api = format!("https://localhost:{}", up.http.port());
    let shown = site.run(&["ops", "show", id, "--api", &api], Some(&operator));
    assert_eq!(shown.code, 0, "{}", shown.text);
    for (token, expected) in [
        (None, "Send a token"),
        (Some(&stranger), "token is unknown"),
    ] {
        let refused = site.run(&["ops", "show", id, "--api", &api], token);
        assert_eq!(refused.code, 2, "{}", refused.text);
        assert!(refused.text.contains(expected), "{}", refused.text);
    }
    let admin = format!("https://localhost:{}", up.admin.port());
    for command in [
        &["shards", "show"][..],
        &["shards", "set", "1"],
        &["topics", "grow", "4"],
    ] {
        let command = [command, &["--admin-url", &admin]].concat();
        let done = site.run(&command, Some(&operator));
        assert_eq!(done.code, 0, "{command:?}: {}", done.text);
        let refused = site.run(&command, Some(&submit));
        assert_eq!(refused.code, 1, "{command:?}: {}", refused.text);
        assert!(refused.text.contains("403"), "{}", refused.text);
    }
    let doctor = ["doctor", "--admin-url", &admin, "--api", &api];
    for (command, code) in [
        (&["ops", "list", "--api", &api][..], 2),
        (&["ready", "--admin-url", &admin], 1),
        (&["shards", "show", "--admin-url", &admin], 1),
        (&doctor, 1),
    ] {
        let untrusted = site.run_without_ca(command, Some(&operator));
        assert_eq!(untrusted.code, code, "{}", untrusted.text);
        let message = &untrusted.text;
        let helps = "answers, but its certificate is not trusted (self-signed certificate); --ca-file or WAYBILL_CA_FILE";
        assert!(message.contains(helps), "{command:?}: {message}");
        assert!(!message.contains("ssl/"), "{command:?}: {message}");
    }

    let metrics = http.get(format!("{admin}/metrics")).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    for (name, reason, count) in [
        ("ingestion", "no-token", 2),
        ("ingestion", "invalid-token", 3),
        ("ingestion", "insufficient-scope", 1),
        ("admin", "insufficient-scope", 1),
        ("admin", "another-tenant", 2),
    ] {
        let line = format!("waybill_{name}_unauthorized_total{{reason=\"{reason}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    // An operator's commands authenticate in the same way. A probe needs no token.
    for token in [&[][..], &["--token-file", "/nonexistent"]] {
        let ready = site.run(&[&["ready", "--admin-url", &admin], token].concat(), None);
        assert_eq!(ready.code, 0, "{}", ready.text);
    }
    let log = ["log", "--admin-url", &admin];
    assert_eq!(site.run(&log, Some(&operator)).stdout, "trace\n");
    let refused = site.run(&[&log[..], &["info"]].concat(), Some(&submit));
    assert!(refused.text.contains("403"), "{}", refused.text);
    let shards = "does not report whether shards are stopped: 403 Forbidden";
    for (token, verdict, is_refused) in [(&operator, "ok   ", false), (&submit, "note ", true)] {
        let message = site.run(&doctor, Some(token)).text;
        assert!(message.contains(&format!("{verdict} leases")), "{message}");
        assert!(
            message.contains("note  lag"),
            "no broker can be asked: {message}"
        );
        assert!(message.contains("ok    api"), "{message}");
        assert_eq!(message.contains(shards), is_refused, "{message}");
    }

    let output = up.stop();
    assert!(output.contains("TRACE"), "the log has trace lines");
    let key = "every user of this machine can read the file with the key of a listener";
    assert!(output.contains(key));
    for secret in ["wb_", &submit.text, &operator.text, &stranger.text] {
        let line = output.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "of {secret}");
        assert!(!metrics.contains(secret));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_files_take_effect_without_a_restart() {
    let mut site = Site::new();
    let old = site.token("old", "read", "*");
    let up = site.up(&[]);
    let status = async |site: &Site, token: &Token| {
        let url = format!("https://localhost:{}/v1/operations", up.http.port());
        let request = site.client().get(url).bearer_auth(&token.text);
        request.send().await.map(|answer| answer.status().as_u16())
    };
    assert_eq!(status(&site, &old).await.unwrap(), 200);

    let new = site.token("new", "read", "*");
    program::until(async || status(&site, &new).await.unwrap() == 200).await;
    site.break_tokens();
    up.wait_for("the previous contents stay in effect").await;
    assert_eq!(status(&site, &old).await.unwrap(), 200);
    site.revoke("old");
    program::until(async || status(&site, &old).await.unwrap() == 401).await;
    assert_eq!(status(&site, &new).await.unwrap(), 200);

    site.renew_certificate();
    program::until(async || status(&site, &new).await.is_ok()).await;
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn json_web_tokens_are_accepted_by_keys_and_claims() {
    let mut site = Site::new();
    let signing = jwt::Signing::new();
    site.take_jwts(&signing);
    let up = site.up(&[]);
    let http = site.client();
    let create = async |token: &str| {
        let url = format!("https://localhost:{}/api/deliveryrequests", up.http.port());
        let request = http.post(url).json(&delivery()).bearer_auth(token);
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json::<Value>().await.unwrap())
    };
    let claims = jwt::claims("submit read", "acme");
    let good = signing.token(&claims);
    for _ in 0..2 {
        assert_eq!(create(&good).await.0, 202);
    }
    let mut expired = claims.clone();
    expired["exp"] = json!(1_000_000_000);
    let mut elsewhere = claims.clone();
    elsewhere["aud"] = json!("elsewhere");
    for (token, status, code) in [
        (signing.token(&expired), 401, json!("expired-token")),
        (signing.token(&elsewhere), 401, json!("invalid-token")),
        (
            jwt::Signing::new().token(&claims),
            401,
            json!("invalid-token"),
        ),
        (jwt::unsigned(&claims), 401, json!("invalid-token")),
        (
            signing.token(&jwt::claims("read", "acme")),
            403,
            Value::Null,
        ),
    ] {
        let (found, problem) = create(&token).await;
        assert_eq!((found, &problem["code"]), (status, &code), "{problem}");
    }
    let output = up.stop();
    assert!(!output.contains(&good));
}

#[test]
fn a_created_token_is_printed_only_on_standard_error() {
    let site = Site::new();
    let made = site.run(
        &[
            "token",
            "create",
            "--name",
            "a",
            "--scopes",
            "read",
            "--all-tenants",
        ],
        None,
    );
    assert_eq!(made.code, 0);
    let token = made.stderr.trim();
    assert!(token.starts_with("wb_") && token.len() == 46, "{token}");
    assert!(!made.stdout.contains("wb_"), "{}", made.stdout);
    for wrong in [
        &["--name", "a", "--scopes", "admin", "--tenant", "acme"][..],
        &["--name", "a", "--scopes", "everything", "--all-tenants"],
        &["--name", "a", "--all-tenants"],
        &["--name", "a", "--scopes", "read"],
    ] {
        let refused = site.run(&[&["token", "create"], wrong].concat(), None);
        assert_eq!(refused.code, 2, "{wrong:?}");
        assert_eq!(refused.stdout, "", "nothing is added to a file");
    }
}

#[test]
fn broken_files_are_refused_at_start_with_their_position() {
    let site = Site::new();
    site.break_tokens();
    let refused = site.run(&["config", "check"], None);
    assert_eq!(refused.code, 2, "{}", refused.text);
    assert!(
        refused.stderr.starts_with("waybill: auth.tokensFile: "),
        "{}",
        refused.text
    );
    let refused = site.run(&["up"], None);
    assert_eq!(refused.code, 2, "{}", refused.text);
}

/// The time limit of all waits.
const PATIENCE: Duration = Duration::from_secs(60);
