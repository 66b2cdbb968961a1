//! Servers of a test's own, which it may kill, stop and start again where they were.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use waybill_test_support::world::PATIENCE;

/// What starts servers, and stops them when it is asked to end.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/servers/run");

/// Which server.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A node of Kafka, with the flags that tell it of the other ones.
    Kafka(Vec<String>),
    Cassandra,
}

impl Kind {
    /// The one node of a Kafka.
    pub const KAFKA: Self = Self::Kafka(Vec::new());

    /// Its name to the script, the flag of its port, and how the line begins that says that it is ready.
    fn words(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Kafka(_) => ("kafka", "--kafka-port", "kafka "),
            Self::Cassandra => ("cassandra", "--cql-port", "cql "),
        }
    }
}

/// A server with its data, which outlives it.
pub struct Server {
    kind: Kind,
    dir: PathBuf,
    /// `HOST:PORT`, the same over all its starts.
    pub address: String,
    script: Option<Child>,
}

impl Server {
    /// Starts a server whose data lies under `dir`, and waits until it is ready.
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

    /// Starts it where it was.
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
        let mut script = command.spawn().expect("the script is there");
        let lines = BufReader::new(script.stdout.take().expect("it is piped")).lines();
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

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.signal("-KILL");
        let mut script = self.script.take().expect("it runs");
        // It sees that its server is gone, and has nothing left to stop.
        script.wait().expect("it can be waited for");
    }

    /// No byte more may be written into its files, as on a disk that is full. Waits until it has ended of that.
    pub fn fill_the_disk(&mut self) {
        let pid = self.pid();
        let limits = ["--pid", &pid, "--fsize=1:1"];
        let limited = Command::new("prlimit").args(limits).status();
        assert!(
            limited.is_ok_and(|status| status.success()),
            "prlimit {pid}"
        );
        let mut script = self.script.take().expect("it runs");
        script.wait().expect("it can be waited for");
    }

    /// SIGSTOP.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT.
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
            // One that stands still would not end; one that is gone has no pid file any more.
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
