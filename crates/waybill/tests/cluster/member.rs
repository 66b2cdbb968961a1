//! One process of a cluster, which can be killed and restarted with its data.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use waybill_test_support::process::Process;
use waybill_test_support::setup::Setup;

/// A process with its configuration, its data directory and its addresses.
pub struct Member {
    role: &'static str,
    extra: Vec<String>,
    announces: Vec<&'static str>,
    pub setup: Arc<Setup>,
    process: Option<Process>,
}

impl Member {
    /// Starts a role with a setup's configuration. Beside `admin` it announces the listener
    /// `listens`, if given.
    pub fn start(
        role: &'static str,
        mut setup: Setup,
        extra: &[&str],
        listens: Option<&'static str>,
    ) -> Self {
        let announces: Vec<_> = ["admin"].into_iter().chain(listens).collect();
        let process = setup.start(role, extra, &announces);
        Self {
            role,
            extra: extra.iter().map(|&text| text.to_owned()).collect(),
            announces,
            setup: Arc::new(setup),
            process: Some(process),
        }
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.process.take().expect("the program runs").kill();
    }

    /// Starts it again, with its old data directory and addresses.
    pub fn start_again(&mut self) {
        let extra: Vec<&str> = self.extra.iter().map(String::as_str).collect();
        let process = self.setup.again(self.role, &extra, &self.announces);
        self.process = Some(process);
    }

    /// Sends SIGKILL and starts it again immediately.
    pub fn kill_and_start_again(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Sends SIGTERM and waits for an orderly exit.
    pub fn terminate(&mut self) {
        let code = self.process.take().expect("the program runs").terminate();
        assert_eq!(code, Some(0), "{}", self.setup.log_tail());
    }

    /// Stops it gracefully and starts another version of the program.
    pub fn becomes(&mut self, program: &Path) {
        self.terminate();
        self.setup.set_program(program);
        self.start_again();
    }

    /// Sends SIGSTOP: it pauses without noticing it.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Sends SIGCONT: it continues.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("the program runs");
        let pid = process.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{signal} {pid}");
    }

    /// Whether it has ended on its own.
    pub fn has_ended(&mut self) -> bool {
        let process = self.process.as_mut().expect("it was started");
        let ended = process
            .child
            .try_wait()
            .expect("the child can be waited for");
        ended.is_some()
    }

    /// The answer of `/readyz`; `None` while the process does not answer.
    pub async fn readiness(&self) -> Option<String> {
        let url = self.setup.url("admin", "/readyz");
        self.setup
            .client
            .get(url)
            .send()
            .await
            .ok()?
            .text()
            .await
            .ok()
    }

    /// The answer of `/schedulers` for each partition; empty while the process does not answer.
    pub async fn schedulers(&self) -> Vec<Value> {
        let url = self.setup.url("admin", "/schedulers");
        match self.setup.client.get(url).send().await {
            Ok(answer) => answer.json().await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// The epochs of the leases that it holds, by partition.
    pub async fn epochs(&self) -> Vec<u64> {
        let schedulers = self.schedulers().await;
        let epochs = schedulers.iter().filter_map(|view| view["epoch"].as_u64());
        epochs.collect()
    }
}

/// If a test fails, prints the logs of all its processes.
impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("== {}:\n{}", self.role, self.setup.log_tail());
        }
    }
}
