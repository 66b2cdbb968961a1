//! CPU time and memory of a process, from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// Linux counts CPU time in hundredths of a second for user space, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process has used so far.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// CPU seconds of user and system, by thread name with trailing digits cut off.
    pub threads: BTreeMap<String, f64>,
    /// Resident memory in MiB.
    pub resident_mib: f64,
}

impl Usage {
    /// Reads the figures of these processes, added up; `None` of none.
    pub fn of(pids: &[u32]) -> anyhow::Result<Option<Self>> {
        let mut sum = Self::default();
        for &pid in pids {
            let usage = Self::read(pid)?;
            sum.resident_mib += usage.resident_mib;
            for (name, seconds) in usage.threads {
                *sum.threads.entry(name).or_default() += seconds;
            }
        }
        Ok((!pids.is_empty()).then_some(sum))
    }

    /// Reads a process's figures.
    fn read(pid: u32) -> anyhow::Result<Self> {
        let process = Path::new("/proc").join(pid.to_string());
        let mut usage = Self::default();
        let threads = fs::read_dir(process.join("task"))
            .with_context(|| format!("process {pid} cannot be read"))?;
        for thread in threads {
            // A thread that ended meanwhile has nothing to tell.
            let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else {
                continue;
            };
            if let Some((name, seconds)) = thread_of(&stat) {
                *usage.threads.entry(name).or_default() += seconds;
            }
        }
        let status = fs::read_to_string(process.join("status"))?;
        usage.resident_mib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
            .unwrap_or(0.0)
            / 1024.0;
        Ok(usage)
    }

    /// What was used after `before`; memory as it is now.
    pub fn since(&self, before: &Self) -> Self {
        let threads = self.threads.iter().map(|(name, seconds)| {
            (
                name.clone(),
                seconds - before.threads.get(name).copied().unwrap_or(0.0),
            )
        });
        Self {
            threads: threads.collect(),
            resident_mib: self.resident_mib,
        }
    }

    /// CPU seconds of all threads.
    pub fn total(&self) -> f64 {
        self.threads.values().sum()
    }
}

/// Name and CPU seconds of a thread, from its `stat` line (proc_pid_stat(5): the name stands in
/// parentheses; user and system time are fields 14 and 15).
fn thread_of(stat: &str) -> Option<(String, f64)> {
    let open = stat.find('(')?;
    let close = stat.rfind(')')?;
    let name = stat[open + 1..close].trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
    let fields: Vec<&str> = stat[close + 1..].split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some((name.to_owned(), ticks / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_named_by_what_stands_between_the_outer_parentheses() {
        let stat = "7 (a (b) c-12) S 1 7 7 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 9 0 1 1 1";
        assert_eq!(thread_of(stat), Some(("a (b) c".to_owned(), 2.0)));
    }
}
