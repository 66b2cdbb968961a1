//! Errors of creating a client and of its requests.

use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaConfRes, RDKafkaErrorCode};

/// Why a client could not be created.
///
/// The text never contains a property's value, which may be a secret.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A configured property is unknown to librdkafka.
    #[error("{property:?} is not a librdkafka property")]
    UnknownProperty {
        /// Its name.
        property: String,
    },
    /// A configured property has a value that librdkafka refuses.
    #[error("librdkafka rejects the value of property {property:?}")]
    InvalidValue {
        /// Its name.
        property: String,
    },
    /// A configured property would break a guarantee of this crate.
    #[error("property {property:?} is set by Waybill and cannot be configured")]
    Reserved {
        /// Its name.
        property: String,
    },
    /// librdkafka could not create the client.
    #[error("cannot create the Kafka client {client_id:?}: {reason}")]
    Create {
        /// The client's ID.
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

/// Why a request to the broker, or a change of a subscription or assignment, failed.
#[derive(Debug, thiserror::Error)]
#[error("{action} failed")]
pub struct RequestError {
    /// The requested action.
    pub action: &'static str,
    /// librdkafka's error.
    #[source]
    source: KafkaError,
}

impl RequestError {
    pub(crate) fn new(action: &'static str) -> impl FnOnce(KafkaError) -> Self {
        move |source| Self { action, source }
    }

    /// The error's code, if librdkafka provides one.
    #[must_use]
    pub fn code(&self) -> Option<RDKafkaErrorCode> {
        self.source.rdkafka_error_code()
    }
}
