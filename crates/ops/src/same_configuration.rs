//! Compares the configuration of a command with that of the process at --admin. If they differ, the
//! command would report on topics and agents that the process does not have.

use std::collections::BTreeSet;

use waybill_node::Role;
use waybill_node::admin::{ProcessView, WorkflowId};
use waybill_node::config::Config;
use waybill_node::workflows::load_workflows;

use crate::access::AdminArgs;
use crate::admin_port;
use crate::ready;

/// The process at --admin. `None` if no process with workflows answers, if its version is too old,
/// or if it refuses the token: there is nothing to compare with.
pub(crate) async fn process(config: &Config, admin: &AdminArgs) -> Option<ProcessView> {
    let url = admin.url(config, "/process").ok()?;
    let client = admin_port::client(&admin.access, ready::PATIENCE).ok()?;
    admin_port::answered(&url, client.get(&url)).await.ok()
}

/// What differs between the configuration and that of the process, for people; `None` if nothing
/// does, or the workflows here cannot be loaded.
pub(crate) fn mismatch(
    config: &Config,
    admin: &AdminArgs,
    process: &ProcessView,
) -> Option<String> {
    let workflows = load_workflows(&config.workflows).ok()?;
    let address = admin.url(config, "").ok()?;
    let (prefix, data_dir) = (&config.kafka.topic_prefix, &config.data_dir);
    let here = ProcessView::new(Role::EVERYTHING, prefix, data_dir, &workflows);
    let differences = differences(&here, process);
    (!differences.is_empty()).then(|| {
        format!(
            "this configuration differs from that of the process at {address}: pass that process's --config, or restart \
             the process if its files have changed ({})",
            differences.join("; ")
        )
    })
}

fn differences(here: &ProcessView, there: &ProcessView) -> Vec<String> {
    let mut found = Vec::new();
    if here.topic_prefix != there.topic_prefix {
        let (there, here) = (&there.topic_prefix, &here.topic_prefix);
        found.push(format!("its topic prefix is {there}, here {here}"));
    }
    let workflows = |view: &ProcessView| -> BTreeSet<String> {
        let named = |id: &WorkflowId| format!("{} version {}", id.name, id.version);
        view.workflows.iter().map(named).collect()
    };
    found.extend(one_sided("workflows", &workflows(here), &workflows(there)));
    if here.workflows == there.workflows {
        found.extend(one_sided("agents", &here.agents, &there.agents));
    }
    found
}

/// The entries that only one side has.
fn one_sided(what: &str, here: &BTreeSet<String>, there: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (place, with, without) in [("there", there, here), ("here", here, there)] {
        let alone: Vec<&str> = with.difference(without).map(String::as_str).collect();
        if !alone.is_empty() {
            found.push(format!("{what} only {place}: {}", alone.join(", ")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(prefix: &str, workflows: &[(&str, u32)], agents: &[&str]) -> ProcessView {
        let id = |(name, version): &(&str, u32)| WorkflowId {
            name: (*name).to_owned(),
            version: *version,
        };
        ProcessView {
            version: String::new(),
            role: "up".to_owned(),
            topic_prefix: prefix.to_owned(),
            data_dir: "/data".to_owned(),
            workflows: workflows.iter().map(id).collect(),
            agents: agents.iter().map(|&agent| agent.to_owned()).collect(),
        }
    }

    #[test]
    fn only_differences_are_named() {
        let here = view("waybill", &[("trip", 1)], &["hotel"]);
        let mut there = here.clone();
        there.data_dir = "/elsewhere".to_owned();
        assert_eq!(differences(&here, &there), Vec::<String>::new());
        let there = view("live", &[("trip", 2), ("order", 1)], &["stock"]);
        assert_eq!(
            differences(&here, &there),
            [
                "its topic prefix is live, here waybill",
                "workflows only there: order version 1, trip version 2",
                "workflows only here: trip version 1",
            ]
        );
        let there = view("waybill", &[("trip", 1)], &["hotel", "car"]);
        assert_eq!(differences(&here, &there), ["agents only there: car"]);
    }
}
