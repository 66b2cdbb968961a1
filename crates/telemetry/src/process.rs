//! Metrics of the operating system about this process, under the names that Prometheus' client
//! libraries share. Read from `/proc` and the system at each scrape; values that cannot be read are
//! left out.
//!
//! Not metrics-process or sysinfo: the first declares its metrics outside of the catalogue
//! ([`METRICS`]), and both bring a parser of all of `/proc` for these four values.

use std::fmt::Write as _;
use std::fs;

use metrics::{Counter, Gauge};
use rustix::process::{Resource, getrlimit};

use crate::{Declared, Metric};

/// The unit of CPU times in `/proc`: `USER_HZ`, which is 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

const RESIDENT: Metric<Gauge> = Metric::new("process_resident_memory_bytes", "Memory in RAM", []);
const CPU: Metric<Counter> = Metric::new(
    "process_cpu_seconds_total",
    "User and system CPU time spent",
    [],
);
const OPEN_FILES: Metric<Gauge> = Metric::new("process_open_fds", "Open file descriptors", []);
const MAX_FILES: Metric<Gauge> = Metric::new(
    "process_max_fds",
    "Maximum number of open file descriptors; absent without a limit",
    [],
);

/// The metrics of the process.
pub const METRICS: &[&dyn Declared] = &[&RESIDENT, &CPU, &OPEN_FILES, &MAX_FILES];

/// Appends the process's metrics in Prometheus' text format.
pub fn render(text: &mut String) {
    append(text, &RESIDENT, resident_bytes());
    append(text, &CPU, cpu_seconds());
    append(text, &OPEN_FILES, open_files());
    append(text, &MAX_FILES, max_files());
}

fn append(text: &mut String, metric: &dyn Declared, value: Option<f64>) {
    let Some(value) = value else {
        return;
    };
    let (name, kind, help) = (metric.name(), metric.kind(), metric.help());
    let lines = format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    text.write_fmt(lines)
        .expect("writing to a string cannot fail");
}

fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024.0)
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may contain any character.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

fn open_files() -> Option<f64> {
    let files = fs::read_dir("/proc/self/fd").ok()?.count();
    // Reading the directory kept one file open.
    Some(files.saturating_sub(1) as f64)
}

fn max_files() -> Option<f64> {
    let limit = getrlimit(Resource::Nofile);
    limit.current.map(|files| files as f64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_of_this_process_are_plausible() {
        let resident = resident_bytes().unwrap();
        assert!((1e6..1e11).contains(&resident), "{resident}");
        assert!((0.0..1e6).contains(&cpu_seconds().unwrap()));
        let open = open_files().unwrap();
        assert!(open >= 3.0);
        assert!(max_files().is_none_or(|max| max >= open));
    }
}
