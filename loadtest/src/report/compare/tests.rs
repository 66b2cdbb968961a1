//! Reading, pairing, warnings and output.

use serde_json::Value;

use super::*;
use crate::report::sample;

fn names() -> [String; 2] {
    ["a.json", "b.json"].map(str::to_owned)
}

fn parse_error(json: &str) -> String {
    let error = parse(json.as_bytes()).err().expect("it is refused");
    format!("{error:#}")
}

#[test]
fn a_report_round_trips() {
    let report = sample::report(1.0);
    let json = serde_json::to_string(&report).expect("JSON");
    let read = parse(json.as_bytes()).expect("a report");
    let values = [&report, &read].map(|report| {
        let value = serde_json::to_value(report).expect("JSON");
        rounded(value)
    });
    assert!(values[0] == values[1], "something got lost");
}

/// Without the last digit of its numbers, which may have changed in serialization.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) => format!("{:.10e}", number.as_f64().expect("a number")).into(),
        Value::Array(items) => items.into_iter().map(rounded).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, of)| (name, rounded(of)));
            Value::Object(fields.collect())
        }
        other => other,
    }
}

#[test]
fn reports_without_a_run_in_common_cannot_be_compared() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let write = |name: &str, report: &Report| {
        let path = directory.path().join(name);
        let json = serde_json::to_vec(report).expect("JSON");
        std::fs::write(&path, json).expect("the directory is writable");
        path
    };
    let mut other = sample::report(1.0);
    for run in &mut other.runs {
        run.system = "another".to_owned();
    }
    let a = write("a.json", &sample::report(1.0));
    let b = write("b.json", &other);
    let compare = |b: &PathBuf| {
        run(&Arguments {
            a: a.clone(),
            b: b.clone(),
            html: None,
        })
    };
    compare(&a).expect("they have all runs in common");
    let error = compare(&b).expect_err("they have none").to_string();
    assert!(
        error.starts_with("the reports have no run in common: only in A: "),
        "{error}"
    );
}

#[test]
fn another_format_is_refused() {
    assert_eq!(
        parse_error(r#"{"format": 2, "else": []}"#),
        "format is 2; only 1 is supported"
    );
    assert_eq!(
        parse_error(r#"{"format": "1"}"#),
        "format is \"1\"; only 1 is supported"
    );
    assert!(parse_error(r#"{"runs": []}"#).starts_with("format is missing"));
}

#[test]
fn broken_json_and_wrong_fields_are_named() {
    assert!(parse_error("{\"format\": 1,").contains("line 1"));
    let mut json = serde_json::to_value(sample::report(1.0)).expect("JSON");
    json["runs"][1]["phases"][0]["rate"] = "fast".into();
    let error = parse_error(&json.to_string());
    assert!(
        error.starts_with("runs[1].phases[0].rate: invalid type"),
        "{error}"
    );
    json["runs"][1]["phases"][0]["rate"] = 1.into();
    json["runs"][0]["verdict"]["halfUndone"]["count"] = (-1).into();
    let error = parse_error(&json.to_string());
    assert!(
        error.starts_with("runs[0].verdict.halfUndone.count: "),
        "{error}"
    );
    let error = parse_error(r#"{"format": 1, "begun": "", "other": 1}"#);
    assert!(error.contains("unknown field `other`"), "{error}");
}

#[test]
fn trailing_text_after_a_report_is_refused() {
    let json = serde_json::to_string(&sample::report(1.0)).expect("JSON");
    assert!(parse_error(&format!("{json} {{}}")).contains("trailing characters"));
}

#[test]
fn the_error_names_the_file() {
    let path = Path::new("no/such/report.json");
    let error = format!("{:#}", read(path).err().expect("it is missing"));
    assert!(
        error.starts_with("cannot read no/such/report.json: "),
        "{error}"
    );
}

#[test]
fn runs_are_paired_by_scenario_and_system() {
    let mut a = sample::report(1.0);
    let mut b = sample::report(1.0);
    b.runs.reverse();
    b.runs[0].system = "another".to_owned();
    let mut again = sample::spike(130, 1.0);
    again.seed = 8;
    a.runs.push(again);
    let comparison = Comparison::of(&a, &b);
    let paired: Vec<String> = comparison.pairs.iter().map(Pair::name).collect();
    assert_eq!(
        paired,
        [
            "spike on waybill",
            "cancel-storm on waybill",
            "accept <only> & \"nothing\" else on floor"
        ]
    );
    for pair in &comparison.pairs {
        assert_eq!(name(pair.a), name(pair.b));
    }
    assert_eq!(
        comparison.alone[0],
        ["trickle on textbook", "spike on waybill"]
    );
    assert_eq!(comparison.alone[1], ["trickle on another"]);
}

#[test]
fn repeated_runs_are_paired_in_order() {
    let mut a = sample::report(1.0);
    a.runs = vec![sample::spike(130, 1.0), sample::spike(130, 1.0)];
    a.runs[1].seed = 8;
    let comparison = Comparison::of(&a, &a);
    let seeds: Vec<_> = comparison
        .pairs
        .iter()
        .map(|pair| (pair.a.seed, pair.b.seed))
        .collect();
    assert_eq!(seeds, [(7, 7), (8, 8)]);
    assert!(comparison.all_warnings().is_empty());
}

#[test]
fn differences_in_measurement_are_warned_of() {
    let a = sample::report(1.0);
    let mut b = sample::report(1.0);
    assert!(Comparison::of(&a, &b).pairs[0].warnings.is_empty());
    b.machine.cores = 8;
    b.machine.system = "Linux 7.0".to_owned();
    b.runs[0].transport = "batch".to_owned();
    b.runs[0].seed = 9;
    b.runs[0].phases[1].rate_end = 4_000.0;
    b.runs[0].failures.push("it ended early".to_owned());
    let comparison = Comparison::of(&a, &b);
    assert_eq!(
        comparison.all_warnings(),
        [
            "the number of cores differs: A 2, B 8",
            "the operating system differs: A Linux 6.12, B Linux 7.0"
        ]
    );
    let warnings = &comparison.pairs[0].warnings;
    assert_eq!(warnings[0], "the transport differs: A http2, B batch");
    assert_eq!(warnings[1], "the seed differs: A 7, B 9");
    assert!(warnings[2].contains("B steady (480/s for 60 s from 0 s), spike (3000 to 4000/s"));
    assert_eq!(warnings[3], "B failed: it ended early");
    assert_eq!(warnings.len(), 4);
}

#[test]
fn the_text_lays_the_figures_side_by_side() {
    let (a, b) = (sample::report(1.0), sample::report(1.4));
    let text = text::write(&Comparison::of(&a, &b), &names());
    let row = |name: &str| {
        let row = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        row.unwrap_or_else(|| panic!("{name} is missing"))
            .split_whitespace()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        row("subject, all"),
        ["subject,", "all", "612", "437", "0.71×", "better"]
    );
    assert_eq!(row("offered"), ["offered", "87,600", "87,600", "1.00×"]);
    assert_eq!(row("LOST"), ["LOST", "0", "0", "–", "same"]);
    assert!(
        text.contains("  WARNING: A failed: 412 of 91,000"),
        "{text}"
    );
}

#[test]
fn the_text_contains_no_escape_sequences() {
    let mut a = sample::report(1.0);
    a.runs[0].scenario = "\u{1b}[31mred".to_owned();
    a.machine.cpu = "a\nb".to_owned();
    let text = text::write(&Comparison::of(&a, &a), &names());
    assert!(!text.contains('\u{1b}') && !text.contains("a\nb"), "{text}");
}

#[test]
fn reports_with_nothing_in_common_say_so() {
    let a = sample::report(1.0);
    let mut b = sample::report(1.0);
    b.runs.clear();
    let comparison = Comparison::of(&a, &b);
    assert!(text::write(&comparison, &names()).contains("No run of A has the same"));
    assert!(
        text::write(&comparison, &names())
            .contains("only in A: spike on waybill; cancel-storm on waybill")
    );
}
