//! The login of commands to the embedded broker.
//!
//! With authentication on, the broker requires a token. Logins to other brokers are in
//! `kafka.properties`.

use std::path::{Path, PathBuf};

use clap::Args;
use waybill_node::config::Config;

use crate::credentials::{named_file, read_token};

/// The login of a command that needs a token for the broker alone.
#[derive(Clone, Debug, Default, Args)]
pub struct BrokerLogin {
    /// The file with the bearer token for the embedded broker, if authentication is on
    #[arg(
        long,
        value_name = "FILE",
        env = "WAYBILL_TOKEN_FILE",
        value_parser = named_file("WAYBILL_TOKEN_FILE")
    )]
    token_file: Option<PathBuf>,
}

impl BrokerLogin {
    /// The configuration with this login.
    ///
    /// # Errors
    ///
    /// As [`with_login`].
    pub(crate) fn on(&self, config: &Config) -> anyhow::Result<Config> {
        with_login(config, self.token_file.as_deref())
    }
}

/// Adds the login at the embedded broker to a configuration.
///
/// # Errors
///
/// If the broker requires a login and there is no token, or the token's file cannot be read.
pub(crate) fn with_login(config: &Config, token_file: Option<&Path>) -> anyhow::Result<Config> {
    let mut config = config.clone();
    let asks = config.kafka.brokers.is_none() && config.auth.is_on();
    if !asks || config.kafka.has_login() {
        return Ok(config);
    }
    let Some(path) = token_file else {
        anyhow::bail!(
            "the embedded broker requires a login, because authentication is on: name the file with a token \
             (--token-file or WAYBILL_TOKEN_FILE)"
        );
    };
    config.kafka.log_in("waybill-cli", &read_token(path)?);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking() -> Config {
        let mut config = Config::default();
        config.auth.tokens_file = Some("tokens.yaml".into());
        config
    }

    #[test]
    fn a_token_is_required_only_by_the_embedded_broker() {
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), "-----BEGIN KEY-----\nMIG\n").unwrap();
        let refused = with_login(&asking(), Some(key.path())).unwrap_err();
        assert!(refused.to_string().ends_with("holds no token"), "{refused}");
        let refused = with_login(&asking(), None).unwrap_err().to_string();
        assert!(refused.contains("--token-file"), "{refused}");
        let plain = Config::default();
        assert_eq!(with_login(&plain, None).unwrap(), plain);
        let mut elsewhere = asking();
        elsewhere.kafka.brokers = Some(vec!["a:1".to_owned()]);
        assert_eq!(with_login(&elsewhere, None).unwrap(), elsewhere);
        let mut has_one = asking();
        has_one.kafka.log_in("ops", &"wb_x".into());
        assert_eq!(with_login(&has_one, None).unwrap(), has_one);
    }

    #[test]
    fn the_token_of_the_file_is_the_password() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "wb_secret\n").unwrap();
        let config = with_login(&asking(), Some(file.path())).unwrap();
        let properties: Vec<_> = config.kafka.properties.iter().collect();
        assert_eq!(
            properties,
            [
                ("sasl.mechanism", "PLAIN"),
                ("sasl.password", "wb_secret"),
                ("sasl.username", "waybill-cli"),
                ("security.protocol", "SASL_PLAINTEXT"),
            ]
        );
        assert!(!format!("{config:?}").contains("wb_secret"));
    }
}
