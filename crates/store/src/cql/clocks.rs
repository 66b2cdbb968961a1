//! The servers' clocks, compared with this machine's.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use scylla::client::session::Session;
use scylla::cluster::Node;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::unprepared::Statement;

use crate::ServerClock;

/// The clocks of the connected nodes, without those that do not answer.
pub(super) async fn clocks(session: &Session) -> Vec<ServerClock> {
    let cluster = session.get_cluster_state();
    let mut clocks = Vec::new();
    for node in cluster.get_nodes_info() {
        if let Some(ahead_ms) = ahead_ms(session, node).await {
            let node = node.address.to_string();
            clocks.push(ServerClock { node, ahead_ms });
        }
    }
    clocks
}

/// Asked once: the answer counts as the clock's time in the middle of the round trip.
async fn ahead_ms(session: &Session, node: &Arc<Node>) -> Option<i64> {
    if !node.is_connected() {
        return None;
    }
    let mut statement = Statement::new("SELECT toUnixTimestamp(now()) FROM system.local");
    let only = NodeIdentifier::Node(Arc::clone(node));
    statement.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(only, None)));
    let asked = now_ms();
    let answer = session.query_unpaged(statement, ()).await.ok()?;
    let here = asked.midpoint(now_ms());
    let (there,) = answer.into_rows_result().ok()?.first_row::<(i64,)>().ok()?;
    Some(there - here)
}

fn now_ms() -> i64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}
