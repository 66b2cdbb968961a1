//! What all connections share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kafka_protocol::messages::BrokerId;
use kafka_protocol::protocol::StrBytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::BrokerConfig;
use crate::group::Coordinator;
use crate::meta::Meta;
use crate::stats::Counters;
use crate::topics::Topics;

/// The one broker's node id.
pub(crate) const NODE: BrokerId = BrokerId(1);

/// Buffers up to this size are not counted: every connection may have a few.
pub(crate) const SMALL_BUFFER_BYTES: usize = 64 << 10;

/// The broker's parts, as its connections use them.
pub(crate) struct Server {
    pub(crate) config: BrokerConfig,
    pub(crate) cluster_id: StrBytes,
    pub(crate) topics: Topics,
    pub(crate) meta: Arc<Meta>,
    pub(crate) coordinator: Coordinator,
    pub(crate) counters: Arc<Counters>,
    pub(crate) buffers: Buffers,
    /// Those of control requests and their answers. Apart, so that no request waits for what the answer before it holds.
    pub(crate) control_buffers: Buffers,
    /// No more requests are taken; whoever waits is answered.
    pub(crate) stopping: CancellationToken,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

impl Server {
    /// The address that a client is told to connect to.
    pub(crate) fn advertised(&self, ends: Ends) -> (StrBytes, i32) {
        match &self.config.advertised {
            Some((host, port)) => (StrBytes::from_string(host.clone()), i32::from(*port)),
            None => {
                let host = ends.local.ip().to_canonical().to_string();
                (StrBytes::from_string(host), i32::from(ends.local.port()))
            }
        }
    }
}

/// The large buffers of all connections, counted in KiB.
pub(crate) struct Buffers {
    kib: Arc<Semaphore>,
    kib_max: u32,
    /// The most in use since the last look.
    peak_kib: Arc<AtomicUsize>,
}

impl Buffers {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let kib_max = u32::try_from(bytes_max >> 10)
            .unwrap_or(u32::MAX >> 4)
            .min(u32::MAX >> 4);
        Self {
            kib: Arc::new(Semaphore::new(kib_max as usize)),
            kib_max,
            peak_kib: Arc::default(),
        }
    }

    /// How much may be in use, in bytes.
    pub(crate) fn bytes_max(&self) -> u64 {
        u64::from(self.kib_max) << 10
    }

    /// The most in use since the last call, in bytes. While a connection waits for a buffer, all is in use.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let now = self.kib_max as usize - self.kib.available_permits();
        let peak = self.peak_kib.swap(now, Relaxed).max(now);
        (peak as u64) << 10
    }

    /// Whether a buffer of so many bytes needs a permit.
    pub(crate) fn is_counted(bytes: usize) -> bool {
        bytes > SMALL_BUFFER_BYTES
    }

    /// The part of `permit` that a buffer of so many bytes needs. Others get the rest.
    pub(crate) fn shrink(
        mut permit: OwnedSemaphorePermit,
        bytes: usize,
    ) -> Option<OwnedSemaphorePermit> {
        if !Self::is_counted(bytes) {
            return None;
        }
        Some(permit.split(bytes.div_ceil(1024)).unwrap_or(permit))
    }

    /// Waits until a buffer of so many bytes may be used. Small ones need no permit.
    pub(crate) fn reserve(
        &self,
        bytes: usize,
    ) -> Option<impl Future<Output = OwnedSemaphorePermit> + Send + use<>> {
        if !Self::is_counted(bytes) {
            return None;
        }
        let kib = u32::try_from(bytes.div_ceil(1024))
            .unwrap_or(u32::MAX)
            .min(self.kib_max);
        let (all, kib_max) = (Arc::clone(&self.kib), self.kib_max as usize);
        let peak = Arc::clone(&self.peak_kib);
        Some(async move {
            let permit = Arc::clone(&all).acquire_many_owned(kib).await;
            peak.fetch_max(kib_max - all.available_permits(), Relaxed);
            permit.expect("the semaphore is never closed")
        })
    }
}
