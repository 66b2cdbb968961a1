//! Why a check could not run.

use waybill_kafka::{AdminError, ClientError, PollError, ProduceError, RequestError};
use waybill_messages::EncodeError;

/// Why a check could not run. A broken rule is not an error.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Schedulers read, or will read, the replies under this prefix.
    #[error(
        "topic {topic} exists: an installation uses this prefix, and its schedulers would read \
         the agent's replies; start the agent under another prefix and check it there"
    )]
    Installation {
        /// The topic that shows the installation.
        topic: String,
    },
    /// The prefix and the agent's name form no valid topic name.
    #[error("{topic:?} is not a valid topic name")]
    TopicName {
        /// The invalid name.
        topic: String,
    },
    /// The input is not a valid step input.
    #[error("the input is not a JSON object")]
    Input(#[source] serde_json::Error),
    /// A topic that was created does not appear.
    #[error("topic {topic} was created, but the broker does not list it")]
    TopicMissing {
        /// The topic.
        topic: String,
    },
    /// Topics cannot be created or described.
    #[error("could not prepare the topics")]
    Admin(#[from] AdminError),
    /// A Kafka client cannot be created.
    #[error("could not create the Kafka client")]
    Client(#[from] ClientError),
    /// The brokers did not answer a request.
    #[error("the brokers did not answer")]
    Request(#[from] RequestError),
    /// The replies can no longer be read.
    #[error("could not read the replies")]
    Poll(#[from] PollError),
    /// The records read do not reach the end that the broker reported.
    #[error("could not read the replies to their end")]
    Behind,
    /// The brokers did not accept a request.
    #[error("could not send a request")]
    Send(#[from] ProduceError),
    /// A request cannot be encoded.
    #[error("could not encode a request")]
    Encode(#[from] EncodeError),
    /// The operating system could not start a runtime.
    #[error("could not start the runtime")]
    Runtime(#[source] std::io::Error),
}
