//! `waybill backup` writes broker and store of a running `up` to a file; `waybill restore` makes a
//! data directory from it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use waybill_clock::time_text;
use waybill_http::media_type;
use waybill_node::backup::{self, Contents, Restored, partial_of, private_file, put_in_place};
use waybill_node::config::Config;
use waybill_telemetry::visible::counted;

use crate::access::AdminArgs;
use crate::admin_port;
use crate::runtime::runtime;

/// The maximum time until the next piece arrives.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The arguments of `waybill backup`.
#[derive(Clone, Debug, Args)]
pub struct BackupArgs {
    /// The file to write; an existing one is replaced once the new one is complete
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    admin: AdminArgs,
}

/// The arguments of `waybill restore`.
#[derive(Clone, Debug, Args)]
pub struct RestoreArgs {
    /// The file that `waybill backup` made
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl BackupArgs {
    /// Requests a backup from the process and reports its contents.
    ///
    /// # Errors
    ///
    /// If the process does not answer, refuses, or does not finish, or the file cannot be written.
    /// A file of that name is then unchanged.
    pub fn run(&self, config: &Config) -> anyhow::Result<String> {
        let url = self.admin.url(config, "/backup")?;
        let client = admin_port::streaming_client(&self.admin.access, TIMEOUT)?;
        let runtime = runtime()?;
        let partial = partial_of(&self.file);
        let request = client.post(&url).header(CONTENT_TYPE, media_type::JSON);
        let answer = runtime.block_on(admin_port::accepted(&url, request))?;
        // Only its owner may read it, because it holds clients' data.
        let file = private_file(&partial)
            .with_context(|| format!("cannot create {}", partial.display()))?;
        let written = runtime
            .block_on(write(answer, file))
            .with_context(|| {
                let partial = partial.display();
                format!(
                    "{partial} is incomplete; `a backup failed` in the log of the process says why"
                )
            })
            .and_then(|()| {
                let checked = backup::check(&partial);
                checked.with_context(|| format!("{url} did not finish it"))
            })
            .and_then(|contents| {
                put_in_place(&partial, &self.file)
                    .with_context(|| format!("{} cannot be put in place", self.file.display()))?;
                Ok(contents)
            });
        match written {
            Ok(contents) => Ok(summary(&self.file, contents)),
            Err(error) => {
                // The error to report is the one above.
                let _ = fs::remove_file(&partial);
                Err(error)
            }
        }
    }
}

impl RestoreArgs {
    /// Creates the data directory from a backup and reports its contents.
    ///
    /// # Errors
    ///
    /// If the backup is incomplete, the directory is not empty, or it cannot be written.
    pub fn run(&self, config: &Config) -> anyhow::Result<String> {
        let Restored { contents, lost } = backup::restore(&self.file, &config.data_dir)
            .with_context(|| format!("cannot restore {}", self.file.display()))?;
        let mut summary = summary(&config.data_dir, contents);
        if lost > 0 {
            summary += &format!(
                "\n{} had already lost parts when the backup was made; {} lists them",
                counted(lost as u64, "operation"),
                backup::lost_operations(&config.data_dir).display()
            );
        }
        Ok(summary)
    }
}

/// Writes the answer to a file.
async fn write(mut answer: Response, mut file: File) -> anyhow::Result<()> {
    while let Some(piece) = answer.chunk().await? {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(())
}

fn summary(path: &Path, contents: Contents) -> String {
    let Contents {
        operations,
        records,
        at,
    } = contents;
    let size = fs::metadata(path).ok().filter(fs::Metadata::is_file);
    let size = size.map_or_else(String::new, |file| format!(", {} bytes", file.len()));
    format!(
        "{}: {}, {}{size}, as of {}",
        path.display(),
        counted(operations, "operation"),
        counted(records, "record"),
        time_text(at)
    )
}
