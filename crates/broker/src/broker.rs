//! Starting and stopping the broker.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use waybill_connections::{Buffers, ConnectionSlot, Connections};
use waybill_disk::{boot_id, sync_dir};

use crate::BrokerSettings;
use crate::access::Login;
use crate::api::{self, Reply};
use crate::backup::Logs;
use crate::connection::{Closed, Connection};
use crate::group::{Coordinator, GroupLimits};
use crate::log::{Damage, Limits, LogError, SyncedEnds};
use crate::log::{SyncQueue, SyncThreads, spawn_reporting_panics, system_disk};
use crate::meta::{Meta, MetaError};
use crate::server::{Ends, Server};
use crate::stats::{Counters, Stats, add};
use crate::topics::{OpenTopicsError, Topics};

/// How often partitions that a full disk has stopped are tried again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);
/// Connections to [`Broker::own_address`]: many times as many as the clients of the broker's own
/// process need.
pub const OWN_CONNECTIONS_MAX: usize = 1_024;
/// How long to wait after the system refused a connection, for example for lack of files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Why the broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory belongs to another process.
    #[error("the broker's data directory {path} is in use by another process")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The data directory cannot be used.
    #[error("cannot use the broker's data directory {path}")]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The address cannot be listened on.
    #[error("the broker cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A log is damaged, and a start would lose records that may have been acknowledged.
    #[error("the log of partition {partition} of topic {topic} is damaged")]
    Damaged {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// What is wrong with it.
        #[source]
        damage: Damage,
    },
    /// Stored data cannot be read.
    #[error("cannot open the broker's data in {path}")]
    Open {
        /// The data directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl StartError {
    /// The error if the data directory cannot be used.
    pub(crate) fn in_dir(path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self::DataDir {
            path: path.to_owned(),
            source,
        }
    }
}

/// The disk failed: some partition is offline until the broker is started again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the broker's disk failed: {cause}")]
pub struct BrokerFailure {
    cause: String,
}

/// A running broker. Dropping it stops it without waiting; [`Broker::shutdown`] stops it in order.
pub struct Broker {
    address: SocketAddr,
    own_address: SocketAddr,
    server: Arc<Server>,
    syncs: Arc<SyncQueue>,
    threads: SyncThreads,
    slots: Arc<Connections>,
    own_slots: Arc<Connections>,
    connections: TaskTracker,
    /// Ends connections that did not finish in time.
    abort: CancellationToken,
    background: Vec<JoinHandle<()>>,
    _abort_on_drop: DropGuard,
    _stop_on_drop: DropGuard,
    _lock: File,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Broker {
    /// Opens the data directory, recovers its contents, and begins to serve.
    ///
    /// The future is boxed, so that this crate compiles it, and all that it spawns, rather than the
    /// crate that awaits it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        config: BrokerSettings,
    ) -> Pin<Box<dyn Future<Output = Result<Self, StartError>> + Send>> {
        Box::pin(Self::started(config))
    }

    async fn started(config: BrokerSettings) -> Result<Self, StartError> {
        let (listener, address) = listen(config.listen).await?;
        let (own_listener, own_address) = listen((Ipv4Addr::LOCALHOST, 0).into()).await?;
        let path = config.data_dir.clone();
        let opened = tokio::task::spawn_blocking(move || open(config)).await;
        let (server, syncs, threads, lock) = opened.map_err(|panicked| StartError::Open {
            path,
            source: Box::new(panicked),
        })??;
        let _ = server.own_address.set(own_address);
        let slots = |max, per_address_max, expects_login| {
            let limits = waybill_connections::Limits {
                max,
                per_address_max,
                stall_timeout: Some(server.config.stall_timeout),
                expects_login,
                requests: None,
            };
            Connections::new("broker", limits)
        };
        let own_slots = slots(
            OWN_CONNECTIONS_MAX,
            OWN_CONNECTIONS_MAX,
            server.config.own_logins.is_some(),
        );
        let slots = slots(
            server.config.connections_max,
            server.config.connections_per_address_max,
            server.config.logins.is_some(),
        );
        let connections = TaskTracker::new();
        let abort = CancellationToken::new();
        let accept = |listener, slots| {
            let (server, connections) = (Arc::clone(&server), connections.clone());
            accept(listener, server, slots, connections, abort.clone())
        };
        let accepting = accept(listener, Arc::clone(&slots));
        let own_accepting = accept(own_listener, Arc::clone(&own_slots));
        let groups = drive_groups(Arc::clone(&server));
        let retention = apply_retention(Arc::clone(&server));
        let reopening = reopen_full(Arc::clone(&server));
        let background = vec![
            spawn_reporting_panics(&syncs, "the listener", accepting),
            spawn_reporting_panics(&syncs, "the process's own listener", own_accepting),
            spawn_reporting_panics(&syncs, "the coordinator of groups", groups),
            spawn_reporting_panics(&syncs, "retention", retention),
            spawn_reporting_panics(&syncs, "the reopening of full partitions", reopening),
        ];
        let (log_bytes, partitions) = server.topics.totals();
        tracing::info!(%address, partitions, log_bytes, "the broker is listening");
        Ok(Self {
            address,
            own_address,
            syncs,
            threads,
            slots,
            own_slots,
            connections,
            background,
            _abort_on_drop: abort.clone().drop_guard(),
            _stop_on_drop: server.stopping.clone().drop_guard(),
            abort,
            server,
            _lock: lock,
        })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for clients of this process. No limit of the other listener counts their
    /// connections, so that no other client keeps them out.
    #[must_use]
    pub fn own_address(&self) -> SocketAddr {
        self.own_address
    }

    /// A handle that begins copies of it.
    #[must_use]
    pub fn logs(&self) -> Logs {
        Logs::of(&self.server)
    }

    /// Its statistics since the start. `buffer_bytes` and `control_buffer_bytes` are peaks since
    /// the last call, which resets them: call it from one place.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let server = &*self.server;
        let config = &server.config;
        let (log_bytes, partitions) = server.topics.totals();
        let (groups, group_members, group_bytes) = server.coordinator.totals();
        let counts = self.slots.counts();
        server.counters.snapshot(Stats {
            connections: counts.open as u64,
            connections_max: config.connections_max as u64,
            connections_replaced: counts.replaced,
            connections_refused: counts.refused,
            connections_per_address: counts.per_address as u64,
            connections_per_address_max: config.connections_per_address_max as u64,
            own_connections: self.own_slots.counts().open as u64,
            own_connections_max: OWN_CONNECTIONS_MAX as u64,
            log_bytes,
            partitions,
            partitions_max: config.partitions_max as u64,
            requests_in_flight: self.slots.requests_of_busiest().into(),
            requests_in_flight_max: config.requests_in_flight_max as u64,
            buffer_bytes: server.buffers.peak_bytes(),
            buffer_bytes_max: server.buffers.bytes_max(),
            control_buffer_bytes: server.control_buffers.peak_bytes(),
            control_buffer_bytes_max: server.control_buffers.bytes_max(),
            slow_transfers: server.buffers.ended() + server.control_buffers.ended(),
            groups: groups as u64,
            groups_max: config.groups_max as u64,
            group_members: group_members as u64,
            group_members_max: config.group_members_max as u64,
            group_bytes: group_bytes as u64,
            group_bytes_max: config.group_bytes_max as u64,
            stored_groups: server.meta.stored_groups().unwrap_or(0) as u64,
            stored_groups_max: config.stored_groups_max as u64,
            ..Stats::default()
        })
    }

    /// Handles one request (the bytes of a frame, without its length) as an otherwise idle
    /// connection does, and returns the answer's frame. `None` if there is no answer, or the
    /// connection would be closed. For the benchmarks, which count the cost of a request without
    /// its socket.
    #[doc(hidden)]
    pub async fn answer(&self, request: Bytes) -> Option<Bytes> {
        let ends = Ends {
            peer: self.address,
            local: self.address,
        };
        let mut login = Login::NotNeeded;
        match api::handle(&self.server, ends, &Arc::default(), &mut login, request).ok()? {
            Reply::None => None,
            Reply::Now(answer) => Some(answer),
            Reply::Later(answer)
            | Reply::LaterKeeping { answer, .. }
            | Reply::Exclusive(answer) => answer.await.ok().map(|frame| frame.bytes),
        }
    }

    /// Resolves when a disk or a part of the broker has failed. Partitions that still work stay in
    /// service; the process that owns the broker should stop in order.
    pub async fn failed(&self) -> BrokerFailure {
        BrokerFailure {
            cause: self.syncs.failed().await,
        }
    }

    /// Stops: accepts no more requests, answers pending ones, syncs everything and releases the
    /// data directory. Returns `false` if something could not be synced (it is logged).
    pub async fn shutdown(self) -> bool {
        let Self {
            server,
            threads,
            connections,
            abort,
            background,
            _lock: lock,
            ..
        } = self;
        server.stopping.cancel();
        connections.close();
        let timeout = server.config.shutdown_timeout;
        if tokio::time::timeout(timeout, connections.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                open = connections.len(),
                "connections did not finish in time"
            );
        }
        abort.cancel();
        connections.wait().await;
        for task in background {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the broker failed");
            }
        }
        let closed = tokio::task::spawn_blocking(move || {
            drop(threads);
            let logs = server.topics.close().inspect_err(|error| {
                tracing::error!(
                    error = error as &dyn std::error::Error,
                    "could not close a log"
                );
            });
            let meta = server.meta.sync().inspect_err(|error| {
                tracing::error!(
                    error = error as &dyn std::error::Error,
                    "could not sync metadata"
                );
            });
            drop(server);
            drop(lock);
            logs.is_ok() && meta.is_ok()
        });
        closed.await.unwrap_or(false)
    }
}

/// The ends of a topic's partitions in the data directory of a stopped broker; none if there is no
/// such topic. Recovers the logs as at a start. Blocks.
///
/// # Errors
///
/// See [`StartError`].
pub fn log_ends(data_dir: &Path, topic: &str) -> Result<Vec<i64>, StartError> {
    let (server, _, threads, lock) = open(BrokerSettings::new(data_dir))?;
    let topic = server.topics.get(topic);
    let partitions = topic.iter().flat_map(|topic| &topic.partitions);
    let ends = partitions.map(|partition| partition.high_watermark());
    let ends = ends.collect();
    drop(threads);
    server.topics.close().map_err(|source| StartError::Open {
        path: data_dir.to_owned(),
        source: Box::new(source),
    })?;
    drop(lock);
    Ok(ends)
}

type Opened = (Arc<Server>, Arc<SyncQueue>, SyncThreads, File);

fn open(config: BrokerSettings) -> Result<Opened, StartError> {
    let path = config.data_dir.clone();
    let lock = lock(&path)?;
    let counters = Arc::new(Counters::default());
    let disk = system_disk();
    let failed = StartError::in_dir(&path);
    let ends = SyncedEnds::load(Arc::clone(&disk), &path, boot_id()).map_err(failed)?;
    let syncs = SyncQueue::new(Arc::clone(&counters), ends);
    let threads = SyncThreads::start(Arc::clone(&syncs)).map_err(failed)?;
    let unreadable = |source: Box<dyn std::error::Error + Send + Sync>| StartError::Open {
        path: path.clone(),
        source,
    };
    let from_meta = |error: MetaError| unreadable(Box::new(error));
    let meta = Arc::new(Meta::open(&path.join("meta")).map_err(from_meta)?);
    let cluster_id = StrBytes::from_string(meta.cluster_id().map_err(from_meta)?);
    let login_secret = meta.login_secret().map_err(from_meta)?;
    let limits = Limits {
        disk,
        producers_max: config.producers_max,
        syncs: Arc::clone(&syncs),
        low_on_disk: Arc::clone(&config.low_on_disk),
    };
    let topics =
        Topics::open(&path, config.partitions_max, limits, Arc::clone(&meta)).map_err(|error| {
            match error {
                OpenTopicsError::Log {
                    topic,
                    partition,
                    source: LogError::Damaged(damage),
                } => StartError::Damaged {
                    topic,
                    partition,
                    damage,
                },
                error => unreadable(Box::new(error)),
            }
        })?;
    syncs.logs_are_open();
    let server = Server {
        own_address: OnceLock::new(),
        cluster_id,
        topics,
        meta,
        login_secret,
        coordinator: Coordinator::new(GroupLimits {
            initial_delay: config.group_initial_delay,
            groups_max: config.groups_max,
            members_max: config.group_members_max,
            bytes_max: config.group_bytes_max,
        }),
        counters,
        buffers: Buffers::new(config.buffer_bytes_max),
        control_buffers: Buffers::new(config.control_buffer_bytes_max),
        stopping: CancellationToken::new(),
        config,
    };
    Ok((Arc::new(server), syncs, threads, lock))
}

/// Takes the data directory for this process. The lock ends with the returned file.
pub(crate) fn lock(dir: &Path) -> Result<File, StartError> {
    let failed = StartError::in_dir(dir);
    fs::create_dir_all(dir).map_err(failed)?;
    if let Some(parent) = dir.parent() {
        sync_dir(parent).map_err(failed)?;
    }
    let file = File::create(dir.join("lock")).map_err(failed)?;
    if !waybill_disk::lock(&file).map_err(failed)? {
        return Err(StartError::Locked {
            path: dir.to_owned(),
        });
    }
    Ok(file)
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let listener = TcpListener::bind(address).await;
    let bound = listener.and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|source| StartError::Listen { address, source })
}

async fn accept(
    listener: TcpListener,
    server: Arc<Server>,
    slots: Arc<Connections>,
    connections: TaskTracker,
    abort: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = server.stopping.cancelled() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(slot) = slots.admit(Instant::now(), peer.ip(), abort.child_token()) else {
            continue;
        };
        let server = Arc::clone(&server);
        connections.spawn(async move {
            tokio::select! {
                () = serve(stream, peer, server, &slot) => {}
                () = slot.closing() => {
                    tracing::debug!(%peer, "closed a connection to make room for another");
                }
            }
        });
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, server: Arc<Server>, slot: &ConnectionSlot) {
    let prepared = stream.set_nodelay(true).and_then(|()| stream.local_addr());
    let Ok(local) = prepared.inspect_err(|error| tracing::debug!(%peer, %error, "disconnected"))
    else {
        return;
    };
    let counters = Arc::clone(&server.counters);
    let closed = Connection::new(stream, Ends { peer, local }, server, slot)
        .run()
        .await;
    // A peer may cause many lines. The log suppresses repetitions, of warnings and without the
    // port.
    match closed {
        Closed::Malformed(cause) => {
            add(&counters.malformed, 1);
            tracing::warn!(address = %peer.ip(), %cause, "closed a connection: it sent what the broker does not accept");
        }
        Closed::Slow | Closed::Stalled | Closed::NoLogin => {
            tracing::warn!(address = %peer.ip(), cause = %closed, "closed a connection");
        }
        Closed::Idle | Closed::ByPeer | Closed::Stopping | Closed::Io(_) => {
            tracing::debug!(%peer, cause = %closed, "a connection ended");
        }
    }
}

async fn drive_groups(server: Arc<Server>) {
    server.coordinator.run(server.stopping.clone()).await;
}

async fn apply_retention(server: Arc<Server>) {
    let mut due = tokio::time::interval(server.config.retention_interval);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = due.tick() => {}
            () = server.stopping.cancelled() => return,
        }
        let applying = Arc::clone(&server);
        let applied = tokio::task::spawn_blocking(move || {
            applying.topics.apply_retention();
            if let Err(error) = applying.meta.recount_groups() {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not count consumer groups with stored offsets"
                );
            }
        });
        if let Err(error) = applied.await {
            tracing::error!(%error, "applying retention failed");
        }
    }
}

/// Reopens partitions that a full disk has stopped.
async fn reopen_full(server: Arc<Server>) {
    let stopping = &server.stopping;
    while stopping
        .run_until_cancelled(server.topics.full())
        .await
        .is_some()
    {
        loop {
            let pause = tokio::time::sleep(REOPEN_INTERVAL);
            if stopping.run_until_cancelled(pause).await.is_none() {
                return;
            }
            let reopening = Arc::clone(&server);
            let reopened = tokio::task::spawn_blocking(move || reopening.topics.reopen_full());
            match reopened.await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => tracing::error!(%error, "reopening partitions failed"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use waybill_wire::batch::BatchHeader;
    use waybill_wire::batch::made::batch;

    use super::*;
    use crate::TopicConfig;
    use crate::log::AppendError;
    use crate::log::faults::{self, Op};

    const ENOSPC: i32 = 28;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_broker_recovers_from_a_full_disk_without_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = BrokerSettings::new(dir.path());
        config.listen = "127.0.0.1:0".parse().unwrap();
        let broker = Broker::start(config).await.unwrap();
        let topics = &broker.server.topics;
        let synced = TopicConfig {
            flush_messages: Some(1),
            ..TopicConfig::default()
        };
        topics.create("t", 1, synced).unwrap();
        let batch = batch(-1, -1, -1, &[1]);
        let header = BatchHeader::of_produced(&batch).unwrap();
        let mut acknowledged = 0;
        for _ in 0..2 {
            // The first tries to open it again find the disk full, too.
            faults::plan(dir.path(), Op::Sync, ENOSPC, 2);
            let (mut unsynced, mut refused) = (0, 0);
            loop {
                let partition = Arc::clone(&topics.get("t").unwrap().partitions[0]);
                match partition.append(&header, &batch) {
                    Ok(appended) if partition.synced(appended.sync_to.unwrap()).await => break,
                    Ok(_) => unsynced += 1,
                    Err(AppendError::Full) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            acknowledged += unsynced + 1;
            assert_eq!(unsynced, 1);
            assert!(refused > 0, "records are refused meanwhile");
        }
        let partition = Arc::clone(&topics.get("t").unwrap().partitions[0]);
        assert_eq!(partition.high_watermark(), acknowledged);
        let failed = tokio::time::timeout(Duration::from_millis(50), broker.failed());
        assert!(failed.await.is_err(), "the process continues");
        assert!(broker.shutdown().await);
    }
}
