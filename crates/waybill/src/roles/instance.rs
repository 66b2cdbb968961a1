//! Names that a process keeps over restarts, to regain its place in consumer groups.

use waybill_agent::InstancePlace;
use waybill_node::config::Config;
use waybill_node::preparation;
use waybill_telemetry::chain;

/// A name that this process gets again after a restart on the same data directory. After a `kill
/// -9`, its share of a topic then does not wait for the session to time out. `role` is the
/// subdirectory of the name. `None` if that is not writable.
pub(super) fn place(config: &Config, role: &'static str) -> Option<InstancePlace> {
    if let Err(error) = preparation::make_usable(&config.data_dir) {
        tracing::warn!(error = %chain(&error), "cannot use the data directory");
        return None;
    }
    InstancePlace::take(&config.data_dir.join(role))
        .inspect_err(|error| {
            tracing::info!(
                role,
                error = error as &dyn std::error::Error,
                "this role joins its groups as a new member at each start"
            );
        })
        .ok()
}
