//! Why a check could not be played.

use waybill_kafka::{AdminError, ClientError, PollError, ProduceError, RequestError};
use waybill_messages::EncodeError;

/// Why a check could not be played. That an agent breaks a rule is none of these.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Schedulers read, or will read, the replies under this prefix.
    #[error(
        "{topic} exists: an installation uses this prefix, and its schedulers would read what the \
         agent answers; start the agent under another prefix, and check it there"
    )]
    Installation {
        /// The topic that gives the installation away.
        topic: String,
    },
    /// The prefix and the agent's name make no topic.
    #[error("{topic:?} is not the name of a topic")]
    TopicName {
        /// What they make.
        topic: String,
    },
    /// The input is not what a step's input is.
    #[error("the input is not a JSON object")]
    Input(#[source] serde_json::Error),
    /// A topic that was made does not appear.
    #[error("topic {topic} was made, and the broker does not know it")]
    TopicMissing {
        /// The topic.
        topic: String,
    },
    /// Topics cannot be made or looked at.
    #[error("the topics cannot be prepared")]
    Admin(#[from] AdminError),
    /// A Kafka client cannot be made.
    #[error("the Kafka client cannot be made")]
    Client(#[from] ClientError),
    /// A question to the brokers was not answered.
    #[error("the brokers did not answer")]
    Request(#[from] RequestError),
    /// The replies can no longer be read.
    #[error("the replies cannot be read")]
    Poll(#[from] PollError),
    /// What was read does not reach the end that the broker told.
    #[error("the replies could not be read to their end")]
    Behind,
    /// A request was not taken by the brokers.
    #[error("a request cannot be sent")]
    Send(#[from] ProduceError),
    /// A request cannot be encoded.
    #[error("a request cannot be encoded")]
    Encode(#[from] EncodeError),
    /// The operating system gave no runtime.
    #[error("the runtime cannot be started")]
    Runtime(#[source] std::io::Error),
}
