//! The command line: the commands, and the flags that override the configuration.
//!
//! Flags are global, so they may come before or after the command. Each sets one key of the
//! configuration.
//!
//! Most operator commands are in `waybill-ops`. This crate has those that need the roles or the
//! command line itself: `workflow`, `config`, `reference`, `schema`, `completions`, `man` and
//! `token`.

mod reference;
mod schema;
mod shell;
mod token;
mod workflow;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use waybill_agent_try::AgentCommand;
use waybill_config::{ConfigError, Environment, address_from_text};
use waybill_node::config::Config;
use waybill_node::telemetry::LogFormat;
use waybill_node::{Role, exposure};
use waybill_ops::{
    AdminArgs, AgentCheckArgs, BackupArgs, BrokerCommand, CapacityArgs, DlqCommand, DoctorArgs,
    ExplainArgs, ExportArgs, ImportArgs, LogArgs, OpsArgs, ReadyArgs, RecordsArgs, RestoreArgs,
    SchemasCommand, ShardsCommand, StoreCommand, TopicsCommand, named_file,
};
use waybill_terminal::OutputArgs;

pub use reference::Reference;
pub use schema::FileKind;
pub use token::TokenCommand;
pub use workflow::{WorkflowCommand, check_configuration};

const EXIT_CODES: &str = "\
Configuration: defaults, then the file, then the environment, then flags; later ones win.
A key such as scheduler.handOffAfter is WAYBILL_SCHEDULER__HAND_OFF_AFTER in the environment.

Signals: SIGTERM and Ctrl-C stop the process within shutdownTimeout; a second signal ends it immediately.

Exit codes:
  0  success, or a clean shutdown
  1  failure
  2  invalid command line or configuration";

/// A saga orchestrator on Kafka and ScyllaDB: each accepted operation completes, is undone, or is
/// parked for a person.
///
/// `waybill up` runs everything in one process, on an embedded broker and store.
#[derive(Clone, Debug, Parser)]
#[command(name = "waybill", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags for every command.
    #[command(flatten)]
    pub flags: Flags,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run every role in this process
    Up {
        /// Do not run the agents in this process
        #[arg(long)]
        no_agents: bool,
        /// Use services of another process, at the address of --services
        #[arg(long)]
        no_services: bool,
        /// Send this many sample deliveries once everything is ready, and show their progress
        #[arg(long, value_name = "N", default_value_t = 0)]
        samples: u64,
    },
    /// Run the embedded broker alone, or repair its logs
    Broker {
        /// What to do with its files instead.
        #[command(subcommand)]
        command: Option<BrokerCommand>,
    },
    /// Run the agents
    ///
    /// Needs --brokers; --services is the address of the services that they call.
    Agents,
    /// Run the simulated services of the example workflow
    ///
    /// Faults that are set at run time end with the process.
    Services,
    /// Run the HTTP API
    ///
    /// Needs --brokers and --scylla.
    Ingestion,
    /// Run the scheduler of the partitions in scheduler.partitions
    ///
    /// Needs --brokers and --scylla.
    Scheduler,
    /// Run the supervisor, and send alerts and notices
    ///
    /// Needs --brokers and --scylla.
    Supervisor,
    /// Create the tables of the state store, or check them
    ///
    /// Uses the keyspace of --keyspace on the nodes of --scylla.
    Store {
        /// What to do with it.
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Create the topics, or compare them with what Waybill requires
    Topics {
        /// What to do with them.
        #[command(subcommand)]
        command: TopicsCommand,
    },
    /// Show or change how many shards each partition has
    Shards {
        /// How to reach the process of `up`.
        #[command(flatten)]
        admin: Box<AdminArgs>,
        /// What to do with them.
        #[command(subcommand)]
        command: ShardsCommand,
    },
    /// Report whether a process is ready, and what it waits for
    ///
    /// The process is the one at --admin. Exits with 1 while it is not ready.
    Ready(ReadyArgs),
    /// Show or change the log filter of a running process
    ///
    /// The process is the one at --admin.
    Log(LogArgs),
    /// Register the schemas in a schema registry, or check them
    ///
    /// The registry is the one of schemaRegistry.url.
    Schemas {
        /// What to do with the schemas in it.
        #[command(subcommand)]
        command: SchemasCommand,
    },
    /// Back up the broker and the store of a running process
    ///
    /// The process is the one at --admin, and has an embedded broker and store.
    Backup(BackupArgs),
    /// Create a data directory from a backup
    ///
    /// The directory is --data-dir, which must be new or empty.
    Restore(RestoreArgs),
    /// Write all operations of the store as JSON lines
    ///
    /// The store is the one of --scylla, or of --data-dir while no process runs on it.
    Export(ExportArgs),
    /// Write exported operations to a store
    ///
    /// The store is the one of --scylla, or of --data-dir while no process runs on it.
    Import(ImportArgs),
    /// Print the records of a topic, decoded
    Records(RecordsArgs),
    /// List, show and replay poison records
    Dlq {
        /// What to do with them.
        #[command(subcommand)]
        command: DlqCommand,
    },
    /// Try a request of a declared agent
    Agent {
        /// What to do with it.
        #[command(subcommand)]
        command: AgentCommand,
    },
    /// Test an agent against the topic contract, over Kafka
    AgentCheck(Box<AgentCheckArgs>),
    /// List, show and repair operations, over the HTTP API
    Ops(Box<OpsArgs>),
    /// Check an installation, or explain one operation
    ///
    /// With the id of an operation: what it waits for, which process has it, and what happens next.
    Doctor(DoctorArgs),
    /// Explain the lag: which operations hold the checkpoints
    Explain(ExplainArgs),
    /// Estimate the processes, partitions and servers that a load needs
    Capacity(CapacityArgs),
    /// Print a generated page of the documentation, in Markdown
    Reference {
        /// Which page.
        #[arg(value_enum)]
        page: Reference,
    },
    /// Print the JSON Schema of a kind of file, for editors
    ///
    /// Name it in the first line of a file: `# yaml-language-server: $schema=FILE`.
    Schema {
        /// Which kind
        #[arg(value_enum)]
        kind: FileKind,
        /// The file to write instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Print a completion script for a shell
    Completions {
        /// Which one.
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write manual pages, one for each command, into a directory
    Man {
        /// The directory; it is created if it is missing
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Create bearer tokens for the API and the admin port
    Token {
        /// What to do with them.
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Check or test a workflow with its agents
    Workflow {
        /// What to do with them.
        #[command(subcommand)]
        command: WorkflowCommand,
    },
    /// Check or show the configuration
    Config {
        /// What to do with it.
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

/// What to do with the configuration.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration, including its workflows and agents, and start nothing
    Check {
        /// The file to check instead of --config; without either, the defaults, the environment and
        /// the flags
        file: Option<PathBuf>,
        /// Run the start-up checks of this role [default: of all roles in one process]
        #[arg(long, value_enum)]
        role: Option<Role>,
        /// Run the start-up checks of `up --no-agents`: all agents run in other processes
        #[arg(long)]
        no_agents: bool,
        /// The output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print the effective configuration after all layers, with secrets redacted
    Show,
}

impl ConfigCommand {
    /// The role to check; `None` for every role in one process, and if it checks nothing.
    ///
    /// # Errors
    ///
    /// If --no-agents is given for a role that has no such flag.
    pub fn role(&self) -> Result<Option<Role>, ConfigError> {
        let Self::Check {
            role, no_agents, ..
        } = self
        else {
            return Ok(None);
        };
        match (*role, no_agents) {
            (role, false) => Ok(role),
            (None | Some(Role::Up { .. }), true) => Ok(Some(Role::Up {
                agents: false,
                services: true,
                samples: 0,
            })),
            (Some(_), true) => {
                let problem = "is a flag of `up`: leave it out, or check with --role up";
                Err(ConfigError::invalid("--no-agents", problem))
            }
        }
    }
}

/// The groups in which `waybill --help` lists the commands.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Run",
        &[
            "up",
            "ingestion",
            "scheduler",
            "supervisor",
            "agents",
            "broker",
            "services",
        ],
    ),
    (
        "Operate",
        &[
            "ops", "dlq", "topics", "shards", "store", "schemas", "backup", "restore", "export",
            "import", "log", "token",
        ],
    ),
    (
        "Inspect",
        &[
            "ready", "doctor", "explain", "records", "config", "capacity",
        ],
    ),
    (
        "Develop",
        &[
            "workflow",
            "agent",
            "agent-check",
            "schema",
            "reference",
            "completions",
            "man",
        ],
    ),
];

impl Cli {
    /// Parses the command line of this process. Exits on a request for help and on an error.
    #[must_use]
    pub fn of_process() -> Self {
        let matches = Self::with_groups().try_get_matches();
        let matches = matches.unwrap_or_else(|error| without_variables(error).exit());
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// The command line, with help that lists the commands in [`GROUPS`].
    fn with_groups() -> clap::Command {
        let program = Self::command();
        let mut groups = String::new();
        for (heading, names) in GROUPS {
            let _ = writeln!(groups, "{heading}:");
            for name in names {
                let command = program.find_subcommand(name);
                let about = command.and_then(clap::Command::get_about);
                let about = about.map(ToString::to_string).unwrap_or_default();
                let _ = writeln!(groups, "  {name:<11}  {about}");
            }
            groups.push('\n');
        }
        // The template lists them instead.
        let program = program.mut_subcommands(|command| command.hide(true));
        let program = program.override_usage("waybill [OPTIONS] <COMMAND>");
        program.help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{{all-args}}{{after-help}}"
        ))
    }
}

/// The error without the flags in its usage that only environment variables set: clap shows these
/// as if the command needed them.
fn without_variables(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return error;
    };
    let mut text = usage.to_string();
    for flag in ["--config", "--token-file", "--ca-file"] {
        let is_given = |argument: String| argument.split('=').next() == Some(flag);
        if !std::env::args_os().any(|it| is_given(it.to_string_lossy().into_owned())) {
            text = text.replace(&format!(" {flag} <FILE>"), "");
        }
    }
    if text != usage.to_string() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(text.into()));
    }
    error
}

impl Command {
    /// The role that the command starts, if it starts one.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        match *self {
            Self::Up {
                no_agents,
                no_services,
                samples,
            } => Some(Role::Up {
                agents: !no_agents,
                services: !no_services,
                samples,
            }),
            Self::Broker { command: None } => Some(Role::Broker),
            Self::Agents => Some(Role::Agents),
            Self::Services => Some(Role::Services),
            Self::Ingestion => Some(Role::Ingestion),
            Self::Scheduler => Some(Role::Scheduler),
            Self::Supervisor => Some(Role::Supervisor),
            Self::Broker { command: Some(_) }
            | Self::Store { .. }
            | Self::Topics { .. }
            | Self::Shards { .. }
            | Self::Schemas { .. }
            | Self::Ready(_)
            | Self::Doctor(_)
            | Self::Explain(_)
            | Self::Log(_)
            | Self::Backup(_)
            | Self::Restore(_)
            | Self::Export(_)
            | Self::Import(_)
            | Self::Records(_)
            | Self::AgentCheck(_)
            | Self::Dlq { .. }
            | Self::Ops(_)
            | Self::Capacity(_)
            | Self::Reference { .. }
            | Self::Schema { .. }
            | Self::Completions { .. }
            | Self::Man { .. }
            | Self::Token { .. }
            | Self::Agent { .. }
            | Self::Workflow { .. }
            | Self::Config { .. } => None,
        }
    }
}

/// Flags for every command. A flag that is not given leaves the configuration unchanged.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Flags for every command")]
pub struct Flags {
    /// The configuration file (YAML); see waybill.example.yaml for every key
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "WAYBILL_CONFIG",
        value_parser = named_file("WAYBILL_CONFIG")
    )]
    pub config: Option<PathBuf>,
    /// The directory for the files of the embedded broker, the embedded store and the services'
    /// ledger [default: data]
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The address of the HTTP API; like every port, 0 picks a free one and prints it [default:
    /// 127.0.0.1:8080]
    #[arg(long, global = true, value_name = "ADDR", value_parser = address_from_text)]
    pub http: Option<SocketAddr>,
    /// The address of the admin port [default: 127.0.0.1:8081]
    #[arg(long, global = true, value_name = "ADDR", value_parser = address_from_text)]
    pub admin: Option<SocketAddr>,
    /// The address of the embedded broker (Kafka protocol) [default: 127.0.0.1:9092]
    #[arg(long, global = true, value_name = "ADDR", value_parser = address_from_text)]
    pub broker_listen: Option<SocketAddr>,
    /// The address of the simulated services: to listen on, or to call as host:port if another
    /// process runs them [default: 127.0.0.1:8082]
    #[arg(long, global = true, value_name = "ADDR")]
    pub services: Option<String>,
    /// Partitions of the operation topics of a new store; see `waybill topics grow` for others
    /// [default: 4]
    #[arg(long, global = true, value_name = "P")]
    pub partitions: Option<u32>,
    /// Shards of each partition in a new store; see `waybill shards` for others [default: 1]
    #[arg(long, global = true, value_name = "M")]
    pub shards_per_partition: Option<u32>,
    /// Kafka brokers to use instead of the embedded one
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT,...",
        value_delimiter = ','
    )]
    pub brokers: Option<Vec<String>>,
    /// ScyllaDB or Cassandra nodes to use instead of the embedded store
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT,...",
        value_delimiter = ','
    )]
    pub scylla: Option<Vec<String>>,
    /// The keyspace on --scylla [default: waybill]
    #[arg(long, global = true, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Allow unauthenticated listeners on non-loopback addresses
    #[arg(long, global = true)]
    pub insecure: bool,
    /// The format of log lines [default: text]
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// The log filter: a level (error, warn, info, debug, trace, off), or pairs as in
    /// info,waybill=debug [default: info]
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
}

impl Cli {
    /// The checked configuration of all layers.
    ///
    /// # Errors
    ///
    /// If a layer is refused, or a setting that the command needs is missing.
    pub fn configuration(&self, environment: &Environment) -> Result<Config, ConfigError> {
        let (file, role, is_check) = match &self.command {
            Command::Config {
                command: check @ ConfigCommand::Check { file, .. },
            } => (file.as_deref(), check.role()?, true),
            command => (None, command.role(), false),
        };
        let file = file.or(self.flags.config.as_deref());
        let mut config = Config::load(file, environment)?;
        self.flags.apply(role, &mut config)?;
        if let Some(needs) = role.map(Role::needs) {
            if needs.brokers && config.kafka.brokers.is_none() {
                let problem = "is required: a single role has no embedded broker";
                return Err(ConfigError::invalid("--brokers", problem));
            }
            if needs.store && config.store.is_exclusive() {
                let problem = "is required: only the process of `up` has an embedded store";
                return Err(ConfigError::invalid("--scylla", problem));
            }
        }
        let config = config.finish()?;
        match role {
            Some(role) => exposure::check_with_files(role, &config)?,
            None if is_check => exposure::check_everything(&config)?,
            None => {}
        }
        Ok(config)
    }
}

impl Flags {
    fn apply(&self, role: Option<Role>, config: &mut Config) -> Result<(), ConfigError> {
        let Self {
            config: _,
            data_dir,
            http,
            admin,
            broker_listen,
            services,
            partitions,
            shards_per_partition,
            brokers,
            scylla,
            keyspace,
            insecure,
            log_format,
            log,
        } = self.clone();
        set(&mut config.data_dir, data_dir);
        set(&mut config.http.listen, http);
        set(&mut config.admin.listen, admin);
        set(&mut config.broker.listen, broker_listen);
        set(&mut config.partitions, partitions);
        set(
            &mut config.scheduler.shards_per_partition,
            shards_per_partition,
        );
        set(&mut config.kafka.brokers, brokers.map(Some));
        set(&mut config.store.scylla.nodes, scylla.map(Some));
        set(&mut config.store.scylla.keyspace, keyspace);
        set(&mut config.insecure, insecure.then_some(true));
        set(&mut config.telemetry.log_format, log_format);
        set(&mut config.telemetry.log_filter, log);
        if let Some(address) = services {
            if matches!(
                role,
                Some(
                    Role::Agents
                        | Role::Up {
                            services: false,
                            ..
                        }
                )
            ) {
                config.services.address = Some(address);
            } else {
                config.services.listen = address_from_text(&address)
                    .map_err(|problem| ConfigError::invalid("--services", problem))?;
            }
        }
        Ok(())
    }
}

fn set<T>(value: &mut T, flag: Option<T>) {
    if let Some(flag) = flag {
        *value = flag;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        let mut program = Cli::command();
        // In builds with debug assertions, this checks more.
        program.build();
        flags_are_unique(&program);
    }

    /// No flag of a command has the name of another one, or of a flag for every command.
    fn flags_are_unique(command: &clap::Command) {
        let mut names = BTreeSet::new();
        for flag in command.get_arguments() {
            let long = flag.get_long().map(|long| format!("--{long}"));
            let short = flag.get_short().map(|short| format!("-{short}"));
            for name in long.into_iter().chain(short) {
                let path = command.get_bin_name();
                assert!(names.insert(name.clone()), "{path:?}: two flags {name}");
            }
        }
        for subcommand in command.get_subcommands() {
            flags_are_unique(subcommand);
        }
    }

    #[test]
    fn the_help_lists_every_command_once() {
        let program = Cli::command();
        let names: BTreeSet<&str> = program
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        assert_eq!(grouped.len(), names.len());
        assert_eq!(grouped.into_iter().collect::<BTreeSet<_>>(), names);
        let help = Cli::with_groups().render_help().to_string();
        for command in program.get_subcommands() {
            let line = format!(
                "\n  {:<11}  {}\n",
                command.get_name(),
                command.get_about().unwrap()
            );
            assert!(line.trim_matches('\n').len() <= 80, "{line}");
            assert!(help.contains(&line), "{line} in {help}");
        }
        assert!(!help.contains("Commands:"), "{help}");
    }

    #[test]
    fn the_name_of_a_role_is_its_command() {
        let program = Cli::command();
        for role in Role::value_variants() {
            let name = role.to_string();
            assert!(program.find_subcommand(&name).is_some(), "{name}");
        }
    }

    #[test]
    fn flags_may_precede_or_follow_the_command() {
        for line in [
            "--partitions 8 up --samples 3",
            "up --samples 3 --partitions 8",
        ] {
            let cli = parse(line);
            let up = Role::Up {
                agents: true,
                services: true,
                samples: 3,
            };
            assert_eq!(cli.command.role(), Some(up), "{line}");
            assert_eq!(configuration(line).unwrap().partitions, 8, "{line}");
        }
    }

    #[test]
    fn every_flag_reaches_its_key() {
        let config = configuration(
            "up --data-dir /d --http 127.0.0.1:1 --admin 127.0.0.1:2 --broker-listen 127.0.0.1:3 \
             --services 127.0.0.1:4 --partitions 5 --shards-per-partition 3 --brokers a:6,b:7 --scylla c:8,d:9 \
             --keyspace orders --insecure --log-format json --log warn",
        )
        .unwrap();
        let mut expected = Config {
            data_dir: "/d".into(),
            partitions: 5,
            ..Config::default()
        };
        expected.http.listen = "127.0.0.1:1".parse().unwrap();
        expected.admin.listen = "127.0.0.1:2".parse().unwrap();
        expected.broker.listen = "127.0.0.1:3".parse().unwrap();
        expected.services.listen = "127.0.0.1:4".parse().unwrap();
        expected.scheduler.shards_per_partition = 3;
        expected.kafka.brokers = Some(vec!["a:6".to_owned(), "b:7".to_owned()]);
        expected.store.scylla.nodes = Some(vec!["c:8".to_owned(), "d:9".to_owned()]);
        expected.store.scylla.keyspace = "orders".to_owned();
        expected.insecure = true;
        expected.telemetry.log_format = LogFormat::Json;
        expected.telemetry.log_filter = "warn".to_owned();
        assert_eq!(config, expected);
    }

    #[test]
    fn without_flags_the_defaults_that_the_help_states_apply() {
        assert_eq!(configuration("up").unwrap(), Config::default());
        let help = Cli::command().render_long_help().to_string();
        let help: String = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let config = Config::default();
        for default in [
            config.data_dir.display().to_string(),
            config.http.listen.to_string(),
            config.admin.listen.to_string(),
            config.broker.listen.to_string(),
            config.services.listen.to_string(),
            config.partitions.to_string(),
            config.scheduler.shards_per_partition.to_string(),
            config.store.scylla.keyspace,
            config.telemetry.log_filter,
        ] {
            assert!(
                help.contains(&format!("[default: {default}]")),
                "{default} in {help}"
            );
        }
    }

    #[test]
    fn the_services_flag_is_a_listener_or_a_url() {
        let elsewhere = ["up --no-services", "agents --brokers a:1"];
        for command in elsewhere {
            let config = configuration(&format!("{command} --services sim.example:80")).unwrap();
            assert_eq!(config.services.elsewhere(), "sim.example:80", "{command}");
            assert_eq!(
                configuration(command).unwrap().services.elsewhere(),
                "127.0.0.1:8082"
            );
        }
        for command in ["up", "services"] {
            let line = format!("{command} --services 127.0.0.1:0");
            let config = configuration(&line).unwrap();
            assert_eq!(config.services.listen.port(), 0, "{command}");
            let refused = configuration(&format!("{command} --services sim.example:80"));
            assert!(
                refused.unwrap_err().to_string().starts_with("--services"),
                "{command}"
            );
        }
    }

    #[test]
    fn a_single_role_requires_brokers_and_store() {
        for (line, needed) in [
            ("agents", "--brokers is required"),
            ("scheduler", "--brokers is required"),
            ("scheduler --brokers a:1", "--scylla is required"),
            ("ingestion --brokers a:1", "--scylla is required"),
            ("supervisor --brokers a:1", "--scylla is required"),
        ] {
            let error = configuration(line).unwrap_err().to_string();
            assert!(error.starts_with(needed), "{line}: {error}");
        }
        for role in ["ingestion", "scheduler", "supervisor"] {
            configuration(&format!("{role} --brokers a:1 --scylla b:2")).unwrap();
        }
    }

    #[test]
    fn flags_win_over_the_environment_and_the_environment_over_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "partitions: 2\ndataDir: /f\nadmin: {listen: '127.0.0.1:1'}\n",
        )
        .unwrap();
        let environment = [("WAYBILL_PARTITIONS", "3"), ("WAYBILL_DATA_DIR", "/e")];
        let line = format!("up --partitions 5 --config {}", file.path().display());
        let config = parse(&line)
            .configuration(&environment.into_iter().collect())
            .unwrap();
        assert_eq!(config.partitions, 5);
        assert_eq!(config.data_dir, PathBuf::from("/e"));
        assert_eq!(config.admin.listen.port(), 1);
    }

    fn parse(line: &str) -> Cli {
        Cli::try_parse_from(std::iter::once("waybill").chain(line.split_whitespace())).unwrap()
    }

    fn configuration(line: &str) -> Result<Config, ConfigError> {
        parse(line).configuration(&Environment::default())
    }
}
