//! People who log in at an identity provider: its keys and their rotation, groups, outages, and
//! responses that are not trusted.

use std::time::{Duration, Instant};

use reqwest::Client;
use serde_json::{Value, json};

use super::delivery;
use super::identity_provider::{Behaviour, IdentityProvider};
use super::jwt::Signing;
use super::program::{Site, Up, until};

const HOUR: &str = "refreshInterval: 1h, refreshIntervalMin: 1s";
const SECOND: &str = "refreshInterval: 1s, refreshIntervalMin: 1s";
const ROLES: &str = "groupsClaim: /realm_access/roles, groups: {\
    operators: {scopes: [read, repair], tenant: '*'}, \
    orders: {scopes: [submit, read], tenant: acme}, \
    toys: {scopes: [submit, read], tenant: toyland}}";

/// A program that accepts the tokens of a provider, whose keys it discovers.
async fn site_of(provider: &IdentityProvider, settings: &str) -> Site {
    let mut site = Site::new();
    site.take_jwts_by(&format!(
        "discovery: true, issuer: '{}', audience: waybill, caFile: {}, {settings}, {ROLES}",
        provider.issuer(),
        provider.ca_file().display()
    ));
    site
}

/// A client of the API.
struct Api<'a> {
    up: &'a Up,
    http: Client,
}

impl<'a> Api<'a> {
    fn of(site: &Site, up: &'a Up) -> Self {
        let http = site.client();
        Self { up, http }
    }

    /// The status of a list, and the code or the name of its problem.
    async fn list(&self, token: &str) -> (u16, String) {
        let url = format!("https://localhost:{}/v1/operations", self.up.http.port());
        let answer = self.http.get(url).bearer_auth(token).send().await.unwrap();
        problem_of(answer).await
    }

    /// The same of a new delivery.
    async fn create(&self, token: &str) -> (u16, String) {
        let port = self.up.http.port();
        let url = format!("https://localhost:{port}/api/deliveryrequests");
        let request = self.http.post(url).json(&delivery()).bearer_auth(token);
        problem_of(request.send().await.unwrap()).await
    }

    async fn admin(&self, path: &str) -> String {
        let url = format!("https://localhost:{}{path}", self.up.admin.port());
        let answer = self.http.get(url).send().await.unwrap();
        answer.text().await.unwrap()
    }

    async fn metric(&self, line: &str) -> f64 {
        let text = self.admin("/metrics").await;
        let mut lines = text.lines().filter_map(|found| found.strip_prefix(line));
        lines
            .next()
            .map_or(0.0, |value| value.trim().parse().unwrap())
    }
}

async fn problem_of(answer: reqwest::Response) -> (u16, String) {
    let status = answer.status().as_u16();
    let problem: Value = answer.json().await.unwrap_or_default();
    let name = problem["code"].as_str().or(problem["type"].as_str());
    (status, name.unwrap_or_default().to_owned())
}

fn refused(status: u16, name: &str) -> (u16, String) {
    (status, name.to_owned())
}

const OK: u16 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn people_have_the_rights_of_their_groups_and_keys_may_rotate() {
    let provider = IdentityProvider::start(Behaviour::Good).await;
    let site = site_of(&provider, HOUR).await;
    let up = site.up(&[]);
    let api = Api::of(&site, &up);
    let operator = provider.token(&json!(["offline_access", "operators"]));
    until(async || api.list(&operator).await.0 == OK).await;

    let no_rights = refused(403, "/problems/insufficient-scope");
    assert_eq!(api.create(&operator).await, no_rights);
    let orders = provider.token(&json!(["orders"]));
    assert_eq!(api.create(&orders).await.0, 202);
    for groups in [
        json!([]),
        json!(["others"]),
        json!(null),
        json!(["orders", "toys"]),
    ] {
        let token = provider.token(&groups);
        assert_eq!(api.list(&token).await, no_rights, "{groups}");
    }
    let mut elsewhere = provider.claims(&json!(["operators"]));
    elsewhere["iss"] = json!(format!("{}/", provider.issuer()));
    let elsewhere = provider.signing().token(&elsewhere);
    assert_eq!(api.list(&elsewhere).await, refused(401, "invalid-token"));

    // The provider rotates its key. Its interval is long: the new token causes the fetch.
    let fetched = provider.fetches();
    provider.rotate("second");
    let renewed = provider.token(&json!(["operators"]));
    until(async || api.list(&renewed).await.0 == OK).await;
    assert!(provider.fetches() > fetched);
    assert_eq!(api.list(&operator).await, refused(401, "invalid-token"));
    assert!(api.metric("waybill_auth_keys ").await == 1.0);
    assert!(api.metric("waybill_auth_unknown_keys_total ").await >= 1.0);
    let output = up.stop();
    for token in [&operator, &orders, &renewed] {
        assert!(!output.contains(token));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_refused_with_503_while_no_keys_of_their_issuer_are_there() {
    let provider = IdentityProvider::start(Behaviour::Unreachable).await;
    let mut site = site_of(&provider, &format!("{SECOND}, keysMaxAge: 3s")).await;
    let listed = site.token("reader", "read", "*");
    let up = site.up(&[]);
    let api = Api::of(&site, &up);
    let token = provider.token(&json!(["operators"]));

    let unavailable = refused(503, "/problems/keys-unavailable");
    assert_eq!(api.list(&token).await, unavailable);
    until(async || api.list(&listed.text).await.0 == OK).await;
    let missing = format!("keys of the issuer {}", provider.issuer());
    until(async || api.admin("/readyz").await.contains("cannot be read")).await;
    let readiness = api.admin("/readyz").await;
    assert!(readiness.contains(&missing), "{readiness}");

    provider.behave(Behaviour::Good);
    until(async || api.list(&token).await.0 == OK).await;
    until(async || !api.admin("/readyz").await.contains(&missing)).await;

    // Old keys are not trusted for ever.
    provider.behave(Behaviour::Unavailable);
    until(async || api.list(&token).await == unavailable).await;
    assert_eq!(api.list(&listed.text).await.0, OK);
    assert!(api.metric("waybill_auth_keys ").await == 0.0);
    provider.behave(Behaviour::Good);
    until(async || api.list(&token).await.0 == OK).await;
    let output = up.stop();
    for line in [
        "cannot fetch the keys of the issuer",
        "older than auth.jwt.keysMaxAge",
        "can be fetched again",
    ] {
        assert!(output.contains(line), "{line}: {output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_of_an_issuer_that_are_not_trusted_change_no_keys() {
    let provider = IdentityProvider::start(Behaviour::Good).await;
    let site = site_of(&provider, SECOND).await;
    let up = site.up(&[]);
    let api = Api::of(&site, &up);
    let token = provider.token(&json!(["operators"]));
    until(async || api.list(&token).await.0 == OK).await;

    let first = provider.signing();
    provider.behave(Behaviour::Unreachable);
    provider.rotate("second");
    let second = provider.token(&json!(["operators"]));
    for (behaviour, reason) in [
        (Behaviour::Unreachable, "cannot be read"),
        (Behaviour::Unavailable, "answered 503 Service Unavailable"),
        (Behaviour::Redirecting, "redirects are not followed"),
        (Behaviour::Oversized, "answered more than 1048576 bytes"),
        (Behaviour::OtherIssuer, "the metadata is of the issuer"),
        (Behaviour::Unencrypted, "must begin with https://"),
        (Behaviour::Symmetric, "is a symmetric key"),
    ] {
        provider.behave(behaviour);
        up.wait_for(reason).await;
        assert_eq!(api.list(&token).await.0, OK, "{behaviour:?}");
        assert_eq!(api.list(&second).await, refused(401, "invalid-token"));
        let readiness = api.admin("/readyz").await;
        assert!(
            readiness.contains("the previous ones are in use"),
            "{readiness}"
        );
    }
    assert_eq!(provider.redirects_followed(), 0);
    let failed = "waybill_auth_key_fetches_total{outcome=\"failed\"} ";
    assert!(api.metric(failed).await >= 7.0);
    provider.behave(Behaviour::Good);
    until(async || api.list(&second).await.0 == OK).await;
    let by_first = first.token(&provider.claims(&json!(["operators"])));
    assert_eq!(api.list(&by_first).await, refused(401, "invalid-token"));
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_unknown_keys_causes_one_fetch_per_interval() {
    let provider = IdentityProvider::start(Behaviour::Good).await;
    let mut site = Site::new();
    site.take_jwts_by(&format!(
        "jwksUrl: '{}', issuer: '{}', audience: waybill, caFile: {}, {HOUR}, {ROLES}",
        provider.keys_url(),
        provider.issuer(),
        provider.ca_file().display()
    ));
    let up = site.up(&[]);
    let api = Api::of(&site, &up);
    let token = provider.token(&json!(["operators"]));
    until(async || api.list(&token).await.0 == OK).await;

    let (began, before) = (Instant::now(), provider.fetches());
    let mut sent = 0;
    // Until there were three fetches, however long that takes.
    while provider.fetches() < before + 3 {
        let unknown = Signing::named(&format!("key-{sent}"));
        let unknown = unknown.token(&provider.claims(&json!(["operators"])));
        assert_eq!(api.list(&unknown).await, refused(401, "invalid-token"));
        sent += 1;
    }
    // They began a second apart, and the first one possibly at once.
    assert!(began.elapsed() > Duration::from_secs(1), "{sent} requests");
    assert!(sent > 10, "{sent} requests");
    assert_eq!(api.list(&token).await.0, OK);
    up.stop();
}
