//! The waybill program: reads what is wanted, starts it, and turns its end into an exit code.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use waybill::admin::Admin;
use waybill::cli::{Cli, Command, ConfigCommand, OpsArgs, Role, StoreCommand};
use waybill::config::{Config, Environment};
use waybill::shutdown::{Running, Signals, Stage};
use waybill::telemetry::{self, Metrics, VERSION};

/// Measured against the system's allocator: a delivery is many small allocations on many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Something failed.
const FAILED: u8 = 1;

/// The command line or the configuration was refused; the parser of the command line ends with
/// the same code.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let environment = Environment::of_process();
    let config = match cli.configuration(&environment) {
        Ok(config) => config,
        Err(error) => return report(REFUSED, &error),
    };
    match (&cli.command, cli.command.role()) {
        (_, Some(role)) => run(role, &config, &environment),
        (
            Command::Config {
                command: ConfigCommand::Show,
            },
            None,
        ) => show(&config),
        (Command::Records(arguments), None) => look(&config, || arguments.run(&config)),
        (Command::Dlq { command }, None) => look(&config, || command.run(&config)),
        (Command::Ops(arguments), None) => operate(&config, arguments),
        (Command::Workflow { command }, None) => judge(command.run(&config)),
        (Command::Store { command }, None) => prepare(&config, *command),
        (_, None) => judge(waybill::roles::check(&config).map(|()| "ok".to_owned())),
    }
}

/// Prints the effective configuration.
fn show(config: &Config) -> ExitCode {
    let yaml = match config.to_yaml() {
        Ok(yaml) => yaml,
        Err(error) => return report(FAILED, &error),
    };
    match std::io::stdout().write_all(yaml.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(FAILED, &error),
    }
}

/// Does the work of a command that looks at topics and ends by itself.
fn look(config: &Config, work: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    if let Err(error) = telemetry::install(&config.telemetry) {
        return report(FAILED, &error);
    }
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(FAILED, error.as_ref()),
    }
}

/// Does the work of a command that asks the API, whose exit codes say more.
fn operate(config: &Config, arguments: &OpsArgs) -> ExitCode {
    if let Err(error) = telemetry::install(&config.telemetry) {
        return report(REFUSED, &error);
    }
    match arguments.run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(error.exit_code(), &error),
    }
}

/// Prints what a check has to say.
fn judge(verdict: anyhow::Result<String>) -> ExitCode {
    match verdict {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => report(REFUSED, error.as_ref()),
    }
}

/// Prepares the store, or says how it is.
fn prepare(config: &Config, command: StoreCommand) -> ExitCode {
    if let Err(error) = telemetry::install(&config.telemetry) {
        return report(FAILED, &error);
    }
    match command.run(config) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => report(FAILED, error.as_ref()),
    }
}

fn run(role: Role, config: &Config, environment: &Environment) -> ExitCode {
    let metrics = match telemetry::install(&config.telemetry) {
        Ok(metrics) => metrics,
        Err(error) => return report(FAILED, &error),
    };
    tracing::info!(version = VERSION, ?role, "starting");
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return report(FAILED, &error),
    };
    let outcome = runtime.block_on(live(role, config, environment, metrics));
    // Whatever is left was cut off on purpose.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            // Its causes were logged when it happened.
            tracing::error!(%error, "stopped after a failure");
            ExitCode::from(FAILED)
        }
    }
}

/// The whole life of a process with roles.
async fn live(
    role: Role,
    config: &Config,
    environment: &Environment,
    metrics: Metrics,
) -> anyhow::Result<()> {
    let mut signals = Signals::of_process().context("signals cannot be received")?;
    let running = Running::new();
    let admin = Admin::new(metrics);
    let all_started = admin
        .readiness
        .expect("every role to be started, and none stopping");
    let start = async {
        let listen = config.admin.listen;
        let bound = admin.start(listen, &running).await;
        bound.with_context(|| format!("the admin address {listen} cannot be bound"))?;
        waybill::roles::start(role, config, environment, &admin, &running).await?;
        all_started.set(true);
        // The first thing that a stop ends, so that nobody is sent here any more.
        running.spawn(Stage::Samples, "readiness", |stop| async move {
            stop.cancelled().await;
            all_started.set(false);
            Ok(())
        });
        Ok(())
    };
    Ok(running
        .run(start, &mut signals, config.shutdown_timeout)
        .await?)
}

/// Says on standard error what went wrong, with every cause.
fn report(code: u8, error: &(dyn Error + 'static)) -> ExitCode {
    let causes: Vec<String> = anyhow::Chain::new(error).map(ToString::to_string).collect();
    eprintln!("waybill: {}", causes.join(": "));
    ExitCode::from(code)
}
