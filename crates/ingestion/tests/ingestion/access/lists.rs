//! Lists show a tenant only its own operations.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use waybill_engine::{OperationId, ProcessState, Timestamp, partition_for};
use waybill_store::{AttentionEntry, RowWrite, Store as _, WriteBatch};

use super::super::setup::*;
use super::Guarded;

fn of_tenant(tenant: &str, number: u32) -> RowWrite {
    let id = OperationId::of_caller(tenant, &format!("order-{number}"));
    let mut row = row(id, "order", ProcessState::Error);
    let mut created = row.created.as_deref().unwrap().clone();
    created.tenant = tenant.into();
    row.created = Some(created.into());
    row
}

/// Two operations of `acme` among many of `zeta`, most of them with the same timestamp.
async fn fill(setup: &Setup) {
    let zetas = (0..2_300).map(|number| (of_tenant("zeta", number), 10));
    let acmes = [(0, 5), (1, 20)].map(|(number, at)| (of_tenant("acme", number), at));
    // Without a readable row, an operation belongs to no tenant.
    let unreadable = state_only(
        OperationId::of_caller("acme", "broken"),
        ProcessState::Error,
        Timestamp(3),
    );
    let mut batch = WriteBatch::default();
    for (row, at) in zetas.chain(acmes).chain([(unreadable, 7)]) {
        let entry = AttentionEntry {
            at: Timestamp(at),
            operation: row.id,
        };
        let index_shard = partition_for(row.id, PARTITIONS);
        batch.attention.push((index_shard, entry));
        batch.rows.push(row);
    }
    setup.store.write(batch).await.unwrap();
}

/// Every operation in a list, and the text of every answer.
async fn listed(guarded: &Guarded, who: &str, query: &str) -> (Vec<String>, String) {
    let (mut ids, mut texts, mut cursor) = (Vec::new(), String::new(), String::new());
    for _ in 0..100 {
        let path = format!("{OPERATIONS}?{query}&cursor={cursor}");
        let (status, page) = guarded.get(who, &path).await;
        assert_eq!(status, 200, "{page}");
        texts.push_str(&page.to_string());
        for item in page["items"].as_array().unwrap() {
            ids.push(item["id"].as_str().unwrap().to_owned());
        }
        let Some(next) = page["next"].as_str() else {
            return (ids, texts);
        };
        let decoded = URL_SAFE_NO_PAD.decode(next).unwrap();
        texts.push_str(std::str::from_utf8(&decoded).unwrap());
        next.clone_into(&mut cursor);
    }
    panic!("the list does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_and_its_cursors_contain_no_other_tenant() {
    let guarded = Guarded::start().await;
    fill(&guarded.setup).await;
    let id = |tenant, number| of_tenant(tenant, number).id.to_string();
    let mut expected = vec![id("acme", 0), id("acme", 1)];
    for query in [
        "",
        "order=newest",
        "limit=1",
        "limit=1&order=newest",
        "tenant=acme",
    ] {
        let (mut ids, texts) = listed(&guarded, "acme", query).await;
        ids.sort();
        ids.dedup();
        expected.sort();
        assert_eq!(ids, expected, "{query}");
        for number in 0..2_300 {
            assert!(!texts.contains(&id("zeta", number)), "{query}: {number}");
        }
    }
    let (ids, _) = listed(&guarded, "zeta", "limit=1000").await;
    assert!(ids.len() >= 2_300);
    let (ids, _) = listed(&guarded, "all", "limit=1000").await;
    assert_eq!(ids.len(), 2_303, "including unreadable rows");
    let (ids, _) = listed(&guarded, "all", "tenant=acme").await;
    assert_eq!(ids.len(), 2);
    guarded.setup.ingestion.shutdown().await;
}
