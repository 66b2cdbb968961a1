//! CPU time and memory of processes, from `/proc`.
//!
//! Deliberately absent: the choice of processes, and their roles in a measurement.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Linux reports CPU time to user space in hundredths of a second, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// The usage of a process so far.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// CPU seconds in user and system mode, including ended threads.
    pub cpu_seconds: f64,
    /// CPU seconds of the current threads, by name without trailing digits.
    pub threads: BTreeMap<String, f64>,
    /// Resident memory in MiB.
    pub resident_mib: f64,
}

impl Usage {
    /// The usage of a process, including its threads.
    ///
    /// # Errors
    ///
    /// If the process has ended, or `/proc` cannot be read.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let mut usage = Self::totals_of(pid)?;
        for thread in fs::read_dir(directory(pid).join("task"))? {
            // The thread has ended since.
            let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else {
                continue;
            };
            if let Some(stat) = Stat::parse(&stat) {
                *usage.threads.entry(stat.group().to_owned()).or_default() += stat.cpu_seconds;
            }
        }
        Ok(usage)
    }

    /// The usage of a process without its threads.
    ///
    /// # Errors
    ///
    /// As [`Usage::of`].
    pub fn totals_of(pid: u32) -> anyhow::Result<Self> {
        let process = directory(pid);
        let stat = fs::read_to_string(process.join("stat"))?;
        let stat = Stat::parse(&stat).context("stat does not have the expected fields")?;
        anyhow::ensure!(!stat.has_ended, "the process has ended");
        Ok(Self {
            cpu_seconds: stat.cpu_seconds,
            threads: BTreeMap::new(),
            resident_mib: resident_mib(&fs::read_to_string(process.join("status"))?),
        })
    }

    /// The usage since `before`, with the current memory.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let threads = self.threads.iter().map(|(name, seconds)| {
            let before = before.threads.get(name).copied().unwrap_or_default();
            (name.clone(), seconds - before)
        });
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            threads: threads.collect(),
            resident_mib: self.resident_mib,
        }
    }
}

/// Whether a process has ended, even if its parent has not waited for it yet.
#[must_use]
pub fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(directory(pid).join("stat"));
    stat.map_or(true, |stat| {
        Stat::parse(&stat).is_none_or(|stat| stat.has_ended)
    })
}

/// The usage of a process and of its descendants that still run, without threads.
#[must_use]
pub fn tree_usage(root: u32) -> Usage {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found: HashMap<u32, (u32, f64)> = processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let stat = Stat::parse(&stat)?;
            Some((
                pid,
                (stat.parent, stat.cpu_seconds + stat.ended_children_seconds),
            ))
        })
        .collect();
    let is_below = |mut pid: u32| {
        while let Some((parent, _)) = found.get(&pid) {
            if pid == root {
                return true;
            }
            pid = *parent;
        }
        false
    };
    let mut sum = Usage::default();
    for (pid, (_, seconds)) in found.iter().filter(|(pid, _)| is_below(**pid)) {
        sum.cpu_seconds += seconds;
        let status = fs::read_to_string(directory(*pid).join("status"));
        sum.resident_mib += resident_mib(&status.unwrap_or_default());
    }
    sum
}

/// CPU seconds of this process's ended children and their ended children, once their parents have
/// waited for them (wait4(2)).
#[must_use]
pub fn ended_children_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Stat::parse(&stat).map_or(0.0, |stat| stat.ended_children_seconds)
}

/// A `stat` line of a process or thread (proc_pid_stat(5)).
#[derive(PartialEq, Debug)]
struct Stat<'a> {
    name: &'a str,
    /// Whether it is a zombie or dead.
    has_ended: bool,
    parent: u32,
    cpu_seconds: f64,
    ended_children_seconds: f64,
}

impl<'a> Stat<'a> {
    /// The name is in parentheses and may contain some itself. The state is field 3 and the parent
    /// field 4. User and system time are fields 14 and 15, and those of waited-for children are
    /// fields 16 and 17.
    fn parse(line: &'a str) -> Option<Self> {
        let open = line.find('(')?;
        let close = line.rfind(')')?;
        let fields: Vec<&str> = line[close + 1..].split_whitespace().collect();
        let seconds = |number: usize| {
            let ticks: f64 = fields.get(number - 3)?.parse().ok()?;
            Some(ticks / TICKS_PER_SECOND)
        };
        Some(Self {
            name: &line[open + 1..close],
            has_ended: matches!(*fields.first()?, "Z" | "X"),
            parent: fields.get(1)?.parse().ok()?,
            cpu_seconds: seconds(14)? + seconds(15)?,
            ended_children_seconds: seconds(16)? + seconds(17)?,
        })
    }

    /// The name without the digits that distinguish threads of one group.
    fn group(&self) -> &'a str {
        let digits = |c: char| c.is_ascii_digit() || c == '-';
        self.name.trim_end_matches(digits)
    }
}

/// The resident memory in a `status` file.
fn resident_mib(status: &str) -> f64 {
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

fn directory(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_name_is_the_text_between_the_outer_parentheses() {
        let line = "7 (a (b) c-12) S 1 7 7 0 -1 4194304 1 0 0 0 150 50 30 20 20 0 9 0 1 1 1";
        let stat = Stat::parse(line).expect("it is whole");
        assert_eq!(stat.group(), "a (b) c");
        assert_eq!(
            (stat.parent, stat.cpu_seconds, stat.ended_children_seconds),
            (1, 2.0, 0.5)
        );
        assert_eq!(Stat::parse("7 (a) S 1 7"), None);
    }

    #[test]
    fn a_zombie_process_counts_as_ended() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        assert!(!has_ended(child.id()));
        child.kill().unwrap();
        while !has_ended(child.id()) {
            std::thread::yield_now();
        }
        let ended = Usage::of(child.id()).unwrap_err();
        assert_eq!(ended.to_string(), "the process has ended");
        child.wait().unwrap();
        assert!(has_ended(child.id()));
    }

    #[test]
    fn memory_is_resident_memory() {
        let status = "Name:\ta\nVmPeak:\t 9999 kB\nVmRSS:\t   2048 kB\nThreads:\t1\n";
        assert_eq!(resident_mib(status), 2.0);
        assert_eq!(resident_mib("Name:\tzombie\n"), 0.0);
    }

    #[test]
    fn the_usage_of_this_process_is_measured() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.resident_mib > 0.0 && !usage.threads.is_empty());
        let tree = tree_usage(std::process::id());
        assert!(tree.cpu_seconds >= usage.cpu_seconds && tree.resident_mib > 0.0);
    }
}
