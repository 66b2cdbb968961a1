//! What goes wrong when a client is made or asked something.

use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaConfRes, RDKafkaErrorCode};

/// Why a client could not be made.
///
/// The text never holds a property's value: it may be a secret.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A configured property is unknown to librdkafka.
    #[error("librdkafka knows no property {property:?}")]
    UnknownProperty {
        /// Its name.
        property: String,
    },
    /// A configured property has a value that librdkafka refuses.
    #[error("librdkafka refuses the value of property {property:?}")]
    InvalidValue {
        /// Its name.
        property: String,
    },
    /// A configured property would break what this crate promises.
    #[error("property {property:?} is set by Waybill and cannot be configured")]
    Reserved {
        /// Its name.
        property: String,
    },
    /// librdkafka could not make the client.
    #[error("the Kafka client {client_id:?} could not be made: {reason}")]
    Create {
        /// The client's id.
        client_id: String,
        /// librdkafka's reason.
        reason: String,
    },
}

impl ClientError {
    pub(crate) fn new(client_id: &str, error: KafkaError) -> Self {
        match error {
            KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, property, _) => {
                Self::UnknownProperty { property }
            }
            KafkaError::ClientConfig(_, _, property, _) => Self::InvalidValue { property },
            KafkaError::ClientCreation(reason) => Self::Create {
                client_id: client_id.to_owned(),
                reason,
            },
            other => Self::Create {
                client_id: client_id.to_owned(),
                reason: other.to_string(),
            },
        }
    }
}

/// Why a request to the broker, or a change of what is consumed, failed.
#[derive(Debug, thiserror::Error)]
#[error("{action} failed")]
pub struct RequestError {
    /// What was asked for.
    pub action: &'static str,
    /// librdkafka's error.
    #[source]
    source: KafkaError,
}

impl RequestError {
    pub(crate) fn new(action: &'static str) -> impl FnOnce(KafkaError) -> Self {
        move |source| Self { action, source }
    }

    /// The error's code, where librdkafka gives one.
    #[must_use]
    pub fn code(&self) -> Option<RDKafkaErrorCode> {
        self.source.rdkafka_error_code()
    }
}
