//! The Avro records of the topics, their framing, headers and topic names
