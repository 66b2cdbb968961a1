//! Measures the cost of a row write in the embedded store: CPU, latency, memory and disk.
//!
//! ```text
//! cargo run --release -p waybill-store --example store_throughput -- [OPERATIONS] [MEMTABLE_MIB] [WORKERS] [GROUP]
//! ```
//!
//! Each operation is created (an immutable part of about 600 bytes) and gets six states of about
//! 300 bytes, the last of them final and with the immutable part once more. Operations are
//! interleaved, so that every group commit holds different ones; every group is synced. CPU is that
//! of the whole process, compaction included.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;
use waybill_engine::{
    Attempt, Created, Epoch, Offset, OperationId, OperationState, OwnerId, PartitionId, Position,
    Priority, ProcessState, RequestHash, Stamp, StepProgress, StepState, Timestamp,
};
use waybill_store::{EmbeddedConfig, EmbeddedStore, RowWrite, Store, WriteBatch};

const STATES: usize = 6;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<u64>());
    let operations = usize::try_from(arguments.next().transpose()?.unwrap_or(100_000))?;
    let memtable_mib = arguments.next().transpose()?.unwrap_or(8);
    let workers = usize::try_from(arguments.next().transpose()?.unwrap_or(1))?;
    let groups = match arguments.next().transpose()? {
        Some(group) => vec![usize::try_from(group)?],
        None => vec![1, 10, 100, 1_000],
    };

    println!("group   rows     wall µs/row  CPU µs/row  µs/commit   rows/s     RSS MB  disk MB");
    for group in groups {
        let dir = tempfile::tempdir()?;
        let mut config = EmbeddedConfig::new(dir.path());
        config.memtable_bytes = memtable_mib << 20;
        config.worker_threads = workers;
        let store = EmbeddedStore::open(config)?;
        // Small groups are measured over fewer operations: their cost is the sync.
        let operations = operations.min(group * 10_000);
        run(&store, operations, group).await?;
        let figures = disk_mb(dir.path())?;
        println!("  {:>6.1}  {figures:>6.1}", rss_mb()?);
        store.close().await?;
    }
    Ok(())
}

async fn run(store: &EmbeddedStore, operations: usize, group: usize) -> Outcome {
    let rows = operations * STATES;
    let mut commits = 0_usize;
    let mut stamp = 1_700_000_000_000_000;
    let cpu = cpu_time()?;
    let start = Instant::now();
    for first in (0..operations).step_by(group) {
        let ids: Vec<_> = (first..operations.min(first + group)).map(id).collect();
        for round in 0..STATES {
            let rows = ids.iter().map(|&id| {
                stamp += 1;
                row(id, round, stamp)
            });
            let rows = rows.collect();
            store
                .write(WriteBatch {
                    rows,
                    ..WriteBatch::default()
                })
                .await?;
            commits += 1;
        }
    }
    let wall = start.elapsed();
    let cpu = cpu_time()?.saturating_sub(cpu);
    let micros = |time: Duration, by: usize| time.as_secs_f64() * 1e6 / by as f64;
    print!(
        "{group:>5} {rows:>8}  {:>10.2}  {:>10.2} {:>10.1} {:>10.0}",
        micros(wall, rows),
        micros(cpu, rows),
        micros(wall, commits),
        rows as f64 / wall.as_secs_f64(),
    );
    Ok(())
}

/// An id like the server's own: the time first, then pseudo-random bits.
fn id(n: usize) -> OperationId {
    let random = (n as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    OperationId(Uuid::from_u128(
        ((1_700_000_000_000 + n as u128 / 4) << 80) | (random & 0xffff_ffff_ffff_ffff_ffff),
    ))
}

fn row(id: OperationId, round: usize, stamp: i64) -> RowWrite {
    let is_final = round + 1 == STATES;
    RowWrite {
        id,
        created: (round == 0 || is_final).then(|| created(id)),
        state: state(round),
        stamp: Stamp(stamp),
        keep_for: is_final.then_some(Duration::from_secs(7 * 86_400)),
    }
}

fn created(id: OperationId) -> Arc<Created> {
    let input = format!(
        "{{\"deliveryId\":\"{id}\",\"ownerId\":\"owner-{id}\",\"pickupLocation\":\"Alexanderplatz \
         1, 10178 Berlin, Germany\",\"dropOffLocation\":\"Potsdamer Platz 5, 10785 Berlin, \
         Germany\",\"pickupTime\":\"2026-01-01T10:00:00Z\",\"deadline\":\"2026-01-01T12:00:00Z\",\
         \"expedited\":true,\"confirmationRequired\":\"FingerPrint\",\"packageInfo\":\
         {{\"packageId\":\"{id}\",\"size\":\"Small\",\"weight\":1.5,\"tag\":\"fragile\"}}}}"
    );
    Arc::new(Created {
        workflow: "drone-delivery".into(),
        workflow_version: 1,
        step_names: ["account", "package", "third-party", "drone", "delivery"]
            .map(Into::into)
            .to_vec(),
        tenant: "".into(),
        caller_id: None,
        input: Arc::from(input.as_bytes()),
        deadline: Some(Timestamp(1_700_000_000_000_000)),
        reply_to: None,
        request_hash: RequestHash([7; 16]),
        request: Position {
            priority: Priority::Normal,
            partition: PartitionId(1),
            offset: Offset(123_456),
        },
        requested_at: Timestamp(1_700_000_000_000_000),
        created_at: Timestamp(1_700_000_000_000_000),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        resubmission_of: None,
        notify: Vec::new(),
    })
}

fn state(round: usize) -> OperationState {
    let step = |index: usize| StepProgress {
        state: match index.cmp(&round) {
            std::cmp::Ordering::Less => StepState::Completed,
            std::cmp::Ordering::Equal => StepState::Running,
            std::cmp::Ordering::Greater => StepState::NotStarted,
        },
        attempt: Attempt(1),
        complete_by: Some(Timestamp(1_700_000_000_000_000)),
        outputs: vec![("drone".to_owned(), "the drone with number 4711".to_owned())],
        ..StepProgress::default()
    };
    OperationState {
        state: ProcessState::Processing,
        locked_by: Some(OwnerId(Uuid::from_u128(0xfeed))),
        epoch: Epoch(3),
        next_due: Some(Timestamp(1_700_000_000_000_000)),
        handed_off: false,
        failure_count: 0,
        sequence: 1,
        updated_at: Timestamp(1_700_000_000_000_000),
        error: None,
        steps: (0..5).map(step).collect(),
        ..OperationState::default()
    }
}

/// User and system time of this process.
fn cpu_time() -> Result<Duration, Box<dyn std::error::Error>> {
    // Field 2 is the name in parentheses; 14 and 15 are clock ticks, of which Linux has 100 per
    // second in this file.
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 10))
}

fn rss_mb() -> Result<f64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|value| value.split_whitespace().next())
        .ok_or("no VmRSS in /proc/self/status")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// The blocks that the files under `path` take up.
fn disk_mb(path: &std::path::Path) -> Result<f64, Box<dyn std::error::Error>> {
    use std::os::unix::fs::MetadataExt;
    let mut mb = 0.0;
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        mb += if metadata.is_dir() {
            disk_mb(&entry.path())?
        } else {
            metadata.blocks() as f64 * 512.0 / 1e6
        };
    }
    Ok(mb)
}
