//! The scheduler on librdkafka's mock cluster and a store that panics, stops answering, or does not
//! report the result of a write.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _};
use rdkafka::{ClientConfig, Message as _, Offset as At, TopicPartitionList};
use tokio::sync::Semaphore;
use waybill_engine::{
    CreateRequest, Epoch, IdOrigin, OperationId, OperationRequest, PartitionId, RequestHash,
    StepRequest, Timestamp, partition_for,
};
use waybill_messages::Record as _;
use waybill_store::{
    AttentionCursor, AttentionPage, DueBucket, DueEntry, EmbeddedConfig, EmbeddedStore, Lease,
    LeaseKey, ReplyKey, RowRead, StoreError, WriteBatch, Written,
};

use super::dispatcher::tests::{settings, workflow};
use super::*;

/// Timeout for anything that a test waits for. Generous: it bounds a failure, not a success.
const PATIENCE: Duration = Duration::from_secs(60);
const PARTITIONS: u32 = 2;
const LEASE: Duration = Duration::from_secs(2);

/// What happens to a call for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Panics,
    /// The call never returns.
    Silent,
    /// The call takes effect, but returns that the outcome is unknown.
    Unknown,
    /// The call completes once the test releases it.
    Held,
}

/// A store with faults, each of which happens once.
#[derive(Debug)]
struct Faulty {
    inner: EmbeddedStore,
    is_exclusive: bool,
    writes: Mutex<HashMap<OperationId, Vec<Fault>>>,
    reads: Mutex<HashMap<OperationId, Vec<Fault>>>,
    let_go: Semaphore,
}

impl Faulty {
    async fn fail_or_wait(
        &self,
        of: &Mutex<HashMap<OperationId, Vec<Fault>>>,
        ids: impl Iterator<Item = OperationId>,
    ) -> bool {
        let fault = {
            let mut faults = of.lock().unwrap_or_else(PoisonError::into_inner);
            let mut ids = ids;
            ids.find_map(|id| faults.get_mut(&id)?.pop())
        };
        match fault {
            None => true,
            Some(Fault::Unknown) => false,
            Some(Fault::Panics) => panic!("the configured fault"),
            Some(Fault::Silent) => std::future::pending().await,
            Some(Fault::Held) => {
                let permit = self.let_go.acquire().await;
                permit.expect("it is never closed").forget();
                true
            }
        }
    }
}

impl Store for Faulty {
    fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    fn write(&self, batch: WriteBatch) -> BoxFuture<'_, Result<Written, StoreError>> {
        async move {
            let ids: Vec<OperationId> = batch.rows.iter().map(|row| row.id).collect();
            let is_known = self.fail_or_wait(&self.writes, ids.into_iter()).await;
            let written = self.inner.write(batch).await?;
            match is_known {
                true => Ok(written),
                false => Err(StoreError::Unknown {
                    action: "writing rows",
                    source: "it timed out".into(),
                }),
            }
        }
        .boxed()
    }

    fn get_many(&self, ids: Vec<OperationId>) -> BoxFuture<'_, Result<Vec<RowRead>, StoreError>> {
        async move {
            self.fail_or_wait(&self.reads, ids.clone().into_iter())
                .await;
            self.inner.get_many(ids).await
        }
        .boxed()
    }

    fn lease(&self, key: LeaseKey) -> BoxFuture<'_, Result<Option<Lease>, StoreError>> {
        self.inner.lease(key)
    }

    fn take_lease(
        &self,
        seen: Option<Lease>,
        lease: Lease,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.inner.take_lease(seen, lease)
    }

    fn renew_lease(&self, lease: Lease) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.inner.renew_lease(lease)
    }

    fn layout(&self) -> BoxFuture<'_, Result<Option<Layout>, StoreError>> {
        self.inner.layout()
    }

    fn set_layout(
        &self,
        seen: Option<Layout>,
        layout: Layout,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.inner.set_layout(seen, layout)
    }

    fn reply_key(&self, candidate: ReplyKey) -> BoxFuture<'_, Result<ReplyKey, StoreError>> {
        self.inner.reply_key(candidate)
    }

    fn due(
        &self,
        index_shard: PartitionId,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<DueEntry>, StoreError>> {
        self.inner.due(index_shard, bucket, after, limit)
    }

    fn due_cursor(
        &self,
        index_shard: PartitionId,
    ) -> BoxFuture<'_, Result<Option<DueBucket>, StoreError>> {
        self.inner.due_cursor(index_shard)
    }

    fn advance_due_cursor(
        &self,
        index_shard: PartitionId,
        cursor: DueBucket,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.advance_due_cursor(index_shard, cursor)
    }

    fn attention_page(
        &self,
        index_shards: Vec<PartitionId>,
        cursor: AttentionCursor,
        limit: usize,
    ) -> BoxFuture<'_, Result<AttentionPage, StoreError>> {
        self.inner.attention_page(index_shards, cursor, limit)
    }
}

struct Fixture {
    cluster: MockCluster<'static, DefaultProducerContext>,
    topics: Topics,
    store: Arc<Faulty>,
    scheduler: Scheduler,
    _dir: tempfile::TempDir,
}

impl Fixture {
    async fn new(is_exclusive: bool, stuck_after: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Faulty {
            inner: EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap(),
            is_exclusive,
            writes: Mutex::default(),
            reads: Mutex::default(),
            let_go: Semaphore::new(0),
        });
        let cluster = MockCluster::new(1).unwrap();
        let topics = Topics::default();
        let asked = topics.step_requests("here");
        let sources = waybill_engine::Source::ALL.map(|source| topics.of(source));
        for topic in sources.into_iter().chain([&*asked]) {
            let partitions = i32::try_from(PARTITIONS).unwrap();
            cluster.create_topic(topic, partitions, 1).unwrap();
        }
        let settings = SchedulerSettings {
            in_flight_max: 10,
            in_flight_bytes_max: 1_000_000,
            read_ahead_max: 10,
            read_ahead_bytes_max: 1_000_000,
            tracked_requests_max: 100,
            hand_off_after: PATIENCE,
            fresh_for: PATIENCE,
            checkpoint_records: 1_000,
            lease: LEASE,
            lease_margin: LEASE / 10,
            stuck_after,
            ..settings()
        };
        let parts = SchedulerParts {
            store: store.clone(),
            kafka: KafkaSettings::new(cluster.bootstrap_servers()),
            topics: topics.clone(),
            workflows: Arc::new(Workflows::new(vec![workflow()]).unwrap()),
            forms: Forms::default(),
            layout: Layout::first(PARTITIONS),
            reply_key: ReplyKey::new([1; ReplyKey::BYTES]),
            agents: Vec::new(),
            agents_hold: DirectConfig {
                in_flight_max: 1,
                in_flight_bytes_max: 1,
            },
        };
        let scheduler =
            Scheduler::start(settings, parts, &Readiness::default(), &Liveness::default()).unwrap();
        let fixture = Self {
            cluster,
            topics,
            store,
            scheduler,
            _dir: dir,
        };
        fixture
            .until("every shard runs", |fixture| {
                let views = fixture.scheduler.views.list();
                // On a busy machine the watchdog may have made it begin again.
                views.iter().all(|view| view.epoch >= Some(Epoch(1)))
            })
            .await;
        fixture
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            let views = self.scheduler.views.list();
            assert!(Instant::now() < deadline, "not reached: {what}: {views:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Requests a new operation.
    fn request(&self, operation: OperationId, id_origin: IdOrigin) {
        let request = OperationRequest::Create(CreateRequest {
            operation,
            id_origin,
            workflow: "pair".to_owned(),
            tenant: String::new(),
            caller_id: None,
            input: b"{}".to_vec(),
            deadline: None,
            reply_to: None,
            request_hash: RequestHash::default(),
            verify_hash: false,
            requested_at: Timestamp(1),
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        });
        let mut value = Vec::new();
        self.topics.framing().encode(&request, &mut value).unwrap();
        let producer: BaseProducer = self.client();
        let topic = self.topics.of(waybill_engine::Source::Requests);
        let key = operation.key();
        let partition = partition_for(operation, PARTITIONS).0;
        let record = BaseRecord::to(topic)
            .partition(i32::try_from(partition).unwrap())
            .key(&key[..])
            .payload(&value);
        producer.send(record).unwrap();
        producer.flush(PATIENCE).unwrap();
    }

    /// The step requests on the agent's topic, by partition.
    fn steps(&self) -> Vec<StepRequest> {
        let topic = self.topics.step_requests("here");
        let consumer: BaseConsumer = self.client();
        let mut found = Vec::new();
        for partition in 0..i32::try_from(PARTITIONS).unwrap() {
            let (low, high) = consumer
                .fetch_watermarks(&topic, partition, PATIENCE)
                .unwrap();
            let mut assigned = TopicPartitionList::new();
            assigned
                .add_partition_offset(&topic, partition, At::Beginning)
                .unwrap();
            consumer.assign(&assigned).unwrap();
            found.extend((low..high).map(|_| {
                let record = consumer.poll(PATIENCE).unwrap().unwrap();
                StepRequest::decode(record.payload().unwrap()).unwrap()
            }));
        }
        found
    }

    fn client<C: rdkafka::config::FromClientConfig>(&self) -> C {
        ClientConfig::new()
            .set("bootstrap.servers", self.cluster.bootstrap_servers())
            .set("group.id", "test")
            .create()
            .unwrap()
    }

    async fn stop(self) {
        (self.scheduler.stopper())();
        self.scheduler.ended().await.unwrap();
    }
}

/// An operation of a partition, with an id that does not contain its age.
fn operation(partition: u32, number: u128) -> OperationId {
    let ids = (0..).map(|n: u128| OperationId(Uuid::from_u128(number << 64 | n)));
    let mut of_it = ids.filter(|id| partition_for(*id, PARTITIONS).0 == partition);
    of_it.next().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_unknown_outcome_is_repeated_and_the_lease_is_kept() {
    let fixture = Fixture::new(false, PATIENCE).await;
    let [first, other, fails] = [operation(1, 1), operation(1, 2), operation(0, 3)];
    let faults = [(first, vec![Fault::Held]), (fails, vec![Fault::Unknown; 3])];
    fixture.store.writes.lock().unwrap().extend(faults);
    fixture.request(first, IdOrigin::Server);
    fixture
        .until("the first commit is running", |fixture| {
            fixture.store.writes.lock().unwrap()[&first].is_empty()
        })
        .await;
    // The next commit has rows of both partitions.
    for id in [other, fails] {
        fixture.request(id, IdOrigin::Server);
    }
    fixture
        .until("both operations are in memory", |fixture| {
            let views = fixture.scheduler.views.list();
            let in_flight: Vec<usize> = views.iter().map(|view| view.in_flight).collect();
            in_flight == [1, 2]
        })
        .await;
    fixture.store.let_go.add_permits(1);
    fixture
        .until("every operation's step is requested", |fixture| {
            fixture.steps().len() == 3
        })
        .await;
    assert!(fixture.store.writes.lock().unwrap()[&fails].is_empty());
    let steps = fixture.steps();
    assert!(steps.iter().all(|step| step.epoch == Epoch(1)), "{steps:?}");
    let views = fixture.scheduler.views.list();
    assert!(views.iter().all(|view| view.epoch == Some(Epoch(1))));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shard_is_reacquired_after_a_store_call_panics_or_hangs() {
    let mut cases = Vec::new();
    for is_exclusive in [true, false] {
        for fault in [Fault::Panics, Fault::Silent] {
            for is_read in [true, false] {
                cases.push(is_taken_again(is_exclusive, fault, is_read));
            }
        }
    }
    futures_util::future::join_all(cases).await;
}

async fn is_taken_again(is_exclusive: bool, fault: Fault, is_read: bool) {
    let case = (is_exclusive, fault, is_read);
    // Only a call that never returns waits for the watchdog.
    let stuck_after = match fault {
        Fault::Silent => LEASE,
        _ => 2 * PATIENCE,
    };
    let fixture = Fixture::new(is_exclusive, stuck_after).await;
    let id = operation(0, 7);
    let faults = match is_read {
        true => &fixture.store.reads,
        false => &fixture.store.writes,
    };
    faults.lock().unwrap().insert(id, vec![fault]);
    fixture.request(id, IdOrigin::Caller);
    fixture
        .until(&format!("{case:?}: its step is requested"), |fixture| {
            !fixture.steps().is_empty()
        })
        .await;
    // On a busy machine the watchdog may find a healthy call silent, too: each owner asks again.
    let steps = fixture.steps();
    assert!(
        steps.iter().all(|step| step.epoch > Epoch(1)),
        "{case:?}: {steps:?}"
    );
    assert!(faults.lock().unwrap()[&id].is_empty(), "{case:?}");
    fixture.stop().await;
}
