//! The target of requests and its surroundings: a running Waybill, or one that is started for the
//! run and removed afterwards.

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hyper::StatusCode;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use waybill_kafka::KafkaSettings;
use waybill_messages::{Framing, Topics};
use waybill_registry::{Registry, RegistrySettings, SchemaCache, schema_ids, subjects};

use crate::load::client::Client;
use crate::load::endpoint::Endpoint;
use crate::model::Part;
use crate::scenario::{Scenario, Transport};
use crate::watch::processes::Watched;

/// The addresses of an installation.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The API.
    pub http: Endpoint,
    /// The brokers, and how clients log in there.
    pub kafka: KafkaSettings,
    /// The prefix of Waybill's topics.
    pub topic_prefix: String,
    /// The schema registry's URL, if there is one.
    pub schema_registry: Option<String>,
    /// The services, with their ledger and faults.
    pub services: Option<SocketAddr>,
    /// Watched processes, without the load generator.
    pub processes: Vec<Watched>,
}

impl Installation {
    /// Waybill's topics, with this version's schemas, so that none is fetched during the run.
    ///
    /// # Errors
    ///
    /// If the registry does not have the schemas.
    pub async fn topics(&self) -> anyhow::Result<Topics> {
        let topics = Topics::new(&self.topic_prefix);
        let Some(url) = &self.schema_registry else {
            return Ok(topics);
        };
        let registry = Registry::new(&RegistrySettings {
            url: url.clone(),
            login: None,
            ca_pem: None,
            timeout: Duration::from_secs(5),
        })?;
        let agents: [&str; 0] = [];
        let ids = schema_ids(&registry, &subjects(&topics, &agents), false).await?;
        let schemas = Arc::new(SchemaCache::new(registry));
        Ok(topics.framed(Framing::confluent(ids, schemas)))
    }
}

impl Installation {
    /// Checks that the servers answer, before a run that may be long.
    ///
    /// # Errors
    ///
    /// If the scenario needs the API and it does not answer, or the services have no readable
    /// ledger.
    pub async fn answers(&self, scenario: &Scenario) -> anyhow::Result<()> {
        if scenario.transport != Transport::Topic {
            let mut client = Client::new(self.http.clone());
            let asked = client.get("/v1/operations?limit=1").await;
            let http = self.http.url();
            asked.with_context(|| format!("the API at {http} (--http) does not answer"))?;
        }
        let Some(services) = self.services else {
            return Ok(());
        };
        let asked = Client::new(services)
            .get("/ledger/operations?limit=1")
            .await;
        let nothing = || format!("no ledger at {services} (--services)");
        let (status, body) = asked.with_context(nothing)?;
        anyhow::ensure!(
            status == StatusCode::OK,
            "{}: {status} {}",
            nothing(),
            String::from_utf8_lossy(&body)
        );
        Ok(())
    }
}

/// The start options of a Waybill.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// The program.
    pub program: PathBuf,
    /// A configuration file for it.
    pub config: Option<PathBuf>,
    /// More flags for `waybill up`.
    pub up_flags: Vec<String>,
    /// Additional environment variables for `waybill up`.
    pub up_env: Vec<(String, String)>,
}

/// The time for a process to announce its addresses and become ready. Generous, because it limits
/// only failures.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The time for a graceful stop.
const STOP_PATIENCE: Duration = Duration::from_secs(40);
/// The subdirectory with a process's data.
const DATA_DIR: &str = "data";
/// The interval between checks.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of log lines in an error about a failed process.
const LOG_LINES_SHOWN: usize = 20;

/// A Waybill process that was started here. Dropping it kills it.
pub struct Started {
    child: Child,
    pid: u32,
    /// Its listen addresses, by name.
    addresses: HashMap<String, SocketAddr>,
    log: PathBuf,
}

/// The five services in their own process.
pub struct Services {
    process: Started,
    _data: tempfile::TempDir,
}

/// `waybill up`.
pub struct Up {
    process: Started,
    _data: tempfile::TempDir,
}

impl Services {
    /// Starts the services.
    ///
    /// # Errors
    ///
    /// If they do not start; the error has the end of their log.
    pub async fn start(options: &StartOptions) -> anyhow::Result<Self> {
        let data = temporary_directory()?;
        let mut flags = vec!["services".to_owned()];
        flags.extend(["--services", "127.0.0.1:0"].map(str::to_owned));
        let process = Started::start(options, flags, data.path(), &["services", "admin"]).await?;
        process.ready().await?;
        Ok(Self {
            process,
            _data: data,
        })
    }

    /// Their address.
    pub fn address(&self) -> SocketAddr {
        self.process.addresses["services"]
    }

    /// The services as a watched process.
    pub fn watched(&self) -> Watched {
        self.process.watched("services", Part::Services)
    }

    /// Stops the services gracefully and removes their data.
    ///
    /// # Errors
    ///
    /// If they do not stop; they are then killed.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.process.stop().await
    }
}

impl Up {
    /// Starts Waybill and waits until it is ready. It calls the services at `services`, or runs its
    /// own.
    ///
    /// # Errors
    ///
    /// If it does not start; the error has the end of its log.
    pub async fn start(
        options: &StartOptions,
        services: Option<SocketAddr>,
    ) -> anyhow::Result<Self> {
        Self::start_in(temporary_directory()?, options, services).await
    }

    /// The store's directory of a Waybill that is started in `data`.
    pub fn store_in(data: &Path) -> PathBuf {
        data.join(DATA_DIR).join("store")
    }

    /// As [`Up::start`], in a directory that may already have a store.
    ///
    /// # Errors
    ///
    /// As [`Up::start`].
    pub async fn start_in(
        data: tempfile::TempDir,
        options: &StartOptions,
        services: Option<SocketAddr>,
    ) -> anyhow::Result<Self> {
        let mut flags = vec!["up".to_owned()];
        let mut listeners = vec!["http", "admin", "broker"];
        match services {
            Some(services) => {
                let services = services.to_string();
                flags.extend([
                    "--no-services".to_owned(),
                    "--services".to_owned(),
                    services,
                ]);
            }
            None => {
                flags.extend(["--services", "127.0.0.1:0"].map(str::to_owned));
                listeners.push("services");
            }
        }
        for listener in ["--http", "--broker-listen"] {
            flags.extend([listener.to_owned(), "127.0.0.1:0".to_owned()]);
        }
        flags.extend(options.up_flags.iter().cloned());
        let process = Started::start(options, flags, data.path(), &listeners).await?;
        process.ready().await?;
        Ok(Self {
            process,
            _data: data,
        })
    }

    /// Waybill as a watched process.
    pub fn watched(&self) -> Watched {
        self.process.watched("waybill", Part::Subject)
    }

    /// The admin port.
    pub fn admin(&self) -> SocketAddr {
        self.process.addresses["admin"]
    }

    /// The installation of this Waybill with the services, or with its own ones.
    pub fn installation(&self, services: &Services) -> Installation {
        let own = self.process.addresses.get("services").copied();
        let mut processes = vec![self.watched()];
        processes.extend(own.is_none().then(|| services.watched()));
        Installation {
            http: self.process.addresses["http"].into(),
            kafka: KafkaSettings::new(self.process.addresses["broker"].to_string()),
            topic_prefix: "waybill".to_owned(),
            schema_registry: None,
            services: Some(own.unwrap_or_else(|| services.address())),
            processes,
        }
    }

    /// Stops Waybill gracefully and removes its data.
    ///
    /// # Errors
    ///
    /// If it does not stop; it is then killed.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.process.stop().await
    }
}

impl Started {
    async fn start(
        options: &StartOptions,
        flags: Vec<String>,
        data: &Path,
        announces: &[&str],
    ) -> anyhow::Result<Self> {
        let log = data.join("waybill.log");
        let mut command = Command::new(&options.program);
        if flags.first().is_some_and(|role| role == "up") {
            command.envs(options.up_env.iter().cloned());
        }
        command
            .args(flags)
            .arg("--data-dir")
            .arg(data.join(DATA_DIR));
        command.args(["--admin", "127.0.0.1:0"]);
        if let Some(config) = &options.config {
            command.arg("--config").arg(config);
        }
        // The program refuses unknown variables with its prefix.
        for (name, _) in std::env::vars_os() {
            let is_ours = ["WAYBILL_TEST_", "WAYBILL_LOADTEST_"];
            let text = name.to_string_lossy();
            if is_ours.iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // Ctrl-C reaches only the load test, which stops its processes gracefully.
            .process_group(0)
            .kill_on_drop(true);
        let program = options.program.display();
        let child = command.spawn();
        let mut child = child.with_context(|| format!("cannot start {program} (--program)"))?;
        let stdout = child.stdout.take().context("standard output is piped")?;
        let pid = child.id().context("it has just been started")?;
        let mut started = Self {
            child,
            pid,
            addresses: HashMap::new(),
            log,
        };
        let announced = tokio::time::timeout(TIMEOUT, started.listen(stdout, announces)).await;
        match announced {
            Ok(Ok(())) => Ok(started),
            Ok(Err(_)) | Err(_) => Err(started.failed("did not report its addresses")),
        }
    }

    /// Reads its addresses, and the rest of its output to the end, so that it never blocks on a
    /// full pipe.
    async fn listen(
        &mut self,
        stdout: tokio::process::ChildStdout,
        announces: &[&str],
    ) -> anyhow::Result<()> {
        let mut lines = BufReader::new(stdout).lines();
        while announces
            .iter()
            .any(|name| !self.addresses.contains_key(*name))
        {
            let line = lines.next_line().await?.context("it has ended")?;
            let announced = line.strip_prefix("listening ");
            if let Some((name, address)) = announced.and_then(|rest| rest.split_once(' ')) {
                self.addresses.insert(name.to_owned(), address.parse()?);
            }
        }
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(())
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        let mut client = Client::new(self.addresses["admin"]);
        while Instant::now() < deadline && !self.watched("", Part::Subject).is_gone() {
            if let Ok((StatusCode::OK, _)) = client.get("/readyz").await {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(self.failed("did not become ready"))
    }

    fn failed(&self, what: &str) -> anyhow::Error {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
        anyhow::anyhow!("the started process {what}; its log ends with\n{tail}")
    }

    fn watched(&self, name: &str, part: Part) -> Watched {
        Watched {
            name: name.to_owned(),
            pid: self.pid,
            part,
        }
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        // The shell's built-in `kill`: another one might not be installed.
        let asked = Command::new("sh")
            .args(["-c", &format!("kill -TERM {}", self.pid)])
            .status()
            .await?;
        anyhow::ensure!(
            asked.success(),
            "process {} had ended before it was stopped",
            self.pid
        );
        let ended = tokio::time::timeout(STOP_PATIENCE, self.child.wait()).await;
        let Ok(ended) = ended else {
            self.child.kill().await?;
            anyhow::bail!("process {} did not stop and was killed", self.pid);
        };
        let status = ended?;
        anyhow::ensure!(
            status.success(),
            "{}",
            self.failed(&format!("ended with {status}"))
        );
        Ok(())
    }
}

/// The `waybill` program next to this one.
pub fn program_beside() -> PathBuf {
    let this = std::env::current_exe().unwrap_or_default();
    this.with_file_name("waybill")
}

/// A directory that is removed when the returned value is dropped.
///
/// # Errors
///
/// If it cannot be created.
pub fn temporary_directory() -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("waybill-loadtest-")
        .tempdir()
}
