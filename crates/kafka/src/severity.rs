//! How severe errors of a consumer are.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// How severe an error from a poll is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Severity {
    /// librdkafka retries on its own.
    Transient,
    /// The group has no assignment strategy in common with this member. librdkafka asks again every
    /// second.
    Inconsistent,
    /// The start offset does not exist.
    OffsetReset,
    /// A batch cannot be read as it was written. No record after this error can be trusted.
    Damaged,
    /// Further polls are useless.
    Fatal,
}

pub(crate) fn severity(error: &KafkaError) -> Severity {
    match error {
        KafkaError::MessageConsumptionFatal(_) => Severity::Fatal,
        KafkaError::MessageConsumption(code) => match code {
            RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange => {
                Severity::OffsetReset
            }
            RDKafkaErrorCode::InconsistentGroupProtocol => Severity::Inconsistent,
            // A wrong checksum or format, as the client (the first three) and the broker report it.
            RDKafkaErrorCode::BadMessage
            | RDKafkaErrorCode::BadCompression
            | RDKafkaErrorCode::NotImplemented
            | RDKafkaErrorCode::InvalidMessage => Severity::Damaged,
            // `Authentication` is not among them: librdkafka also reports a connection so that
            // broke during the handshake, and it connects again after either.
            RDKafkaErrorCode::Fatal
            | RDKafkaErrorCode::UnsupportedSASLMechanism
            | RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed
            | RDKafkaErrorCode::InvalidGroupId
            | RDKafkaErrorCode::FencedInstanceId
            | RDKafkaErrorCode::UnsupportedFeature => Severity::Fatal,
            _ => Severity::Transient,
        },
        _ => Severity::Transient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_breaks_during_its_login_ends_no_consumer() {
        let refused = KafkaError::MessageConsumption(RDKafkaErrorCode::Authentication);
        assert_eq!(severity(&refused), Severity::Transient);
    }
}
