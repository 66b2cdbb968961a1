//! Why a check could not run.

use waybill_kafka::{AdminError, ClientError, PollError, ProduceError, RequestError};
use waybill_messages::EncodeError;

/// Why a check could not run. A broken rule is not an error.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Schedulers read, or will read, the replies under this prefix.
    #[error(
        "{topic} exists: an installation uses this prefix, and its schedulers would read what the \
         agent answers; start the agent under another prefix, and check it there"
    )]
    Installation {
        /// The topic that shows the installation.
        topic: String,
    },
    /// The prefix and the agent's name form no valid topic name.
    #[error("{topic:?} is not the name of a topic")]
    TopicName {
        /// The invalid name.
        topic: String,
    },
    /// The input is not a valid step input.
    #[error("the input is not a JSON object")]
    Input(#[source] serde_json::Error),
    /// A topic that was created does not appear.
    #[error("topic {topic} was made, and the broker does not know it")]
    TopicMissing {
        /// The topic.
        topic: String,
    },
    /// Topics cannot be created or described.
    #[error("the topics cannot be prepared")]
    Admin(#[from] AdminError),
    /// A Kafka client cannot be created.
    #[error("the Kafka client cannot be made")]
    Client(#[from] ClientError),
    /// The brokers did not answer a request.
    #[error("the brokers did not answer")]
    Request(#[from] RequestError),
    /// The replies can no longer be read.
    #[error("the replies cannot be read")]
    Poll(#[from] PollError),
    /// The records read do not reach the end that the broker reported.
    #[error("the replies could not be read to their end")]
    Behind,
    /// The brokers did not accept a request.
    #[error("a request cannot be sent")]
    Send(#[from] ProduceError),
    /// A request cannot be encoded.
    #[error("a request cannot be encoded")]
    Encode(#[from] EncodeError),
    /// The operating system could not start a runtime.
    #[error("the runtime cannot be started")]
    Runtime(#[source] std::io::Error),
}
