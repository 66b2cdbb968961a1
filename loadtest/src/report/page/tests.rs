//! The contents of the page, without a browser.

use serde_json::Value;

use super::*;
use crate::model::Report;
use crate::report::{compare, sample};

const BEGIN: &str = "<script type=\"application/json\" id=\"data\">";
const END: &str = "</script>";

/// The page before its data, the data, and the page after it.
fn parts(page: &str) -> [&str; 3] {
    let at = page.find(BEGIN).expect("the data") + BEGIN.len();
    let length = page[at..].find(END).expect("the end of the data");
    [&page[..at], &page[at..at + length], &page[at + length..]]
}

fn json(data: &str) -> Value {
    serde_json::from_str(data).expect("JSON")
}

/// The contents of elements without attributes.
fn contents<'a>(page: &'a str, tag: &str) -> Vec<&'a str> {
    let end = format!("</{tag}>");
    page.split(&format!("<{tag}>"))
        .skip(1)
        .map(|rest| &rest[..rest.find(&end).expect("the end of the element")])
        .collect()
}

#[test]
fn the_page_contains_the_whole_report() {
    let report = sample::report(1.0);
    let page = report.page().expect("a page");
    let [_, data, _] = parts(&page);
    let written = json(&serde_json::to_string(&report).expect("JSON"));
    assert_eq!(json(data)["report"], written);
}

#[test]
fn the_page_contains_the_figures_of_a_comparison_as_they_are_printed() {
    let page = compare::sample_page();
    let [_, data, _] = parts(&page);
    let comparison = &json(data)["comparison"];
    assert_eq!(comparison["reports"][1]["name"], "b.json");
    assert_eq!(comparison["reports"][0]["machine"]["cores"], 2);
    let pair = &comparison["pairs"][0];
    assert_eq!(pair["b"]["scenario"], "spike");
    let groups = pair["groups"].as_array().expect("groups");
    let figures = groups.iter().flat_map(|group| group["figures"].as_array());
    let subject = figures
        .flatten()
        .find(|figure| figure["name"] == "subject, all")
        .expect("the subject's CPU");
    let expected = serde_json::json!({
        "name": "subject, all", "a": "612", "b": "437", "ratio": "0.71×", "outcome": "better",
    });
    assert_eq!(*subject, expected);
}

#[test]
fn text_of_a_report_never_becomes_markup() {
    let hostile = sample::hostile();
    let page = hostile.page().expect("a page");
    let [before, data, after] = parts(&page);
    let harmless = sample::report(1.0).page().expect("a page");
    let [harmless_before, _, harmless_after] = parts(&harmless);
    assert_eq!((before, after), (harmless_before, harmless_after));
    assert!(!data.contains('<'), "{data}");
    let read: Report = serde_json::from_value(json(data)["report"].clone()).expect("a report");
    assert_eq!(read.runs[0].scenario, sample::HOSTILE);
    assert_eq!(read.machine.cpu, sample::HOSTILE);
}

#[test]
fn the_policy_allows_the_scripts_and_styles_of_the_page_and_nothing_else() {
    let page = sample::report(1.0).page().expect("a page");
    let policy = page
        .split("http-equiv=\"Content-Security-Policy\" content=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("a policy");
    let allowed: Vec<&str> = policy.split("; ").collect();
    let hashes_of = |tag| {
        let hashes = contents(&page, tag).into_iter().map(|content| {
            let hash = base64::encode_block(&sha256(content.as_bytes()));
            format!("'sha256-{hash}'")
        });
        hashes.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        allowed,
        [
            "default-src 'none'",
            &format!("script-src {}", hashes_of("script")),
            &format!("style-src {}", hashes_of("style")),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    );
    assert_eq!(contents(&page, "script"), SCRIPTS);
    assert_eq!(contents(&page, "style"), STYLES);
}

#[test]
fn no_part_of_the_page_ends_its_own_element() {
    for script in SCRIPTS {
        assert!(!script.contains("</script") && !script.contains("<!--"));
    }
    for style in STYLES {
        assert!(!style.contains("</style"));
    }
    assert!(LICENCE.contains("MIT") && !LICENCE.contains("-->"));
}

/// Writes sample pages and reports to the directory in `WAYBILL_SAMPLE_REPORTS`.
#[test]
#[ignore = "for people: writes files"]
fn sample_reports_are_written_for_inspection() {
    let dir =
        std::env::var_os("WAYBILL_SAMPLE_REPORTS").expect("WAYBILL_SAMPLE_REPORTS is not set");
    let dir = std::path::Path::new(&dir);
    let mut long = sample::report(1.0);
    long.runs = vec![sample::spike(3_600, 1.0)];
    let reports = [
        ("a", sample::report(1.0)),
        ("b", sample::report(1.4)),
        ("long", long),
        ("hostile", sample::hostile()),
    ];
    for (name, report) in reports {
        let [json, html] = ["json", "html"].map(|kind| dir.join(format!("{name}.{kind}")));
        report
            .write(Some(&json), Some(&html))
            .expect("the files are written");
    }
}
