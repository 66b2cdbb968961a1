//! The `schemaRegistry` section.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::checks::{BOTH_OR_NEITHER, check_request_timeout, require};
use waybill_config::{ConfigError, Secret, SecretFiles, read_text};
use waybill_units::DurationText;

use crate::client::{Login, Registry, RegistrySettings};

/// The header that writers put before a datum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FramingChoice {
    /// The zero byte and schema id of the Confluent wire format.
    Confluent,
    /// An Avro single object, as without a registry.
    SingleObject,
}

/// The `schemaRegistry` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RegistryConfig {
    /// The URL; `null` for no registry.
    pub url: Option<String>,
    /// The user name; `null` for no authentication.
    pub user: Option<String>,
    /// The password of `user`.
    pub password: Option<Secret>,
    /// The file that the password is read from.
    pub password_file: Option<PathBuf>,
    /// Certificates (PEM) that are trusted in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// Whether a role registers missing schemas. If not, it ends with an error.
    pub auto_register: bool,
    /// How writers frame records; readers accept both.
    pub framing: FramingChoice,
    /// The time limit of one request.
    #[serde(with = "DurationText")]
    pub request_timeout: Duration,
    /// The text of the certificates, once it is read.
    #[serde(skip)]
    ca_pem: Option<String>,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            url: None,
            user: None,
            password: None,
            password_file: None,
            ca_file: None,
            auto_register: true,
            framing: FramingChoice::Confluent,
            request_timeout: Duration::from_secs(5),
            ca_pem: None,
        }
    }
}

impl RegistryConfig {
    /// The client of the registry; `None` without one.
    ///
    /// # Errors
    ///
    /// If its configuration is invalid.
    pub fn client(&self) -> Result<Option<Registry>, ConfigError> {
        let Some(url) = &self.url else {
            return Ok(None);
        };
        let settings = RegistrySettings {
            url: url.clone(),
            login: self.user.as_ref().map(|user| Login {
                user: user.clone(),
                password: self
                    .password
                    .as_ref()
                    .map_or_else(String::new, |password| password.reveal().to_owned()),
            }),
            ca_pem: self.ca_pem.clone(),
            timeout: self.request_timeout,
        };
        let registry = Registry::new(&settings).map_err(|error| {
            ConfigError::invalid(
                "schemaRegistry",
                format!("is invalid: {}", waybill_telemetry::chain(&error)),
            )
        })?;
        Ok(Some(registry))
    }

    /// Reads the password and the certificates from their files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or the password is also set directly.
    pub fn read_files(&mut self, files: &mut SecretFiles) -> Result<(), ConfigError> {
        let key = "schemaRegistry.password";
        files.read_secret(&mut self.password, &mut self.password_file, key)?;
        if let Some(path) = &self.ca_file {
            let pem = read_text(path).map_err(|error| error.of_key("schemaRegistry.caFile"))?;
            self.ca_pem = Some(pem);
        }
        Ok(())
    }

    /// Checks the section, once its files are read.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.url.is_some() {
            check_request_timeout("schemaRegistry.requestTimeout", self.request_timeout)?;
        }
        require(
            self.user.is_some() == self.password.is_some(),
            "schemaRegistry.user and schemaRegistry.password",
            BOTH_OR_NEITHER,
        )?;
        self.client().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    fn config() -> RegistryConfig {
        RegistryConfig {
            url: Some("https://registry.example:8081".to_owned()),
            ..RegistryConfig::default()
        }
    }

    #[test]
    fn the_password_is_read_from_its_file_and_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "open sesame\n").unwrap();
        let mut config = RegistryConfig {
            user: Some("anna".to_owned()),
            password_file: Some(file.path().to_owned()),
            ..config()
        };
        config.read_files(&mut SecretFiles::default()).unwrap();
        config.validate().unwrap();
        assert_eq!(config.password.as_ref().unwrap().reveal(), "open sesame");
        let client = config.client().unwrap().unwrap();
        let yaml = serde_saphyr::to_string(&config).unwrap();
        for shown in [format!("{config:?}"), format!("{client:?}"), yaml] {
            assert!(!shown.contains("sesame"), "{shown}");
        }
    }

    #[test]
    fn invalid_values_are_refused_with_their_key() {
        let changes: Changes<'_, RegistryConfig> = &[
            ("schemaRegistry.requestTimeout", |c| {
                c.request_timeout = Duration::from_millis(99);
            }),
            ("schemaRegistry is invalid: \"a\"", |c| {
                c.url = Some("http://anna:sesame@a".to_owned());
            }),
            ("schemaRegistry.user", |c| c.user = Some("anna".to_owned())),
            ("schemaRegistry.user", |c| {
                c.password = Some("sesame".into());
            }),
            (
                "schemaRegistry is invalid: the trusted certificates contain no certificate",
                |c| {
                    c.ca_pem = Some(String::new());
                },
            ),
        ];
        let errors = assert_refused(&config(), RegistryConfig::validate, changes);
        assert!(!errors.concat().contains("sesame"), "{errors:?}");
        let mut missing = RegistryConfig {
            ca_file: Some("/nonexistent".into()),
            ..config()
        };
        let error = missing
            .read_files(&mut SecretFiles::default())
            .unwrap_err()
            .to_string();
        assert_eq!(error, "schemaRegistry.caFile: /nonexistent cannot be read");
    }
}
