//! Measures how a group commit is written best to a CQL server: one statement for each row, with a
//! row per partition key, or one unlogged batch for each slot, with the rows of a slot in one
//! partition.
//!
//! ```text
//! cargo run --release -p waybill-store --example cql_row_layout -- 127.0.0.1:9042 [server's pid]
//! ```
//!
//! Both layouts write the same rows in alternating turns of one run, so that other load on the
//! machine affects both. With the pid of a server on this machine its CPU time is measured, too.
//! The keyspace `waybill_row_layout` is created, and dropped at the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The keyspace of this measurement.
const KEYSPACE: &str = "waybill_row_layout";

/// The size of each row's state, in bytes.
const STATE_BYTES: usize = 1_000;

/// How many statements may be in progress.
const IN_FLIGHT: usize = 256;

/// Rows of one group commit.
const COMMIT_ROWS: [usize; 3] = [10, 100, 500];

/// How many rows each way writes in one turn.
const TURN_ROWS: usize = 4_000;

/// How many turns each way has; the first is not counted.
const TURNS: usize = 6;

/// How many slots there are at a time. Few are possible only if slots follow the time: the rows of
/// one slot share a partition for as long as they are kept, and ten million rows of this size in 8
/// slots are 1.2 GB a partition, in 65,536 slots 150 KB.
const SLOTS: [u64; 3] = [8, 32, 65_536];

/// A way to write a group commit.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Layout {
    /// A row per partition key.
    Rows,
    /// Rows in this many slots.
    Slots(u64),
}

/// The cost of a layout.
#[derive(Clone, Copy, Default)]
struct Cost {
    rows: usize,
    took: Duration,
    client: Duration,
    server: Duration,
}

struct Tables {
    session: Session,
    insert_row: PreparedStatement,
    insert_in_slot: PreparedStatement,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().ok_or("the first argument is HOST:PORT")?;
    let pid = arguments.next();
    let tables = Tables::new(&server).await?;
    let layouts: Vec<_> = std::iter::once(Layout::Rows)
        .chain(SLOTS.map(Layout::Slots))
        .collect();
    println!("rows/commit  layout           rows/s   us/row client   us/row server   us/commit");
    for commit_rows in COMMIT_ROWS {
        let mut costs = vec![Cost::default(); layouts.len()];
        for turn in 0..TURNS {
            for (layout, cost) in layouts.iter().zip(&mut costs) {
                let turn_cost = tables.turn(*layout, commit_rows, pid.as_deref()).await?;
                if turn > 0 {
                    cost.add(turn_cost);
                }
            }
        }
        for (layout, cost) in layouts.iter().zip(&costs) {
            cost.print(*layout, commit_rows);
        }
    }
    let drop = format!("DROP KEYSPACE {KEYSPACE}");
    tables.session.query_unpaged(drop, ()).await?;
    Ok(())
}

impl Tables {
    async fn new(server: &str) -> Outcome<Self> {
        let session = SessionBuilder::new().known_node(server).build().await?;
        for statement in [
            format!(
                "CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = \
                 {{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}}"
            ),
            format!("CREATE TABLE IF NOT EXISTS {KEYSPACE}.rows (id uuid PRIMARY KEY, state blob)"),
            format!(
                "CREATE TABLE IF NOT EXISTS {KEYSPACE}.slots \
                 (slot bigint, id uuid, state blob, PRIMARY KEY (slot, id))"
            ),
        ] {
            session.query_unpaged(statement, ()).await?;
        }
        let insert_row = format!("UPDATE {KEYSPACE}.rows SET state = ? WHERE id = ?");
        let insert_in_slot =
            format!("UPDATE {KEYSPACE}.slots SET state = ? WHERE slot = ? AND id = ?");
        Ok(Self {
            insert_row: session.prepare(insert_row).await?,
            insert_in_slot: session.prepare(insert_in_slot).await?,
            session,
        })
    }

    /// Writes the rows of one turn, commit after commit.
    async fn turn(&self, layout: Layout, commit_rows: usize, pid: Option<&str>) -> Outcome<Cost> {
        let state = vec![0x5a_u8; STATE_BYTES];
        let (began, client, server) = (Instant::now(), cpu_time("self")?, server_time(pid)?);
        for _ in 0..TURN_ROWS / commit_rows {
            let ids: Vec<_> = (0..commit_rows).map(|_| Uuid::new_v4()).collect();
            match layout {
                Layout::Rows => self.write_rows(&ids, &state).await?,
                Layout::Slots(slots) => self.write_slots(slots, &ids, &state).await?,
            }
        }
        Ok(Cost {
            rows: TURN_ROWS / commit_rows * commit_rows,
            took: began.elapsed(),
            client: cpu_time("self")?.saturating_sub(client),
            server: server_time(pid)?.saturating_sub(server),
        })
    }

    async fn write_rows(&self, ids: &[Uuid], state: &[u8]) -> Outcome<()> {
        let writes = ids
            .iter()
            .map(|&id| self.session.execute_unpaged(&self.insert_row, (state, id)));
        let done = stream::iter(writes).buffer_unordered(IN_FLIGHT);
        Ok(done.try_for_each(|_| std::future::ready(Ok(()))).await?)
    }

    async fn write_slots(&self, slots: u64, ids: &[Uuid], state: &[u8]) -> Outcome<()> {
        let mut by_slot: BTreeMap<i64, Vec<Uuid>> = BTreeMap::new();
        for &id in ids {
            let slot = i64::try_from(id.as_u64_pair().1 % slots)?;
            by_slot.entry(slot).or_default().push(id);
        }
        let writes = by_slot.into_iter().map(|(slot, ids)| async move {
            let mut batch = Batch::new(BatchType::Unlogged);
            let mut values = Vec::with_capacity(ids.len());
            for id in ids {
                batch.append_statement(self.insert_in_slot.clone());
                values.push((state, slot, id));
            }
            self.session.batch(&batch, values).await
        });
        let done = stream::iter(writes).buffer_unordered(IN_FLIGHT);
        Ok(done.try_for_each(|_| std::future::ready(Ok(()))).await?)
    }
}

impl Cost {
    fn add(&mut self, turn: Self) {
        self.rows += turn.rows;
        self.took += turn.took;
        self.client += turn.client;
        self.server += turn.server;
    }

    fn print(&self, layout: Layout, commit_rows: usize) {
        let rows = self.rows as f64;
        let a_row = |time: Duration| time.as_secs_f64() * 1e6 / rows;
        println!(
            "{commit_rows:>11}  {:<14} {:>8.0} {:>15.1} {:>15.1} {:>11.0}",
            format!("{layout:?}"),
            rows / self.took.as_secs_f64(),
            a_row(self.client),
            a_row(self.server),
            a_row(self.took) * commit_rows as f64,
        );
    }
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
