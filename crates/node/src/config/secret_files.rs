//! The files that secrets are read from.
//!
//! What must hold: which of them others may read is told once there is a log, and the configuration is read before.

use std::fs;
use std::path::{Path, PathBuf};

use waybill_http::file_modes;

use super::ConfigError;

/// The files that secrets were read from, each with the key that it stands for.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SecretFiles(Vec<(String, PathBuf)>);

impl SecretFiles {
    /// The text of the file that `key` is read from; a line end at its end does not count.
    pub(super) fn read(&mut self, path: &Path, key: &str) -> Result<String, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::SecretFile {
            key: key.to_owned(),
            path: path.display().to_string(),
            source,
        })?;
        self.note(path, key);
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Notes a file that somebody else reads.
    pub(super) fn note(&mut self, path: &Path, key: &str) {
        self.0.push((key.to_owned(), path.to_owned()));
    }

    /// Says which of them every user may read.
    pub(super) fn warn(&self) {
        for (key, path) in &self.0 {
            file_modes::warn_if_they_may_read(path, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::Config;

    #[test]
    fn every_file_that_a_secret_was_read_from_is_looked_at_and_named_by_its_key() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = directory.path().join(name);
            fs::write(&path, "secret\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path.display().to_string()
        };
        let yaml = format!(
            "kafka: {{ properties: {{ security.protocol: SSL }}, propertyFiles: {{ ssl.key.password: {} }} }}\n\
             store: {{ scylla: {{ nodes: ['127.0.0.1:1'], user: u, passwordFile: {}, tls: true, certFile: {}, keyFile: {} }} }}\n\
             alerts: {{ receivers: {{ mail: {{ email: {{ host: h, user: u, passwordFile: {}, from: a@b.c, to: [d@e.f] }} }} }} }}\n",
            at("kafka"),
            at("scylla"),
            at("certificate"),
            at("key"),
            at("mail")
        );
        let config: Config = crate::config::parse_document("waybill.yaml", &yaml).unwrap();
        let config = config.finish().unwrap();
        let found = config.secret_files.0.iter().map(|(key, path)| {
            let name = path.file_name().unwrap().to_str().unwrap();
            (key.as_str(), name)
        });
        let expected = [
            ("kafka.properties.ssl.key.password", "kafka"),
            ("store.scylla.keyFile", "key"),
            ("store.scylla.password", "scylla"),
            ("alerts.receivers.mail.email.password", "mail"),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
