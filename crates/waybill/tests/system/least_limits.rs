//! The minimum values of the configuration, on a running process.

use std::sync::Arc;

use waybill_test_support::setup::{Setup, delivery};

use crate::{deliver_all, is_remote};

/// 10 connections per address, which is three quarters of them.
const CONFIG: &str =
    "broker: { connectionsMax: 13, groupsMax: 10, storedGroupsMax: 10, partitionsMax: 80 }\n";

/// Every duration, count and size at its minimum, except shutdownTimeout: with all others at their
/// minimum, a stop takes longer.
const ALL: &str = "
partitions: 1
shutdownTimeout: 30s
kafka: { stepPartitions: 1, requestsRetention: 1h, stepsRetention: 10m, resultsRetention: 1h, repartitionSettle: 10001ms, decompressedBytesMax: 1MiB }
http:
  requestBytesMax: 1KiB
  batchLineBytesMax: 1KiB
  batchLinesMax: 1
  headerBytesMax: 4KiB
  headersMax: 32
  bodyBytesMax: 516KiB
  jsonDepthMax: 4
  connectionsMax: 8
  connectionsPerAddressMax: 6
  requestsMax: 1
  headerReadTimeout: 1s
  bodyReadTimeout: 1s
  bodyTimeout: 1s
  idleTimeout: 1s
  acceptTimeout: 100ms
  drainTimeout: 0s
  producerQueueRecordsMax: 16
  producerQueueBytesMax: 2KiB
  recentAcceptedMax: 0
  pendingReadsMax: 0
  pendingReadTimeout: 0s
  eventStreamsMax: 0
  waitMax: 1s
  listsMax: 0
  tenantLimits: { perSecond: 1, burst: 1 }
admin:
  connectionsMax: 8
  connectionsPerAddressMax: 6
  requestsMax: 1
  headerBytesMax: 4KiB
  headersMax: 32
  headerReadTimeout: 1s
  bodyBytesMax: 1KiB
  bodyTimeout: 1s
broker:
  segmentBytes: 64KiB
  requestBytesMax: 2MiB
  bufferBytesMax: 16MiB
  controlBufferBytesMax: 18MiB
  requestsInFlightMax: 5
  partitionsMax: 25
  groupsMax: 11
  groupMembersMax: 10
  groupBytesMax: 1MiB
  storedGroupsMax: 11
  connectionsMax: 35
  connectionsPerAddressMax: 35
  idleTimeout: 10s
  requestsDiskBytesMax: 256KiB
  recoveriesDiskBytesMax: 256KiB
storage: { freeMin: 0B }
store: { cacheBytes: 0B, retention: 3601s }
scheduler:
  inFlightMax: 1
  inFlightBytesMax: 1B
  readAheadMax: 1
  readAheadBytesMax: 1B
  trackedRequestsMax: 2
  highPriorityWeight: 1
  handOffAfter: 0s
  checkpointEvery: 1ms
  checkpointRecords: 1
  lease: 1s
  leaseMargin: 100ms
  timeoutGrace: 0s
  drain: 0s
  supervisorDecisionTimeout: 1ms
  stuckAfter: 1s
supervisor: { interval: 10ms, recoveriesPerSecondMax: 1, auditInterval: 1s, lease: 1s, clockSkew: 0s }
agents: { inFlightMax: 1, sessionTimeout: 1s }
services: { connectionsMax: 8, requestsMax: 1 }
alerts:
  dedupWindow: 1ms
  foldedMax: 1
  queueMax: 1
  attemptsMax: 1
  backoff: 1ms
  backoffMax: 1ms
  retryAfterMax: 0s
  timeout: 100ms
  maxAge: 1m
  receivers: { nobody: { webhook: { url: 'http://127.0.0.1:9/', template: '{}', contentType: application/json } } }
telemetry:
  traces: { endpoint: 'http://127.0.0.1:9/v1/traces', requestTimeout: 100ms, queueMax: 1 }
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_works_with_every_setting_at_its_minimum() {
    const DELIVERIES: usize = 12;
    let mut setup = Setup::new(ALL);
    let process = setup.up();
    setup.ready().await;
    let mut ids = Vec::new();
    for index in 0..DELIVERIES {
        let delivery = delivery(&format!("least-{index}"), is_remote(index));
        ids.push(setup.deliver(&delivery).await);
    }
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    setup.ready().await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_connects_at_the_lowest_broker_limits() {
    const DELIVERIES: usize = 40;
    let mut setup = Setup::new(CONFIG);
    let _process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let ids = deliver_all(&setup, "least", DELIVERIES, &Arc::default()).await;
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    let metric = async |name: &str| setup.metric(&format!("waybill_broker_{name}"), "").await;
    assert_eq!(metric("connections_replaced_total").await, 0.0);
    assert_eq!(metric("connections_refused_total").await, 0.0);
    setup
        .eventually("the partitions are counted", async || {
            metric("partitions").await == 80.0
        })
        .await;
}
