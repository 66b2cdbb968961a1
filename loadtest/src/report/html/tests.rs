//! Tests of the whole page.

use super::markup::check_well_formed;
use super::*;

fn page_of(runs: Vec<Run>) -> String {
    page(&Report {
        runs,
        ..sample::report(1.0)
    })
}

/// The text from one mark to the next.
fn between<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    let at = page
        .find(from)
        .unwrap_or_else(|| panic!("{from} is missing"));
    let rest = &page[at..];
    &rest[..rest.find(to).unwrap_or_else(|| panic!("{to} is missing"))]
}

#[test]
fn the_page_is_well_formed_and_has_every_part_of_each_run() {
    let report = sample::report(1.0);
    let page = page(&report);
    assert_eq!(check_well_formed(&page), Ok(()));
    assert_eq!(
        page.matches("<section id=\"run-").count(),
        report.runs.len()
    );
    // Three runs with six plots. The floor has no end-to-end plot, and the last run has no samples.
    assert_eq!(page.matches("<figure ").count(), 18);
    assert_eq!(page.matches("<svg ").count(), 17);
    assert_eq!(page.matches("<title id=").count(), 17);
    // Tables of goals and of all runs, and per run: percentiles, phases, kinds, tenants and CPU, if
    // it has any.
    assert_eq!(page.matches("<caption>").count(), 2 + 4 + 3 + 3 + 2 + 3);
    for id in page.split(" id=\"").skip(1) {
        let id = id.split('"').next().expect("the end of an id");
        assert_eq!(
            page.matches(&format!(" id=\"{id}\"")).count(),
            1,
            "{id} twice"
        );
    }
}

#[test]
fn the_page_loads_nothing() {
    let page = page(&sample::report(1.0)).replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for fetched in [
        "http:", "https:", " src=", "@import", "url(", "<link", "<img",
    ] {
        assert!(!page.contains(fetched), "{fetched}");
    }
}

#[test]
fn text_of_a_report_never_becomes_markup() {
    let evil = "</td></style><script>alert(1)</script>\"' & ".to_owned();
    let mut run = sample::spike(130, 1.0);
    run.scenario.clone_from(&evil);
    run.system.clone_from(&evil);
    run.transport.clone_from(&evil);
    run.phases[0].name.clone_from(&evil);
    run.tenants[0].name.clone_from(&evil);
    run.processes[0].name.clone_from(&evil);
    run.processes[1]
        .cpu_us_by_threads
        .insert(evil.clone(), 50.0);
    run.refused.insert(evil.clone(), 1);
    run.states.insert(evil.clone(), 1);
    run.failures.push(evil.clone());
    let mut report = sample::report(1.0);
    report.runs = vec![run];
    report.begun.clone_from(&evil);
    report.machine.cpu.clone_from(&evil);
    report.machine.system.clone_from(&evil);
    report.goals[0].work.clone_from(&evil);
    report.goals[0].goal.clone_from(&evil);
    report.goals[0].measured.clone_from(&evil);
    let page = page(&report);
    assert_eq!(check_well_formed(&page), Ok(()));
    assert!(!page.contains("<script>alert"), "markup from outside");
    assert!(page.matches("&lt;script&gt;alert").count() >= 15);
}

#[test]
fn the_verdict_and_the_failures_are_shown_with_examples() {
    let page = page(&sample::report(1.0));
    let failed = between(&page, "<section id=\"run-2\"", "<section id=\"run-3\"");
    for message in [
        "✗ FAILED",
        "✗ LOST 412",
        "✗ DOUBLE 2",
        "parked 9",
        "412 of 91,000 accepted deliveries",
        "4f2a6c1b8e04: no final state; nothing in the ledger",
        ", of which 5:",
    ] {
        assert!(failed.contains(message), "{message}");
    }
    assert!(!failed.contains("BALANCED") && !failed.contains("HALF-UNDONE"));
    let good = between(&page, "<section id=\"run-1\"", "<section id=\"run-2\"");
    assert!(good.contains("✓ BALANCED") && !good.contains("✗"), "{good}");
}

#[test]
fn goals_are_reported_as_met_missed_or_not_measured() {
    let page = page(&sample::report(1.0));
    let goals = between(&page, "Goals, and how far", "</table>");
    assert_eq!(goals.matches("✓ met").count(), 3, "{goals}");
    assert_eq!(goals.matches("✗ missed").count(), 1, "{goals}");
    assert!(
        goals.contains("0.81×") && goals.contains("width:54.0%"),
        "{goals}"
    );
    // A result far above the goal stays within its bar.
    assert!(
        goals.contains("2.60×") && goals.contains("width:100.0%"),
        "{goals}"
    );
    assert_eq!(goals.matches("not measured</span>").count(), 1, "{goals}");
}

#[test]
fn an_empty_run_is_rendered() {
    let page = page_of(vec![sample::empty()]);
    assert_eq!(check_well_formed(&page), Ok(()));
    for message in [
        "No samples were taken",
        "has no phases",
        "No process was watched",
        "not judged",
    ] {
        assert!(page.contains(message), "{message}");
    }
    for wrong in ["NaN", "inf", ">-", "<svg"] {
        let body = between(&page, "<body>", "<script>");
        assert!(!body.contains(wrong), "{wrong}");
    }
    let page = page_of(Vec::new());
    assert!(page.contains("No runs."));
}

#[test]
fn one_sample_is_shown_as_dots() {
    let mut run = sample::spike(130, 1.0);
    run.samples.truncate(1);
    run.phases.truncate(1);
    run.phases[0].seconds = 1.0;
    let page = page_of(vec![run]);
    assert_eq!(check_well_formed(&page), Ok(()));
    // Three, one, three, three, four and four lines.
    assert_eq!(page.matches("<circle").count(), 18);
    assert!(page.contains("d=\"\""), "a path of one point");
}

#[test]
fn ten_minutes_with_a_sample_each_second_stay_small_and_keep_their_peak() {
    let mut run = sample::spike(600, 1.0);
    run.samples[333].cpu_cores[0] = 1.9876;
    let page = page_of(vec![run]);
    assert!(page.len() < 300_000, "{} bytes", page.len());
    let cpu = between(&page, "CPU by process", "</svg>");
    assert!(cpu.contains("1.988"), "the peak is lost");
}

#[test]
fn many_tenants_are_counted_but_not_all_shown() {
    let mut run = sample::spike(130, 1.0);
    run.samples.clear();
    while run.tenants.len() < 1_060 {
        let mut tenant = sample::spike(13, 1.0).tenants.remove(0);
        tenant.name = format!("tenant {}", run.tenants.len());
        run.tenants.push(tenant);
    }
    let page = page_of(vec![run]);
    assert!(page.contains(">1,010 more tenants"), "{}", page.len());
    assert!(page.contains("tenant 49<") && !page.contains("tenant 50<"));
}

#[test]
fn a_run_not_followed_to_its_end_has_no_completion_rate() {
    let mut run = sample::spike(130, 1.0);
    assert_eq!(completed_of(&run), Some(run.accepted - 57));
    run.states.remove(COMPLETED);
    assert_eq!(completed_of(&run), Some(0));
    run.states.clear();
    assert_eq!(completed_of(&run), None);
}

#[test]
fn utc_times_are_formatted_and_others_unchanged() {
    assert_eq!(
        moment("2026-03-01T08:30:12.345Z"),
        "2026-03-01 08:30:12 UTC"
    );
    assert_eq!(
        moment("2026-03-01T08:30:12+01:00"),
        "2026-03-01T08:30:12+01:00"
    );
}

/// Writes sample pages and reports to the directory in `WAYBILL_SAMPLE_REPORTS`.
#[test]
#[ignore = "for people: writes files"]
fn sample_reports_are_written_for_inspection() {
    let dir =
        std::env::var_os("WAYBILL_SAMPLE_REPORTS").expect("WAYBILL_SAMPLE_REPORTS is not set");
    let dir = std::path::Path::new(&dir);
    for (name, speed) in [("a", 1.0), ("b", 1.4)] {
        let report = sample::report(speed);
        let json = serde_json::to_vec_pretty(&report).expect("JSON");
        std::fs::write(dir.join(format!("{name}.json")), json).expect("the file is written");
        std::fs::write(dir.join(format!("{name}.html")), page(&report))
            .expect("the file is written");
    }
    let long = page_of(vec![sample::spike(600, 1.0)]);
    std::fs::write(dir.join("long.html"), long).expect("the file is written");
}
