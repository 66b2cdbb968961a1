//! Names by which processes find their places in consumer groups again.

use waybill_agent::InstancePlace;
use waybill_node::config::Config;
use waybill_telemetry::chain;

use super::data_dir;

/// A name that this process finds again when it is started again on the same data directory, so that
/// after a `kill -9` its share of a topic does not wait for its session to end. `role` is where in the
/// data directory such names lie. `None` where that cannot be written to.
pub(super) fn place(config: &Config, role: &'static str) -> Option<InstancePlace> {
    if let Err(error) = data_dir::prepare(&config.data_dir) {
        tracing::warn!(error = %chain(&error), "the data directory cannot be used");
        return None;
    }
    InstancePlace::take(&config.data_dir.join(role))
        .inspect_err(|error| {
            tracing::info!(
                role,
                error = error as &dyn std::error::Error,
                "this role joins its groups as somebody new at each start"
            );
        })
        .ok()
}
