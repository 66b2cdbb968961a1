//! A test's own servers, which it can kill, stop and restart with their data.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use waybill_test_support::setup::PATIENCE;

/// Starts servers, and stops them when it is terminated.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/servers/run");

/// The kind of server.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A Kafka node, with the flags that name the other nodes.
    Kafka(Vec<String>),
    Cassandra,
}

impl Kind {
    /// A single Kafka node.
    pub const KAFKA: Self = Self::Kafka(Vec::new());

    /// Its name in the script, the flag of its port, and the start of the line that reports it
    /// ready.
    fn words(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Kafka(_) => ("kafka", "--kafka-port", "kafka "),
            Self::Cassandra => ("cassandra", "--cql-port", "cql "),
        }
    }
}

/// A server. Its data outlives it.
pub struct Server {
    kind: Kind,
    dir: PathBuf,
    /// `HOST:PORT`, the same after restarts.
    pub address: String,
    script: Option<Child>,
}

impl Server {
    /// Starts a server with its data below `dir`, and waits until it is ready.
    pub fn start(kind: Kind, dir: &Path) -> Self {
        let mut server = Self {
            dir: dir.join(kind.words().0),
            kind,
            address: String::new(),
            script: None,
        };
        server.start_again();
        server
    }

    /// Starts it again with its data.
    pub fn start_again(&mut self) {
        let (name, port_flag, ready) = self.kind.words();
        let mut command = Command::new(SCRIPT);
        command.arg("--dir").arg(&self.dir).arg(name);
        if let Kind::Kafka(flags) = &self.kind {
            command.args(flags);
        }
        if let Some((_, port)) = self.address.rsplit_once(':') {
            command.args([port_flag, port]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut script = command.spawn().expect("the script exists");
        let lines = BufReader::new(script.stdout.take().expect("the output is piped")).lines();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(address) = line.strip_prefix(ready) {
                    let _ = sender.send(address.to_owned());
                }
            }
        });
        self.script = Some(script);
        let address = receiver.recv_timeout(PATIENCE);
        self.address = address.unwrap_or_else(|_| panic!("{name} is not ready"));
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.signal("-KILL");
        let mut script = self.script.take().expect("the program runs");
        // The script sees that its server has ended, and has nothing left to stop.
        script.wait().expect("the child can be waited for");
    }

    /// Makes every write to its files fail, as on a full disk. Waits until the server has ended
    /// because of it.
    pub fn fill_the_disk(&mut self) {
        let pid = self.pid();
        let limits = ["--pid", &pid, "--fsize=1:1"];
        let limited = Command::new("prlimit").args(limits).status();
        assert!(
            limited.is_ok_and(|status| status.success()),
            "prlimit {pid}"
        );
        let mut script = self.script.take().expect("the program runs");
        script.wait().expect("the child can be waited for");
    }

    /// Sends SIGSTOP.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{signal} {pid}");
    }

    fn log_tail(&self) -> String {
        let file = self.dir.join(format!("{}.log", self.kind.words().0));
        let log = std::fs::read(file).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(200)..].join("\n")
    }

    fn pid(&self) -> String {
        let file = self.dir.join(format!("{}.pid", self.kind.words().0));
        let pid = std::fs::read_to_string(file).expect("a server that runs has a pid file");
        pid.trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "the end of the log of {}:\n{}",
                self.address,
                self.log_tail()
            );
        }
        if let Some(mut script) = self.script.take() {
            // A paused server would not end. A server that has ended has no pid file.
            let file = self.dir.join(format!("{}.pid", self.kind.words().0));
            if let Ok(server) = std::fs::read_to_string(file) {
                let _ = Command::new("kill").args(["-CONT", server.trim()]).status();
            }
            let pid = script.id().to_string();
            let _ = Command::new("kill").args(["-TERM", &pid]).status();
            let _ = script.wait();
        }
    }
}
