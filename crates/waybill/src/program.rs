//! Runs the command line: reads the arguments and the configuration, runs the role or the command,
//! and maps the result to an exit code.

use std::error::Error;
use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use waybill_agent_try::AgentCommand;
use waybill_config::{ConfigError, Environment};
use waybill_node::Role;
use waybill_node::config::Config;
use waybill_node::shutdown::RunError;
use waybill_node::telemetry;
use waybill_ops::{AgentCheckArgs, OpsArgs};
use waybill_telemetry::visible::escaped_lines;
use waybill_telemetry::{VERSION, chain};

use crate::catalogue;
use crate::cli::{Cli, Command, ConfigCommand, check_configuration};
use crate::roles;

/// The exit code of a failure.
const FAILED: u8 = 1;

/// The exit code of a refused command line or configuration. The command-line parser uses the same
/// one.
const REFUSED: u8 = 2;

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::of_process();
    // These commands read no configuration.
    match &cli.command {
        Command::Capacity(arguments) => return exit_code(arguments.run()),
        Command::Reference { page } => return print(&page.page()),
        Command::Schema { kind, out } => {
            return match kind.write(out.as_deref()) {
                Ok(text) => print(&text),
                Err(error) => report(FAILED, error.as_ref()),
            };
        }
        Command::Completions { shell } => return print(&Cli::completions(*shell)),
        Command::Man { directory } => {
            return match Cli::write_manual(directory) {
                Ok(()) => print(&format!("man {}/waybill.1\n", directory.display())),
                Err(error) => report(FAILED, error.as_ref()),
            };
        }
        Command::Token { command } => return exit_code(command.run()),
        _ => {}
    }
    let environment = Environment::of_process();
    let config = match cli.configuration(&environment) {
        Ok(config) => config,
        Err(error) => return report(REFUSED, &error),
    };
    match (&cli.command, cli.command.role()) {
        (_, Some(role)) => run(role, &config, &environment),
        (Command::Config { command }, None) => match command {
            ConfigCommand::Show => show(&config),
            ConfigCommand::Check { output, .. } => match command.role() {
                Ok(role) => exit_code(check_configuration(role, *output, &config)),
                Err(error) => report(REFUSED, &error),
            },
        },
        (Command::Topics { command }, None) => run_command(&config, || command.run(&config)),
        (Command::Schemas { command }, None) => run_command(&config, || command.run(&config)),
        (Command::Ready(arguments), None) => run_command(&config, || arguments.run(&config)),
        (Command::Log(arguments), None) => prepare(&config, || arguments.run(&config)),
        (Command::Backup(arguments), None) => prepare(&config, || arguments.run(&config)),
        (Command::Restore(arguments), None) => prepare(&config, || arguments.run(&config)),
        (Command::Export(arguments), None) => run_command(&config, || arguments.run(&config)),
        (Command::Import(arguments), None) => prepare(&config, || arguments.run(&config)),
        (Command::Explain(arguments), None) => run_command(&config, || arguments.run(&config)),
        (Command::Doctor(arguments), None) => run_command(&config, || {
            arguments.run(&config, roles::agents_elsewhere_of)
        }),
        (Command::Records(arguments), None) => run_command(&config, || arguments.run(&config)),
        (Command::Dlq { command }, None) => run_command(&config, || command.run(&config)),
        (Command::Ops(arguments), None) => operate(&config, arguments),
        (Command::Agent { command }, None) => try_agent(&config, command),
        (Command::AgentCheck(arguments), None) => examine(&config, arguments),
        (Command::Workflow { command }, None) => match command.run(&config) {
            Ok(findings) => {
                let printed = print(&format!("{}\n", findings.text));
                match findings.passed {
                    true => printed,
                    false => ExitCode::from(FAILED),
                }
            }
            Err(error) => report(REFUSED, error.as_ref()),
        },
        (Command::Store { command }, None) => run_command(&config, || command.run(&config)),
        (
            Command::Broker {
                command: Some(command),
            },
            None,
        ) => run_command(&config, || command.run(&config)),
        (Command::Shards { admin, command }, None) => {
            prepare(&config, || command.run(&config, admin))
        }
        (
            Command::Up { .. }
            | Command::Broker { command: None }
            | Command::Agents
            | Command::Services
            | Command::Ingestion
            | Command::Scheduler
            | Command::Supervisor,
            None,
        ) => unreachable!("each of them has a role"),
        (
            Command::Capacity(_)
            | Command::Reference { .. }
            | Command::Schema { .. }
            | Command::Completions { .. }
            | Command::Man { .. }
            | Command::Token { .. },
            None,
        ) => unreachable!("they looked at no configuration"),
    }
}

/// Prints the effective configuration.
fn show(config: &Config) -> ExitCode {
    match config.to_yaml() {
        Ok(yaml) => print(&yaml),
        Err(error) => report(FAILED, &error),
    }
}

/// Runs a command that prints its own output.
fn run_command(config: &Config, work: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    if let Err(error) = telemetry::install(&config.telemetry, &catalogue::all()) {
        return report(FAILED, &error);
    }
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(code_of(&error), error.as_ref()),
    }
}

/// Runs a command over the HTTP API. Its exit codes distinguish more cases.
fn operate(config: &Config, arguments: &OpsArgs) -> ExitCode {
    if let Err(error) = telemetry::install(&config.telemetry, &catalogue::all()) {
        return report(REFUSED, &error);
    }
    match arguments.run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(error.exit_code(), &error),
    }
}

/// Tries a request of an agent. Exit code 1 if it fails, 2 if it cannot be made.
fn try_agent(config: &Config, command: &AgentCommand) -> ExitCode {
    if let Err(error) = telemetry::install(&config.telemetry, &catalogue::all()) {
        return report(REFUSED, &error);
    }
    match command.run(&config.agents.files, &roles::variables_of(config)) {
        Ok(tried) if tried.is_success => print(&format!("{}\n", tried.text)),
        Ok(tried) => {
            print(&format!("{}\n", tried.text));
            ExitCode::from(FAILED)
        }
        Err(error) => report(REFUSED, error.as_ref()),
    }
}

/// Checks an agent. Exit code 1 if it breaks a rule, 2 if it cannot be checked.
fn examine(config: &Config, arguments: &AgentCheckArgs) -> ExitCode {
    if let Err(error) = telemetry::install(&config.telemetry, &catalogue::all()) {
        return report(REFUSED, &error);
    }
    match arguments.run(config) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(error) => report(REFUSED, error.as_ref()),
    }
}

/// Prints the result of a check.
fn exit_code(verdict: anyhow::Result<String>) -> ExitCode {
    match verdict {
        Ok(line) => print(&format!("{line}\n")),
        Err(error) => report(REFUSED, error.as_ref()),
    }
}

/// Runs a command that returns its output as text.
fn prepare(config: &Config, work: impl FnOnce() -> anyhow::Result<String>) -> ExitCode {
    if let Err(error) = telemetry::install(&config.telemetry, &catalogue::all()) {
        return report(FAILED, &error);
    }
    match work() {
        Ok(text) => print(&format!("{text}\n")),
        Err(error) => report(code_of(&error), error.as_ref()),
    }
}

/// A command that lacks a flag or a key to work with is refused; any other error is a failure.
fn code_of(error: &anyhow::Error) -> u8 {
    match error.is::<ConfigError>() {
        true => REFUSED,
        false => FAILED,
    }
}

fn run(role: Role, config: &Config, environment: &Environment) -> ExitCode {
    if let Err(error) = roles::check_files_of(role, config) {
        return report(REFUSED, error.as_ref());
    }
    let telemetry = match telemetry::install(&config.telemetry, &catalogue::all()) {
        Ok(telemetry) => telemetry,
        Err(error) => return report(FAILED, &error),
    };
    tracing::info!(version = VERSION, %role, "starting");
    config.warn_of_open_files();
    match roles::run(role, config, environment, telemetry) {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            match error.downcast_ref::<RunError>() {
                // The error was logged with its causes when it happened.
                Some(_) => tracing::info!("stopped"),
                None => tracing::error!(error = chain(error.as_ref()), "not started"),
            }
            ExitCode::from(FAILED)
        }
    }
}

/// Prints a command's output. A closed pipe is no failure: the reader has enough.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => report(FAILED, &error),
        _ => ExitCode::SUCCESS,
    }
}

/// Reports an error with all its causes on standard error.
fn report(code: u8, error: &(dyn Error + 'static)) -> ExitCode {
    eprintln!("waybill: {}", escaped_lines(&chain(error)));
    ExitCode::from(code)
}
