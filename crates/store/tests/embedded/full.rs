//! A full disk: the store is on a small file system that another file fills.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use waybill_engine::{OperationId, Stamp};
use waybill_store::{EmbeddedConfig, EmbeddedStore, RowWrite, Store as _};

use crate::contract::{created, fresh_id, rows, state, write};

const PATIENCE: Duration = Duration::from_secs(60);

/// A file system of 64 MiB in memory. Dropping it unmounts it.
struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Mounts one; `None`, with a message, if that is not possible.
    fn mount(at: PathBuf) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
            .arg(&at)
            .stderr(Stdio::null())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self { at });
        }
        println!("SKIPPED: a full disk: only root can mount a small file system, on Linux");
        None
    }

    fn fill(&self) {
        let mut file = File::create(self.at.join("foreign")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.at.join("foreign")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// Writes `count` rows under new ids, and returns these once the write is acknowledged.
async fn wrote(store: &EmbeddedStore, count: usize) -> Option<Vec<OperationId>> {
    let ids: Vec<_> = (0..count).map(|_| fresh_id()).collect();
    let batch = rows(ids.iter().map(|&id| write(id, 1, true)));
    store.write(batch).await.ok().map(|_| ids)
}

async fn assert_there(store: &EmbeddedStore, ids: &[OperationId]) {
    for row in store.get_many(ids.to_vec()).await.unwrap() {
        let row = row.unwrap().expect("acknowledged rows exist");
        assert_eq!((row.stamp, row.created), (Stamp(1), created(1)));
        assert_eq!(row.state, state(1));
    }
}

#[tokio::test]
async fn acknowledged_rows_survive_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().to_owned()) else {
        return;
    };
    // Small, so that tables are written out and compacted all the time.
    let config = || {
        let mut config = EmbeddedConfig::new(disk.at.join("store"));
        config.memtable_bytes = 64 << 10;
        config
    };
    let mut acknowledged = Vec::new();
    for reopens in [false, true] {
        let mut store = EmbeddedStore::open(config()).unwrap();
        for _ in 0..10 {
            acknowledged.extend(wrote(&store, 500).await.expect("there is room"));
        }
        disk.fill();
        while let Some(ids) = wrote(&store, 500).await {
            acknowledged.extend(ids);
        }
        let failure = store.write_failure().expect("writes fail");
        assert!(failure.is_full, "{failure}");
        assert_there(&store, &acknowledged).await;
        if reopens {
            drop(store);
            store = EmbeddedStore::open(config()).expect("a start on a full disk works");
            assert_there(&store, &acknowledged).await;
            while let Some(ids) = wrote(&store, 500).await {
                acknowledged.extend(ids);
            }
        }
        disk.empty();
        let began = Instant::now();
        let ids = loop {
            if let Some(ids) = wrote(&store, 500).await {
                break ids;
            }
            assert!(began.elapsed() < PATIENCE, "it recovers");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        acknowledged.extend(ids);
        assert_eq!(store.write_failure(), None);
        assert_there(&store, &acknowledged).await;
        drop(store);
        let store = EmbeddedStore::open(config()).unwrap();
        assert_there(&store, &acknowledged).await;
    }
}

/// Row by row, so that it fills to the last block.
#[tokio::test]
async fn a_row_refused_by_a_full_disk_is_written_by_the_retry() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().to_owned()) else {
        return;
    };
    let store = EmbeddedStore::open(EmbeddedConfig::new(disk.at.join("store"))).unwrap();
    let row = |id| -> RowWrite { write(id, 1, true) };
    disk.fill();
    let failed = loop {
        let id = fresh_id();
        if store.write(rows([row(id)])).await.is_err() {
            break id;
        }
    };
    disk.empty();
    let began = Instant::now();
    while store.write(rows([row(failed)])).await.is_err() {
        assert!(began.elapsed() < PATIENCE, "it recovers");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_there(&store, &[failed]).await;
}
