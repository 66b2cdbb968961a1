//! CPU time and memory of processes, from `/proc`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::report::model::Part;

/// Linux counts CPU time in hundredths of a second for user space, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that is watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watched {
    /// What it is called in reports.
    pub name: String,
    /// Its id.
    pub pid: u32,
    /// What it is to the measurement.
    pub part: Part,
}

/// What a process has used so far.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// CPU seconds of user and system, threads that ended included.
    pub cpu_seconds: f64,
    /// Those of threads that are there, by name with trailing digits cut off.
    pub threads: BTreeMap<String, f64>,
    /// Resident memory in MiB.
    pub resident_mib: f64,
}

impl Watched {
    /// This process: who sends the requests.
    pub fn this_one() -> Self {
        Self {
            name: "waybill-loadtest".to_owned(),
            pid: std::process::id(),
            part: Part::Load,
        }
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        let stat = fs::read_to_string(directory(self.pid).join("stat"));
        stat.map_or(true, |stat| {
            Stat::parse(&stat).is_none_or(|stat| stat.has_ended)
        })
    }

    /// Reads `NAME=PID` or `NAME=PID:PART`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} must be NAME=PID or NAME=PID:PART, PART being subject, server or services"
            )
        };
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (pid, part) = rest.split_once(':').unwrap_or((rest, "subject"));
        let part = match part {
            "subject" => Part::Subject,
            "server" => Part::Server,
            "services" => Part::Services,
            _ => return Err(wrong()),
        };
        let pid = pid.parse().map_err(|_| wrong())?;
        if name.is_empty() {
            return Err(wrong());
        }
        let name = name.to_owned();
        Ok(Self { name, pid, part })
    }

    /// Its figures, thread by thread.
    ///
    /// # Errors
    ///
    /// If it is not there.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        let of_process = || format!("process {} ({}) cannot be read", self.pid, self.name);
        let process = directory(self.pid);
        let mut usage = self.totals().with_context(of_process)?;
        for thread in fs::read_dir(process.join("task")).with_context(of_process)? {
            // A thread that ended meanwhile has nothing to tell.
            let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else {
                continue;
            };
            if let Some(stat) = Stat::parse(&stat) {
                *usage.threads.entry(stat.group().to_owned()).or_default() += stat.cpu_seconds;
            }
        }
        Ok(usage)
    }

    /// Its figures without those of threads.
    ///
    /// # Errors
    ///
    /// If it is not there.
    pub fn totals(&self) -> anyhow::Result<Usage> {
        let process = directory(self.pid);
        let stat = fs::read_to_string(process.join("stat"))?;
        let stat = Stat::parse(&stat).context("stat has not the fields that are expected")?;
        anyhow::ensure!(
            !stat.has_ended,
            "{} (process {}) has ended",
            self.name,
            self.pid
        );
        Ok(Usage {
            cpu_seconds: stat.cpu_seconds,
            threads: BTreeMap::new(),
            resident_mib: resident_mib(&fs::read_to_string(process.join("status"))?),
        })
    }
}

/// Whether none of the processes that are measured is there any more, and some were: then nothing ends any more.
pub fn subjects_are_gone(processes: &[Watched]) -> bool {
    let mut subjects = processes
        .iter()
        .filter(|process| process.part == Part::Subject)
        .peekable();
    subjects.peek().is_some() && subjects.all(Watched::is_gone)
}

impl Usage {
    /// What was used after `before`; memory as it is now.
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

/// What a process and all that it started and that are still there have used so far. Threads are left out.
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

/// CPU seconds of the processes that this one started and has waited for, and of those that they have waited for:
/// what wait4(2) tells of them.
pub fn ended_children_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Stat::parse(&stat).map_or(0.0, |stat| stat.ended_children_seconds)
}

/// A `stat` line of a process or thread (proc_pid_stat(5)).
#[derive(PartialEq, Debug)]
struct Stat<'a> {
    name: &'a str,
    /// It is a zombie or dead: nobody has waited for it.
    has_ended: bool,
    parent: u32,
    cpu_seconds: f64,
    ended_children_seconds: f64,
}

impl<'a> Stat<'a> {
    /// The name stands in parentheses and may have some itself. The state is field 3, the parent field 4, user and system time are
    /// fields 14 and 15, those of children that were waited for fields 16 and 17.
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

    /// The name without what tells threads of one group apart.
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
    fn a_thread_is_named_by_what_stands_between_the_outer_parentheses() {
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
    fn a_process_that_nobody_has_waited_for_is_gone() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let watched = Watched {
            name: "cat".to_owned(),
            pid: child.id(),
            part: Part::Subject,
        };
        let all = [watched.clone(), Watched::this_one()];
        assert!(!watched.is_gone() && !subjects_are_gone(&all));
        child.kill().unwrap();
        while !watched.is_gone() {
            std::thread::yield_now();
        }
        assert!(subjects_are_gone(&all) && !subjects_are_gone(&all[1..]));
        let ended = watched.usage().unwrap_err();
        assert!(format!("{ended:#}").contains("has ended"), "{ended:#}");
        child.wait().unwrap();
        assert!(watched.is_gone());
    }

    #[test]
    fn memory_is_the_resident_one() {
        let status = "Name:\ta\nVmPeak:\t 9999 kB\nVmRSS:\t   2048 kB\nThreads:\t1\n";
        assert_eq!(resident_mib(status), 2.0);
        assert_eq!(resident_mib("Name:\tzombie\n"), 0.0);
    }

    #[test]
    fn a_process_is_named_with_its_part() {
        let watched = Watched::parse("kafka=12:server").unwrap();
        assert_eq!(
            (&*watched.name, watched.pid, watched.part),
            ("kafka", 12, Part::Server)
        );
        assert_eq!(Watched::parse("up=3").unwrap().part, Part::Subject);
        for text in ["12", "=12", "a=", "a=b", "a=1:load", "a=1:"] {
            assert!(Watched::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn this_process_has_used_something_and_is_the_root_of_its_tree() {
        let usage = Watched::this_one().usage().unwrap();
        assert!(usage.resident_mib > 0.0 && !usage.threads.is_empty());
        let tree = tree_usage(std::process::id());
        assert!(tree.cpu_seconds >= usage.cpu_seconds && tree.resident_mib > 0.0);
    }
}
