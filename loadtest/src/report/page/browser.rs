//! The page in a real browser.

use std::fs::File;
use std::io::ErrorKind;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::*;
use crate::model::Part;
use crate::report::{compare, sample};

const TIMEOUT: Duration = Duration::from_secs(300);

/// Draws all plots, moves the pointer over the first one, and writes what the page shows into an
/// attribute.
const PROBE: &str = r#"
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
document.addEventListener("securitypolicyviolation", (event) => errors.push(`${event.violatedDirective} ${event.blockedURI}`));
const texts = (selector) => Array.from(document.querySelectorAll(selector), (element) => element.textContent);
// Lines have colours; bands, rules and text are nearly grey.
const isInked = (canvas) => {
  const { offsetLeft, offsetTop, offsetWidth, offsetHeight } = canvas.parentNode.querySelector(".u-over");
  // A line of zeros is on the edge.
  const { data } = canvas.getContext("2d").getImageData(offsetLeft, offsetTop, offsetWidth, offsetHeight + 2);
  let coloured = 0;
  for (let at = 0; at < data.length; at += 4) if (Math.abs(data[at] - data[at + 2]) > 30) coloured += 1;
  return coloured > 5;
};
addEventListener("load", () => {
  dispatchEvent(new Event("beforeprint"));
  setTimeout(() => {
    const over = document.querySelector(".u-over");
    const { left, top, width } = over.getBoundingClientRect();
    const pointer = { clientX: left + width / 2, clientY: top + 20 };
    over.dispatchEvent(new MouseEvent("mouseenter", pointer));
    over.dispatchEvent(new MouseEvent("mousemove", pointer));
    const canvases = Array.from(document.querySelectorAll("canvas"));
    const found = {
      errors,
      figures: texts("figure").length,
      canvases: canvases.length,
      inked: canvases.filter(isInked).length,
      descriptions: texts("[role=img] + p"),
      captions: texts("caption"),
      sections: texts("section > h2"),
      badges: texts(".badge"),
      text: texts("main").join(),
      marked: document.querySelectorAll("main script, main style, main img").length,
      values: texts(".values"),
    };
    document.documentElement.setAttribute("data-found", encodeURIComponent(JSON.stringify(found)));
  }, 500);
});
"#;

/// A process that is stopped with the test.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a page shows in Chromium; `None`, with a line that says so, if there is none here.
fn shown(page: &str) -> Option<Value> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [path, dom] = ["page.html", "dom.html"].map(|name| directory.path().join(name));
    let probe = hashes(&[PROBE]);
    let page = page.replacen("script-src ", &format!("script-src {probe} "), 1);
    let page = page.replacen("<title>", &format!("<script>{PROBE}</script><title>"), 1);
    std::fs::write(&path, page).expect("the directory is writable");
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let spawn = |name: &&str| {
        Command::new(name)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--no-first-run", "--dump-dom"])
            .args(["--virtual-time-budget=30000", "--window-size=1400,1000"])
            .arg(format!("--user-data-dir={}", directory.path().display()))
            .arg(format!("file://{}", path.display()))
            .stdout(File::create(&dom).expect("the directory is writable"))
            .stderr(std::process::Stdio::null())
            .spawn()
    };
    let spawned = names
        .iter()
        .map(spawn)
        .find(|spawned| !matches!(spawned, Err(error) if error.kind() == ErrorKind::NotFound));
    let Some(spawned) = spawned else {
        println!("SKIPPED: the load test's report in a browser: there is no Chromium here");
        return None;
    };
    let mut browser = Browser(spawned.expect("Chromium is started"));
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = browser.0.try_wait().expect("its status") {
            break status;
        }
        assert!(Instant::now() < deadline, "Chromium does not end");
        std::thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        println!("SKIPPED: the load test's report in a browser: Chromium does not start here");
        return None;
    }
    let dom = std::fs::read_to_string(&dom).expect("the page as the browser has it");
    let found = dom
        .split("data-found=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("the probe has run");
    let found = percent_encoding::percent_decode_str(found).decode_utf8_lossy();
    Some(serde_json::from_str(&found).expect("JSON"))
}

fn strings(found: &Value) -> Vec<&str> {
    let strings = found.as_array().into_iter().flatten();
    strings.filter_map(Value::as_str).collect()
}

/// How many of the strings contain the text.
fn containing(found: &Value, text: &str) -> usize {
    let strings = strings(found);
    strings.iter().filter(|it| it.contains(text)).count()
}

#[test]
fn a_browser_draws_every_plot_and_table_of_a_report() {
    let report = sample::report(1.0);
    let Some(found) = shown(&report.page().expect("a page")) else {
        return;
    };
    assert_eq!(found["errors"], serde_json::json!([]));
    // Three runs with six plots. The floor has no end-to-end plot, and the last run has no samples.
    assert_eq!(found["figures"], 18);
    assert_eq!(
        (&found["canvases"], &found["inked"]),
        (&17.into(), &17.into())
    );
    assert_eq!(strings(&found["descriptions"]).len(), 17);
    assert_eq!(
        containing(
            &found["descriptions"],
            "CPU by process over 138 s: waybill up to 1."
        ),
        2
    );
    // Tables of goals and of all runs, and per run: percentiles, phases, kinds, tenants and CPU, if
    // it has any.
    assert_eq!(strings(&found["captions"]).len(), 2 + 4 + 3 + 3 + 2 + 3);
    assert_eq!(
        strings(&found["sections"]),
        [
            "spike on waybill",
            "cancel-storm on waybill",
            "accept <only> & \"nothing\" else on floor",
            "trickle on textbook"
        ]
    );
    for (badge, times) in [
        ("✓ met", 3),
        ("✗ missed", 1),
        ("not measured", 1),
        // In the table of all runs and in the run's own section.
        ("✓ BALANCED", 2),
        ("✗ FAILED", 4),
        ("✗ LOST 412", 2),
        ("✗ DOUBLE 2", 2),
        ("parked 9", 2),
        ("HALF-UNDONE", 0),
        ("not judged", 4),
    ] {
        assert_eq!(containing(&found["badges"], badge), times, "{badge}");
    }
    let text = found["text"].as_str().expect("the text");
    for shown in [
        "2026-03-01 08:30:12 UTC",
        "Example 4 GHz, 2 cores, 7,941 MiB of memory, Linux 6.12",
        "0.81×",
        "412 of 91,000 accepted deliveries did not end within 60 s",
        "4f2a6c1b8e04: no final state; nothing in the ledger",
        ", of which 5:",
        "Breaking point: 4,200/s held, 5,000/s did not: acceptance p99 was 240 ms.",
        "garbage (bad input)",
        "2 others",
        "No samples were taken",
        "The scenario has no phases.",
        "No process was watched.",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    for wrong in ["NaN", "Infinity", "undefined", "null", "[object"] {
        assert!(!text.contains(wrong), "{wrong}: {text}");
    }
    let values = strings(&found["values"]);
    assert_eq!(values.len(), 1);
    assert!(values[0].contains(" s, spike\naccepted  "), "{values:?}");
    assert!(values[0].contains("\noffered  3,000/s"), "{values:?}");
}

#[test]
fn a_browser_shows_hostile_text_as_text() {
    let Some(found) = shown(&sample::hostile().page().expect("a page")) else {
        return;
    };
    assert_eq!(found["errors"], serde_json::json!([]));
    assert_eq!(found["marked"], 0);
    assert_eq!(found["canvases"], found["inked"]);
    let text = found["text"].as_str().expect("the text");
    assert!(text.matches(sample::HOSTILE).count() >= 15, "{text}");
    assert!(text.contains("seed 18446744073709551615"), "{text}");
}

#[test]
fn a_browser_shows_a_single_sample_and_counts_what_is_left_out() {
    let mut run = sample::spike(130, 1.0);
    run.samples.truncate(1);
    while run.processes.len() < 12 {
        let name = format!("process {}", run.processes.len());
        run.processes.push(sample::process(&name, Part::Server));
        run.samples[0].cpu_cores.push(0.0);
    }
    run.samples[0].cpu_cores[11] = 0.5;
    while run.tenants.len() < 1_060 {
        let mut tenant = sample::spike(13, 1.0).tenants.remove(0);
        tenant.name = format!("tenant {}.", run.tenants.len());
        run.tenants.push(tenant);
    }
    let mut report = sample::report(1.0);
    report.runs = vec![run];
    let Some(found) = shown(&report.page().expect("a page")) else {
        return;
    };
    assert_eq!(found["errors"], serde_json::json!([]));
    assert_eq!((&found["figures"], &found["inked"]), (&6.into(), &6.into()));
    let text = found["text"].as_str().expect("the text");
    assert_eq!(text.matches("; 4 more are not drawn").count(), 2, "{text}");
    // Those with the highest peaks, in order.
    let last = "process 6 up to 0 cores; process 11 up to 0.50 cores.";
    assert_eq!(containing(&found["descriptions"], last), 1);
    assert!(text.contains("tenant 49.") && !text.contains("tenant 50."));
    assert!(text.contains("1,010 more tenants are in the report's JSON."));
}

#[test]
fn a_browser_overlays_the_runs_of_a_comparison() {
    let Some(found) = shown(&compare::sample_page()) else {
        return;
    };
    assert_eq!(found["errors"], serde_json::json!([]));
    // Three pairs with ten plots. Of those, the floor's end-to-end plot and those of other
    // processes are empty.
    assert_eq!(found["figures"], 30);
    assert_eq!(
        (&found["canvases"], &found["inked"]),
        (&27.into(), &27.into())
    );
    assert_eq!(containing(&found["descriptions"], "; B p99 up to "), 5);
    // The reports, all pairs, and the figures of each pair.
    assert_eq!(strings(&found["captions"]).len(), 2 + 4);
    assert!(containing(&found["badges"], "✓ better") > 20);
    assert_eq!(containing(&found["badges"], "✗ worse"), 0);
    let text = found["text"].as_str().expect("the text");
    for shown in [
        "a.json",
        "b.json",
        "A failed: 412 of 91,000",
        "subject, all6124370.71×",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    let values = strings(&found["values"]);
    assert!(
        values.len() == 1 && values[0].contains("\nB  "),
        "{values:?}"
    );
}
