//! Grafana's dashboards: the files are valid and use only existing metrics, and every panel shows
//! data of a real Prometheus that scrapes a running Waybill.

mod live;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use waybill::catalogue;

const DASHBOARDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../grafana/dashboards");

/// Metrics that Prometheus itself creates.
const OF_PROMETHEUS: [&str; 1] = ["ALERTS"];

/// The built-in kinds of panels in use.
const KINDS: [&str; 4] = ["stat", "timeseries", "state-timeline", "table"];

/// A dashboard file.
struct Dashboard {
    name: String,
    json: Value,
}

impl Dashboard {
    fn all() -> Vec<Self> {
        let files = std::fs::read_dir(DASHBOARDS).expect("there are dashboards");
        let mut all: Vec<Self> = files
            .map(|file| Self::read(&file.expect("the directory can be read").path()))
            .collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        assert!(!all.is_empty(), "there are dashboards");
        all
    }

    fn read(path: &Path) -> Self {
        let name = path.file_stem().expect("a file has a name");
        let text = std::fs::read_to_string(path).expect("a dashboard can be read");
        let json = serde_json::from_str(&text);
        Self {
            name: name.to_string_lossy().into_owned(),
            json: json.unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        }
    }

    /// All panels except the headings of rows.
    fn panels(&self) -> impl Iterator<Item = &Value> {
        let panels = self.json["panels"].as_array().expect("there are panels");
        panels.iter().filter(|panel| panel["type"] != "row")
    }

    /// Every query with the title of its panel.
    fn queries(&self) -> impl Iterator<Item = (String, &str)> {
        self.panels().flat_map(|panel| {
            let title = format!("{}: {}", self.name, panel["title"]);
            let targets = panel["targets"].as_array().into_iter().flatten();
            targets.map(move |target| {
                let expression = target["expr"].as_str().expect("a query is an expression");
                (title.clone(), expression)
            })
        })
    }
}

/// A query as Grafana sends it, with all variables replaced.
fn as_sent(expression: &str) -> String {
    expression
        .replace("$__rate_interval", "30s")
        .replace("$__range", "5m")
        .replace("$partition", ".*")
        .replace("$agent", ".*")
}

#[test]
fn every_dashboard_and_panel_has_a_description() {
    let mut uids = BTreeSet::new();
    for dashboard in Dashboard::all() {
        let (name, json) = (&dashboard.name, &dashboard.json);
        assert_eq!(json["uid"], name.as_str(), "links last while uids do");
        assert!(uids.insert(name.clone()), "{name} exists twice");
        assert!(!json["title"].as_str().unwrap_or_default().is_empty());
        assert!(json["id"].is_null(), "{name}: ids are Grafana's own");
        let mut ids = BTreeSet::new();
        for panel in json["panels"].as_array().expect("there are panels") {
            assert!(ids.insert(panel["id"].as_u64()), "{name}: an id twice");
        }
        for panel in dashboard.panels() {
            let title = panel["title"].as_str().unwrap_or_default();
            let defaults = &panel["fieldConfig"]["defaults"];
            assert!(!title.is_empty(), "{name}: a panel without a title");
            for (what, message) in [
                ("description", &panel["description"]),
                ("unit", &defaults["unit"]),
                ("text for no value", &defaults["noValue"]),
            ] {
                let message = message.as_str().unwrap_or_default();
                assert!(!message.is_empty(), "{name}: {title} has no {what}");
            }
            let kind = panel["type"].as_str().unwrap_or_default();
            assert!(KINDS.contains(&kind), "{name}: {title} is a {kind}");
            let targets = panel["targets"].as_array().expect("a panel asks something");
            let refs: BTreeSet<_> = targets.iter().map(|it| it["refId"].as_str()).collect();
            assert!(
                !targets.is_empty() && refs.len() == targets.len(),
                "{title}"
            );
            for source in targets.iter().chain([panel]) {
                assert_eq!(source["datasource"]["uid"], "${datasource}", "{title}");
            }
        }
    }
}

#[test]
fn panels_do_not_overlap_and_fit_the_page() {
    for dashboard in Dashboard::all() {
        let mut taken = BTreeMap::new();
        for panel in dashboard.json["panels"]
            .as_array()
            .expect("there are panels")
        {
            let at = |what: &str| panel["gridPos"][what].as_u64().expect("it has a place");
            for x in at("x")..at("x") + at("w") {
                assert!(x < 24, "{}: {}", dashboard.name, panel["title"]);
                for y in at("y")..at("y") + at("h") {
                    let other = taken.insert((x, y), &panel["title"]);
                    assert_eq!(other, None, "{}: over {}", dashboard.name, panel["title"]);
                }
            }
        }
    }
}

#[test]
fn queries_use_existing_metrics_and_legends_use_remaining_labels() {
    let known = catalogue::names();
    for dashboard in Dashboard::all() {
        for (title, expression) in dashboard.queries() {
            let metrics = metrics_of(expression);
            assert!(!metrics.is_empty(), "{title}: {expression}");
            for metric in metrics {
                let is_known = known.contains(metric) || OF_PROMETHEUS.contains(&metric);
                assert!(is_known, "{title}: there is no metric {metric}");
            }
            let is_a_rate = expression.contains("_total") || expression.contains("_bucket");
            let has_rate = expression.contains("rate(") || expression.contains("increase(");
            assert!(!is_a_rate || has_rate, "{title}: a counter is no rate");
        }
        for panel in dashboard.panels() {
            for target in panel["targets"].as_array().expect("there are queries") {
                let legend = target["legendFormat"].as_str().unwrap_or_default();
                let expression = target["expr"].as_str().unwrap_or_default();
                let asked = legend
                    .split("{{")
                    .skip(1)
                    .filter_map(|rest| rest.split("}}").next());
                for label in asked {
                    let is_left = grouped_by(expression).contains(label);
                    assert!(is_left, "{}: {label} of {expression}", panel["title"]);
                }
            }
        }
    }
}

/// The metrics of an expression, without the suffixes of histograms.
fn metrics_of(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let named = words.filter(|word| {
        word.starts_with("waybill_") || word.starts_with("process_") || OF_PROMETHEUS.contains(word)
    });
    named
        .map(|name| {
            let suffixes = ["_bucket", "_sum", "_count"].into_iter();
            let mut of_histogram = suffixes.filter_map(|suffix| name.strip_suffix(suffix));
            of_histogram.next().unwrap_or(name)
        })
        .collect()
}

/// The labels that remain after the expression's aggregations.
fn grouped_by(expression: &str) -> BTreeSet<&str> {
    let groups = expression.split(" by (").skip(1);
    let labels = groups.filter_map(|rest| rest.split(')').next());
    labels.flat_map(|labels| labels.split(", ")).collect()
}

#[test]
fn dashboard_variables_are_labels_of_existing_metrics() {
    let known = catalogue::names();
    for dashboard in Dashboard::all() {
        let variables = dashboard.json["templating"]["list"].as_array();
        for variable in variables.into_iter().flatten() {
            if let Some(query) = variable["query"]["query"].as_str() {
                for metric in metrics_of(query) {
                    assert!(known.contains(metric), "{}: {query}", dashboard.name);
                }
            }
            let name = variable["name"].as_str().expect("a variable has a name");
            let used = format!("${name}");
            let is_used = dashboard.queries().any(|(_, it)| it.contains(&used));
            assert!(
                is_used || name == "datasource",
                "{}: {name}",
                dashboard.name
            );
        }
    }
}
