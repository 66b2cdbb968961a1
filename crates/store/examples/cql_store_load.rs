//! Measures the store on a CQL server: group commits of the server's own ids, whose rows share
//! partitions, and of callers' ids, whose rows do not; and renewals of a lease.
//!
//! ```text
//! cargo run --release -p waybill-store --example cql_store_load -- 127.0.0.1:9042 [server's pid]
//! ```
//!
//! Both kinds of commits alternate in one run. Each operation is created and then changed once, as
//! two commits. With the pid of a server on this machine its CPU time is measured, too. The
//! keyspace `waybill_store_load` is created again, and dropped at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scylla::client::session_builder::SessionBuilder;
use uuid::Uuid;
use waybill_engine::{
    Created, Epoch, Offset, OperationId, OperationState, OwnerId, PartitionId, Position, Priority,
    ProcessState, RequestHash, ShardId, Stamp, Timestamp,
};
use waybill_store::{
    CqlConfig, CqlReplication, CqlStore, LayoutGeneration, Lease, LeaseKey, RowWrite, Store,
    WriteBatch,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The keyspace of this measurement.
const KEYSPACE: &str = "waybill_store_load";

/// Rows of one group commit.
const COMMIT_ROWS: [usize; 3] = [10, 100, 500];

/// How many rows each kind of ids writes in one turn, and again when it changes them.
const TURN_ROWS: usize = 2_000;

/// How many turns each kind has; the first is not counted.
const TURNS: usize = 6;

/// How often a lease is renewed.
const RENEWALS: u64 = 200;

/// The source of the ids.
#[derive(Clone, Copy, Debug)]
enum Ids {
    Server,
    Caller,
}

/// The cost of commits.
#[derive(Default)]
struct Cost {
    rows: usize,
    commits: Vec<Duration>,
    client: Duration,
    server: Duration,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().ok_or("the first argument is HOST:PORT")?;
    let pid = arguments.next();
    let session = SessionBuilder::new().known_node(&server).build().await?;
    let drop_keyspace = format!("DROP KEYSPACE IF EXISTS {KEYSPACE}");
    session.query_unpaged(drop_keyspace.as_str(), ()).await?;
    let config = CqlConfig {
        keyspace: KEYSPACE.to_owned(),
        replication: CqlReplication::Everywhere(1),
        ..CqlConfig::new([server])
    };
    CqlStore::migrate(&config).await?;
    let store = CqlStore::connect(config).await?;

    println!("rows/commit  ids        rows/s   us/row client   us/row server   ms/commit p50, p99");
    for commit_rows in COMMIT_ROWS {
        let mut costs = [Ids::Server, Ids::Caller].map(|ids| (ids, Cost::default()));
        for turn in 0..TURNS {
            for (ids, cost) in &mut costs {
                let mut of_turn = Cost::default();
                of_turn
                    .measure(&store, *ids, commit_rows, pid.as_deref())
                    .await?;
                if turn > 0 {
                    cost.add(of_turn);
                }
            }
        }
        for (ids, cost) in &mut costs {
            cost.print(*ids, commit_rows);
        }
    }
    let mut renewals = renew(&store).await?;
    renewals.sort();
    let [p50, p99] = percentiles(&renewals);
    println!("lease renewals: p50 {p50:.1} ms, p99 {p99:.1} ms");
    session.query_unpaged(drop_keyspace, ()).await?;
    Ok(())
}

impl Cost {
    async fn measure(
        &mut self,
        store: &CqlStore,
        ids: Ids,
        commit_rows: usize,
        pid: Option<&str>,
    ) -> Outcome<()> {
        let (client, server) = (cpu_time("self")?, server_time(pid)?);
        for _ in 0..TURN_ROWS / commit_rows {
            let ids: Vec<_> = (0..commit_rows).map(|_| ids.next()).collect();
            for stamp in 1..=2 {
                let rows = ids.iter().map(|&id| write(id, stamp)).collect();
                let batch = WriteBatch {
                    rows,
                    ..WriteBatch::default()
                };
                let began = Instant::now();
                store.write(batch).await?;
                self.commits.push(began.elapsed());
                self.rows += commit_rows;
            }
        }
        self.client = cpu_time("self")?.saturating_sub(client);
        self.server = server_time(pid)?.saturating_sub(server);
        Ok(())
    }

    fn add(&mut self, turn: Self) {
        self.rows += turn.rows;
        self.commits.extend(turn.commits);
        self.client += turn.client;
        self.server += turn.server;
    }

    fn print(&mut self, ids: Ids, commit_rows: usize) {
        self.commits.sort();
        let took: Duration = self.commits.iter().sum();
        let rows = self.rows as f64;
        let a_row = |time: Duration| time.as_secs_f64() * 1e6 / rows;
        let [p50, p99] = percentiles(&self.commits);
        println!(
            "{commit_rows:>11}  {:<8} {:>8.0} {:>15.1} {:>15.1}   {p50:>9.1}, {p99:.1}",
            format!("{ids:?}"),
            rows / took.as_secs_f64(),
            a_row(self.client),
            a_row(self.server),
        );
    }
}

impl Ids {
    fn next(self) -> OperationId {
        match self {
            Self::Server => OperationId(Uuid::now_v7()),
            Self::Caller => OperationId::of_caller("tenant", &Uuid::new_v4().to_string()),
        }
    }
}

/// A row of about 1 KB, with its immutable part if it is the first write.
fn write(id: OperationId, stamp: i64) -> RowWrite {
    let created = Created {
        workflow: "drone-delivery".into(),
        workflow_version: 1,
        step_names: vec!["account".into()],
        tenant: "tenant".into(),
        caller_id: None,
        input: Arc::from(vec![b'x'; 600]),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash([7; 16]),
        request: Position {
            priority: Priority::Normal,
            partition: PartitionId(0),
            offset: Offset(0),
        },
        requested_at: Timestamp(0),
        created_at: Timestamp(0),
        traceparent: Some("y".repeat(400).into()),
        resubmission_of: None,
        notify: Vec::new(),
    };
    RowWrite {
        id,
        created: (stamp == 1).then(|| Arc::new(created)),
        state: OperationState {
            state: ProcessState::Processing,
            ..OperationState::default()
        },
        stamp: Stamp(stamp),
        keep_for: None,
    }
}

/// Renews a lease, one renewal after the other.
async fn renew(store: &CqlStore) -> Outcome<Vec<Duration>> {
    let mut lease = Lease {
        owner: Some(OwnerId(Uuid::new_v4())),
        epoch: Epoch(1),
        duration: Duration::from_secs(10),
        stamp_limit: Stamp(1),
        ..Lease::new(
            LeaseKey::scheduler(LayoutGeneration(0), ShardId(0)),
            PartitionId(0),
        )
    };
    if !store.take_lease(None, lease.clone()).await? {
        return Err("the lease is taken".into());
    }
    let mut took = Vec::new();
    for renewal in 1..=RENEWALS {
        lease.renewal = renewal;
        let began = Instant::now();
        if !store.renew_lease(lease.clone()).await? {
            return Err("the lease is lost".into());
        }
        took.push(began.elapsed());
    }
    Ok(took)
}

/// The median and the 99th percentile of sorted times, in milliseconds.
fn percentiles(sorted: &[Duration]) -> [f64; 2] {
    [50, 99].map(|percent| {
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    })
}

fn server_time(pid: Option<&str>) -> Outcome<Duration> {
    pid.map_or(Ok(Duration::ZERO), cpu_time)
}

/// The CPU time that a process has used, user and system: `proc(5)`, fields 14 and 15 of `stat`, in
/// ticks of 10 ms.
fn cpu_time(pid: &str) -> Outcome<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may hold blanks.
    let (_, fields) = stat.rsplit_once(") ").ok_or("stat has no name")?;
    let ticks: Vec<u64> = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok(Duration::from_millis(ticks.iter().sum::<u64>() * 10))
}
