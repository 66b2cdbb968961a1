//! Reports as JUnit XML, which CI systems read.

use std::fmt::Write as _;

use crate::report::{CaseReport, Report};

/// The document of a report.
#[must_use]
pub fn to_junit(report: &Report) -> String {
    let is_error = |case: &&CaseReport| case.unfinished.is_some();
    let errors = report.cases.iter().filter(is_error).count();
    let failed = report.cases.iter().filter(|case| !case.passed).count();
    let counts = format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{errors}\"",
        report.cases.len(),
        failed - errors
    );
    let workflow = format!("{}, version {}", report.workflow, report.version);
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let mut line = |text: String| {
        xml.push_str(&text);
        xml.push('\n');
    };
    line(format!("<testsuites {counts}>"));
    let name = attribute(&workflow);
    line(format!("  <testsuite name=\"{name}\" {counts}>"));
    for case in &report.cases {
        let mut begin = format!(
            "    <testcase name=\"{}\" classname=\"{}\" file=\"{}\" line=\"{}\"",
            attribute(&case.name),
            attribute(&report.workflow),
            attribute(&report.file),
            case.line
        );
        if case.passed {
            begin.push_str("/>");
            line(begin);
            continue;
        }
        begin.push('>');
        line(begin);
        let (kind, message) = match &case.unfinished {
            Some(why) => ("error", why.clone()),
            None => ("failure", message(case)),
        };
        let message = attribute(&message);
        let details = escaped(&case.details(&report.file).join("\n"), false);
        line(format!(
            "      <{kind} message=\"{message}\">{details}</{kind}>"
        ));
        line("    </testcase>".to_owned());
    }
    line("  </testsuite>".to_owned());
    line("</testsuites>".to_owned());
    xml
}

/// The keys that differ.
fn message(case: &CaseReport) -> String {
    let keys: Vec<&str> = case.differences.iter().map(|found| &*found.key).collect();
    format!("not as expected: {}", keys.join("; "))
}

fn attribute(text: &str) -> String {
    escaped(text, true)
}

/// Text as XML 1.0 allows it. Characters that no document may contain are replaced.
fn escaped(text: &str, is_attribute: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\t' | '\n' | '\r' if is_attribute => {
                write!(out, "&#{};", u32::from(c)).expect("writing to a String cannot fail");
            }
            '\t' | '\n' | '\r' => out.push(c),
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
