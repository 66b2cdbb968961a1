//! The files that secrets are read from.
//!
//! What must hold: the log warns about those that other users may read, although the configuration
//! is read before the log is set up.

use std::path::{Path, PathBuf};

use crate::{ConfigError, file_permissions, read_text};

/// The files that secrets were read from, each with its key.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SecretFiles(Vec<(String, PathBuf)>);

impl SecretFiles {
    /// Reads the file for `key`, without a final line end.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn read(&mut self, path: &Path, key: &str) -> Result<String, ConfigError> {
        let text = read_text(path).map_err(|error| error.of_key(key))?;
        self.note(path, key);
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Reads a secret from `file`, if set, into `value`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or `value` is set as well.
    pub fn read_secret<T: From<String>>(
        &mut self,
        value: &mut Option<T>,
        file: &mut Option<PathBuf>,
        key: &str,
    ) -> Result<(), ConfigError> {
        let Some(path) = file.take() else {
            return Ok(());
        };
        let text = self.read(&path, key)?;
        if value.is_some() {
            let problem = "is set, and so is a file for it: remove one of them";
            return Err(ConfigError::invalid(key, problem));
        }
        *value = Some(text.into());
        Ok(())
    }

    /// Adds a file that other code reads.
    pub fn note(&mut self, path: &Path, key: &str) {
        self.0.push((key.to_owned(), path.to_owned()));
    }

    /// Warns about files that every user may read.
    pub fn warn(&self) {
        for (key, path) in &self.0 {
            file_permissions::warn_if_world_readable(path, key);
        }
    }

    /// Each file with its key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.0
            .iter()
            .map(|(key, path)| (key.as_str(), path.as_path()))
    }
}
