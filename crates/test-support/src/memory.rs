//! A limit on the memory of a process, by a control group: the kernel kills a process that exceeds
//! it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a group may still count a process that has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts the program in `$1` in the group whose process list is the file `$0`.
const START_IN_GROUP: &str = r#"echo $$ >"$0" && exec "$@""#;

/// The files of one version of control groups.
struct Version {
    root: &'static str,
    limit: &'static str,
    /// The limit on memory and swap together, or on swap.
    swap: (&'static str, fn(u64) -> u64),
    /// The counter of killed processes.
    kills: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        swap: ("memory.memsw.limit_in_bytes", |bytes| bytes),
        kills: "memory.oom_control",
    },
    Version {
        root: "/sys/fs/cgroup",
        limit: "memory.max",
        swap: ("memory.swap.max", |_| 0),
        kills: "memory.events",
    },
];

/// A control group. Dropping it removes it, once its processes have ended.
pub struct MemoryLimit {
    directory: PathBuf,
    kills: &'static str,
}

impl MemoryLimit {
    /// A group with a limit in bytes. Prints a line that begins with `SKIPPED:` and returns `None`
    /// if this user cannot create one.
    pub fn new_or_skip(bytes: u64) -> Option<Self> {
        let name = format!("waybill-test-{}", uuid::Uuid::new_v4().simple());
        for version in VERSIONS {
            let directory = Path::new(version.root).join(&name);
            if std::fs::create_dir(&directory).is_err() {
                continue;
            }
            let group = Self {
                directory,
                kills: version.kills,
            };
            let write = |file: &str, bytes: u64| {
                std::fs::write(group.directory.join(file), bytes.to_string())
            };
            if write(version.limit, bytes).is_ok() {
                let (file, of) = version.swap;
                // Without swap, the file might not exist.
                let _ = write(file, of(bytes));
                return Some(group);
            }
        }
        println!("SKIPPED: a limit on memory: this user cannot create a control group");
        None
    }

    /// The same command, started within the group, so that the limit applies from the start.
    pub fn around(&self, command: &Command) -> Command {
        let mut limited = Command::new("sh");
        limited.args(["-c", START_IN_GROUP]);
        limited.arg(self.directory.join("cgroup.procs"));
        limited.arg(command.get_program()).args(command.get_args());
        limited
    }

    /// A shell script that starts a program in the same way, and passes its arguments on.
    pub fn script(&self, program: &Path) -> String {
        let group = self.directory.join("cgroup.procs");
        format!("#!/bin/sh\necho $$ >{group:?} && exec {program:?} \"$@\"\n")
    }

    /// The number of processes that were killed because they exceeded the limit.
    pub fn kills(&self) -> u64 {
        let events = std::fs::read_to_string(self.directory.join(self.kills));
        let events = events.expect("the group exists");
        let kills = events
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "));
        kills.expect("kills are counted").parse().unwrap()
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while std::fs::remove_dir(&self.directory).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
