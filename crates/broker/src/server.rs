//! The parts that all connections share.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use kafka_protocol::messages::BrokerId;
use kafka_protocol::protocol::StrBytes;
use tokio_util::sync::CancellationToken;
use waybill_connections::Buffers;

use crate::BrokerSettings;
use crate::access::Logins;
use crate::group::Coordinator;
use crate::meta::Meta;
use crate::stats::Counters;
use crate::topics::Topics;

/// The one broker's node id.
pub(crate) const NODE: BrokerId = BrokerId(1);

/// The broker's parts, as its connections use them.
pub(crate) struct Server {
    pub(crate) config: BrokerSettings,
    /// The address of the listener for clients of this process, once it exists.
    pub(crate) own_address: OnceLock<SocketAddr>,
    pub(crate) cluster_id: StrBytes,
    pub(crate) topics: Topics,
    pub(crate) meta: Arc<Meta>,
    pub(crate) coordinator: Coordinator,
    /// Conceals from clients which users exist.
    pub(crate) login_secret: [u8; 32],
    pub(crate) counters: Arc<Counters>,
    pub(crate) buffers: Buffers,
    /// Those of control requests and their answers, so that none waits for an answer before it.
    pub(crate) control_buffers: Buffers,
    /// No more requests are accepted; waiting ones are answered.
    pub(crate) stopping: CancellationToken,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

impl Server {
    /// What checks the login of a connection; `None` if every client may do everything.
    pub(crate) fn logins(&self, ends: Ends) -> Option<&Arc<dyn Logins>> {
        let own = self.config.own_logins.as_ref();
        let own = own.filter(|_| self.is_own(ends));
        own.or(self.config.logins.as_ref())
    }

    /// Whether it is a connection to the listener for clients of this process.
    fn is_own(&self, ends: Ends) -> bool {
        self.own_address.get() == Some(&ends.local)
    }

    /// The address that a client receives for connections.
    pub(crate) fn advertised(&self, ends: Ends) -> (StrBytes, i32) {
        let advertised = self.config.advertised.as_ref();
        match advertised.filter(|_| !self.is_own(ends)) {
            Some((host, port)) => (StrBytes::from_string(host.clone()), i32::from(*port)),
            None => {
                let host = ends.local.ip().to_canonical().to_string();
                (StrBytes::from_string(host), i32::from(ends.local.port()))
            }
        }
    }
}
