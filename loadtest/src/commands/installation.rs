//! Flags that name a running Waybill, or start one.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use waybill_kafka::KafkaSettings;
use waybill_telemetry::chain;

use crate::installation::{Installation, Services, StartOptions, Up, program_beside};
use crate::watch::processes::Watched;

/// The addresses of a running Waybill.
#[derive(Args, Debug)]
#[command(next_help_heading = "A running Waybill")]
pub struct Running {
    /// The API
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", value_parser = resolved)]
    http: SocketAddr,
    /// A Kafka-protocol broker, for the status topic
    #[arg(long, value_name = "HOST:PORT,...", default_value = "127.0.0.1:9092")]
    brokers: String,
    /// File with librdkafka properties for the brokers, such as a login: a line `name=value` each,
    /// as for `kcat -F`
    #[arg(long, value_name = "FILE", value_parser = properties)]
    kafka_config: Option<Properties>,
    /// The prefix of Waybill's topics
    #[arg(long, value_name = "PREFIX", default_value = "waybill")]
    topic_prefix: String,
    /// The schema registry, if Waybill uses one
    #[arg(long, value_name = "URL")]
    schema_registry: Option<String>,
    /// The simulated services, to compare their ledger with the accepted requests and to inject
    /// faults. Without it, the run is not judged
    #[arg(long, value_name = "HOST:PORT", value_parser = resolved)]
    services: Option<SocketAddr>,
    /// A process whose CPU and memory to report; PART is subject (the measured system; the
    /// default), server or services. May be repeated
    #[arg(long, value_name = "NAME=PID[:PART]", value_parser = Watched::parse)]
    process: Vec<Watched>,
}

/// How to start a Waybill.
#[derive(Args, Debug)]
#[command(next_help_heading = "A Waybill to start")]
pub struct Starting {
    /// The program [default: `waybill` in the directory of this program]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Its configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An additional flag for `waybill up`. May be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    up_flag: Vec<String>,
}

/// An installation that this program started.
pub struct StartedInstallation {
    /// Waybill.
    pub up: Up,
    /// The services.
    pub services: Services,
}

/// The first address of a host and port.
fn resolved(text: &str) -> Result<SocketAddr, String> {
    let mut addresses = text
        .to_socket_addrs()
        .map_err(|error| format!("expected HOST:PORT, such as localhost:8080: {error}"))?;
    let first = addresses.next();
    first.ok_or_else(|| "the host has no address".to_owned())
}

/// Properties of librdkafka. `Debug` shows their names and no values.
#[derive(Clone)]
struct Properties(BTreeMap<String, String>);

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn properties(path: &str) -> Result<Properties, String> {
    read_properties(path).map_err(|error| chain(error.as_ref()))
}

/// Reads properties from a file. No error contains a value.
fn read_properties(path: &str) -> anyhow::Result<Properties> {
    let text = std::fs::read_to_string(path).with_context(|| path.to_owned())?;
    let mut properties = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line
            .split_once('=')
            .with_context(|| format!("{path}:{number}: must be name=value"))?;
        properties.insert(name.trim().to_owned(), value.trim().to_owned());
    }
    let settings = KafkaSettings {
        properties,
        ..KafkaSettings::new("")
    };
    settings.check().with_context(|| path.to_owned())?;
    Ok(Properties(settings.properties))
}

impl Running {
    /// The installation from the flags.
    pub fn installation(&self) -> Installation {
        let properties = self.kafka_config.clone();
        Installation {
            http: self.http.into(),
            kafka: KafkaSettings {
                properties: properties.map(|Properties(of)| of).unwrap_or_default(),
                ..KafkaSettings::new(&self.brokers)
            },
            topic_prefix: self.topic_prefix.clone(),
            schema_registry: self.schema_registry.clone(),
            services: self.services,
            processes: self.process.clone(),
        }
    }
}

impl Starting {
    /// The start options from the flags.
    pub fn options(&self) -> StartOptions {
        StartOptions {
            program: self.program.clone().unwrap_or_else(program_beside),
            config: self.config.clone(),
            up_flags: self.up_flag.clone(),
            up_env: Vec::new(),
        }
    }
}

impl StartedInstallation {
    /// Starts the services, and then Waybill.
    ///
    /// # Errors
    ///
    /// If a process does not become ready.
    pub async fn start(options: &StartOptions) -> anyhow::Result<Self> {
        let services = Services::start(options).await?;
        let up = Up::start(options, Some(services.address())).await?;
        Ok(Self { up, services })
    }

    /// The addresses of the installation.
    pub fn installation(&self) -> Installation {
        self.up.installation(&self.services)
    }

    /// Stops both gracefully and removes their data.
    ///
    /// # Errors
    ///
    /// If a process does not stop gracefully. The other one is stopped in any case.
    pub async fn stop(self) -> anyhow::Result<()> {
        let up = self.up.stop().await;
        let services = self.services.stop().await;
        up.and(services)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read_from_a_file_and_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let read = |text: &str| {
            std::fs::write(path, text).unwrap();
            properties(path)
        };
        let good = read("# a login\n\nsasl.username = load\nsasl.password=a=b\n").unwrap();
        assert_eq!(good.0["sasl.username"], "load");
        assert_eq!(good.0["sasl.password"], "a=b");
        let shown = format!("{good:?}");
        assert_eq!(shown, "{\"sasl.password\", \"sasl.username\"}");
        for (text, expected) in [
            ("sasl.username=load\nsecret\n", ":2: must be name=value"),
            ("sasl.nonsense=secret\n", "sasl.nonsense"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}
