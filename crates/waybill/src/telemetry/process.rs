//! What the operating system knows of this process, by the names that Prometheus' client
//! libraries agreed on. Read from `/proc` at each scrape; where that does not exist nothing is
//! shown.

use std::fmt::Write as _;
use std::fs;

/// The unit of CPU times in `/proc`: `USER_HZ`, which is 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Appends the process's metrics in Prometheus' text format.
pub(super) fn render(text: &mut String) {
    if let Some(bytes) = resident_bytes() {
        append(
            text,
            "process_resident_memory_bytes",
            "gauge",
            "Memory in RAM, in bytes.",
            bytes,
        );
    }
    if let Some(seconds) = cpu_seconds() {
        let help = "User and system CPU time spent, in seconds.";
        append(text, "process_cpu_seconds_total", "counter", help, seconds);
    }
    if let Some(files) = open_files() {
        append(
            text,
            "process_open_fds",
            "gauge",
            "Open file descriptors.",
            files,
        );
    }
}

fn append(text: &mut String, name: &str, kind: &str, help: &str, value: f64) {
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
    // The second field is the program's name in parentheses and may hold anything.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

fn open_files() -> Option<f64> {
    let files = fs::read_dir("/proc/self/fd").ok()?.count();
    // The directory itself was open while it was read.
    Some(files.saturating_sub(1) as f64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_of_this_process_are_plausible() {
        let resident = resident_bytes().unwrap();
        assert!((1e6..1e11).contains(&resident), "{resident}");
        assert!((0.0..1e6).contains(&cpu_seconds().unwrap()));
        assert!(open_files().unwrap() >= 3.0);
    }
}
