//! Rate limits of tenants.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use axum::http::header::RETRY_AFTER;
use serde_json::{Value, json};
use waybill_api::tenant_limits::{Rate, TenantRates};

use super::setup::{Setup, problem};

const BATCH: &str = "/v1/operations:batch";

fn of_tenant(tenant: &str) -> Value {
    json!({"workflow": "order", "tenant": tenant, "input": {}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flooding_tenant_is_refused_with_retry_after_and_others_are_not() {
    const BURST: u32 = 5;
    // So slow that practically nothing is refilled during the test.
    let slow = Rate {
        per_second: NonZeroU32::MIN,
        burst: NonZeroU32::new(BURST).unwrap(),
    };
    let setup = Setup::with(|config| {
        config.tenant_rates = TenantRates {
            each: Some(slow),
            named: BTreeMap::new(),
        };
    })
    .await;
    let flood = (0..4 * BURST).map(|_| setup.post("/v1/operations", of_tenant("noisy")).send());
    let mut refused = 0;
    for answer in futures_util::future::join_all(flood).await {
        let answer = answer.unwrap();
        if answer.status() == 202 {
            continue;
        }
        refused += 1;
        assert_eq!(answer.headers()[RETRY_AFTER], "1");
        let (status, kind, _) = problem(answer).await;
        assert_eq!((status, kind.as_str()), (429, "too-many-requests"));
    }
    assert!(refused >= BURST, "{refused}");

    // Cancels are requests too: they count towards the shared limit and each tenant's own.
    let cancel = |tenant: &str| {
        setup.post(
            &format!("/v1/operations/none:cancel?tenant={tenant}"),
            json!({}),
        )
    };
    let (status, kind, _) = problem(cancel("noisy").send().await.unwrap()).await;
    assert_eq!((status, kind.as_str()), (429, "too-many-requests"));
    assert_eq!(cancel("quiet").send().await.unwrap().status(), 202);

    let mut lines = vec![of_tenant("noisy").to_string(); 4 * BURST as usize];
    lines.extend(vec![of_tenant("quiet").to_string(); BURST as usize - 1]);
    let answers = setup.post(BATCH, lines.join("\n"));
    let answers = answers.send().await.unwrap().text().await.unwrap();
    let statuses: Vec<Value> = answers
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["status"].clone())
        .collect();
    let (noisy, quiet) = statuses.split_at(4 * BURST as usize);
    assert!(noisy.contains(&json!(429)), "{answers}");
    assert_eq!(quiet, vec![json!(202); BURST as usize - 1], "{answers}");
    setup.ingestion.shutdown().await;
}
