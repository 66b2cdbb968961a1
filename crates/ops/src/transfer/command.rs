//! `waybill export` writes all operations of a store as lines of JSON; `waybill import` writes them
//! to another store.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use waybill_node::backup::{partial_of, private_file, put_in_place};
use waybill_node::config::Config;
use waybill_telemetry::visible::counted;

use super::{Exported, Imported};
use crate::connection::is_broken_pipe;
use crate::runtime::runtime;

/// The arguments of `waybill export`.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// The file to write, with owner-only permissions; an existing one is replaced once the new one
    /// is complete [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The arguments of `waybill import`.
#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// The file that `waybill export` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl ExportArgs {
    /// Writes all operations. Reports on standard error how many, and which data is missing.
    ///
    /// # Errors
    ///
    /// If the store or the file fails, or rows cannot be read. The readable rows are written. A
    /// closed standard output ends the command, and is no error.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        let exported = match &self.out {
            None => match export(config, &mut BufWriter::new(io::stdout().lock())) {
                Err(error) if is_broken_pipe(&error) => return Ok(()),
                exported => exported?,
            },
            Some(path) => to_file(config, path)?,
        };
        eprintln!("exported {}", counted(exported.operations, "operation"));
        match exported.waiting {
            Some(0) => {}
            Some(waiting) => eprintln!(
                "warning: the export lacks up to {} that no scheduler has read yet",
                counted(waiting, "request")
            ),
            None => eprintln!(
                "warning: the export may lack requests that no scheduler has read yet; give --brokers to count them"
            ),
        }
        if exported.owned > 0 {
            eprintln!(
                "warning: schedulers own {}: the export lacks their further changes",
                counted(exported.owned, "shard")
            );
        }
        let mut lacks = Vec::new();
        if exported.unreadable > 0 {
            lacks.push(counted(exported.unreadable, "unreadable row"));
        }
        if exported.damaged > 0 {
            let parts = counted(exported.damaged, "damaged part");
            lacks.push(format!("any rows in {parts} of the store"));
        }
        anyhow::ensure!(
            lacks.is_empty(),
            "the export lacks {}; the log names each",
            lacks.join(" and ")
        );
        Ok(())
    }
}

impl ImportArgs {
    /// Writes the operations of a file to the store and reports the outcome.
    ///
    /// # Errors
    ///
    /// If the file is refused, the store fails, or it holds different operations with the same IDs.
    pub fn run(&self, config: &Config) -> anyhow::Result<String> {
        let imported = runtime()?.block_on(super::import(config, &self.file))?;
        let Imported {
            written,
            going_on,
            parked,
            there,
            expired,
            different,
            named,
        } = imported;
        let summary = format!(
            "imported {}: {going_on} in progress, {parked} parked; {there} imported before, {expired} past the \
             retention",
            counted(written, "operation")
        );
        if different > 0 {
            println!("{summary}");
            let named = named.iter().map(|(line, id)| {
                let file = self.file.display();
                format!("\n  {file}:{line}: {id}")
            });
            let named: String = named.collect();
            anyhow::bail!(
                "left {} unchanged, because the store has different contents for their ids:{named}",
                counted(different, "operation")
            );
        }
        Ok(summary)
    }
}

fn export(config: &Config, out: &mut dyn Write) -> anyhow::Result<Exported> {
    runtime()?.block_on(super::export(config, out))
}

fn to_file(config: &Config, path: &Path) -> anyhow::Result<Exported> {
    let partial = partial_of(path);
    let written = private_file(&partial)
        .with_context(|| format!("{} cannot be written", partial.display()))
        .and_then(|file| {
            let mut out = BufWriter::new(file);
            let exported = export(config, &mut out)?;
            out.into_inner()?.sync_all()?;
            put_in_place(&partial, path)?;
            Ok(exported)
        });
    if written.is_err() {
        // The error to report is the one above.
        let _ = fs::remove_file(&partial);
    }
    written
}
