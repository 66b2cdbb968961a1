//! `waybill completions` and `waybill man`: generated from the definition of the command line.

use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;

impl Cli {
    /// The completion script for a shell.
    #[must_use]
    pub fn completions(shell: Shell) -> String {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Self::command(), "waybill", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }

    /// Writes manual pages to a directory, which it creates if needed: `waybill.1` and one per
    /// command.
    ///
    /// # Errors
    ///
    /// If a page cannot be written.
    pub fn write_manual(directory: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(directory)
            .and_then(|()| clap_mangen::generate_to(Self::command(), directory))
            .with_context(|| format!("cannot write {}", directory.display()))
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_completion_script_has_every_command() {
        for shell in Shell::value_variants() {
            let script = Cli::completions(*shell);
            for command in Cli::command().get_subcommands() {
                let name = command.get_name();
                assert!(script.contains(name), "the script for {shell} lacks {name}");
            }
        }
    }

    #[test]
    fn every_command_has_a_page_with_its_help() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("not/there");
        Cli::write_manual(&directory).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(
            page("waybill.1").starts_with(".ie"),
            "{}",
            page("waybill.1")
        );
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(page(&format!("waybill-{name}.1")).contains(name));
        }
        assert!(page("waybill-ops-list.1").contains("older\\-than"));
        let below_a_file = directory.join("waybill.1/man");
        assert!(Cli::write_manual(&below_a_file).is_err());
    }
}
