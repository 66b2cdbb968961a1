//! The program as a process, with its listeners' addresses.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The time limit of all waits. Generous, because it limits only failures.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The number of log lines in a failure message.
const LOG_LINES_SHOWN: usize = 60;

/// A running process. Dropping it kills it.
pub struct Process {
    /// The process.
    pub child: Child,
}

impl Process {
    /// Starts a command and appends its output to the file `log`. Waits until the command has
    /// announced the listeners named in `announces`, and returns their addresses.
    pub fn start(
        mut command: Command,
        announces: &[&str],
        log: &Path,
    ) -> (Self, HashMap<String, SocketAddr>) {
        without_variables(&mut command);
        let log_file = OpenOptions::new().create(true).append(true).open(log);
        command
            .stdout(Stdio::piped())
            .stderr(log_file.expect("the directory is writable"));
        let child = command.spawn().expect("the program was built");
        let mut process = Self { child };
        let stdout = process.child.stdout.take().expect("stdout is piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            // Reads to the end, so that the process never blocks on a full pipe.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut addresses = HashMap::new();
        let deadline = Instant::now() + PATIENCE;
        while announces.iter().any(|name| !addresses.contains_key(*name)) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = lines.recv_timeout(left) else {
                let announced: Vec<_> = addresses.keys().collect();
                let ended = process.child.try_wait();
                panic!(
                    "of {announces:?} only {announced:?} were announced; ended: {ended:?}:\n{}",
                    log_tail(log)
                );
            };
            let announced = line.strip_prefix("listening ");
            if let Some((name, address)) = announced.and_then(|rest| rest.split_once(' '))
                && announces.contains(&name)
            {
                let address = address.parse().expect("an address is announced");
                addresses.insert(name.to_owned(), address);
            }
        }
        (process, addresses)
    }
}

impl Process {
    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("the process exists");
        self.child.wait().expect("the process can be waited for");
    }

    /// Sends SIGTERM and waits for the end. Returns the exit code.
    pub fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "SIGTERM can be sent"
        );
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self
                .child
                .try_wait()
                .expect("the process can be waited for")
            {
                return status.code();
            }
            assert!(
                Instant::now() < deadline,
                "the process does not end on SIGTERM"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Removes the variables that this test inherited: those of Waybill would configure the program,
/// and it refuses those of tests.
pub fn without_variables(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WAYBILL_") {
            command.env_remove(name);
        }
    }
    command
}

/// The end of a log.
pub fn log_tail(log: &Path) -> String {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

/// The output of a command without the warning that the topics of the embedded broker may grow to
/// more than this machine's disk has for them: that differs between machines.
pub fn without_disk_warning(output: &str) -> String {
    output
        .split_inclusive('\n')
        .filter(|line| !line.contains("the topics of the embedded broker may grow to"))
        .collect()
}
