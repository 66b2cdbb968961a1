//! Why servers cannot hold the store, or not here.

use super::server::{CqlProblem, CqlServer};
use crate::StoreError;

/// An error of the store on a cluster: the source, or the whole text, of a [`StoreError`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CqlError {
    /// The configuration cannot work.
    #[error("its configuration is invalid: {why}")]
    Config {
        /// Why not.
        why: &'static str,
    },
    /// A keyspace created like this could not be used.
    #[error(
        "each row would be stored {factor} times in datacentre {datacenter}, which has {nodes} nodes: \
         set the replication factor (store.scylla.replicationFactor)"
    )]
    FewNodes {
        /// How many times a row would be stored.
        factor: u8,
        /// The datacentre.
        datacenter: String,
        /// How many nodes it has.
        nodes: usize,
    },
    /// There are several datacentres, and none is configured, or the configured one does not exist.
    #[error("the configured datacentre must be one of {}", known.join(", "))]
    Datacenter {
        /// The existing datacentres.
        known: Vec<String>,
    },
    /// The servers or the keyspace are unsuitable.
    #[error("keyspace {keyspace} on {server}: {problem}")]
    Incompatible {
        /// The keyspace.
        keyspace: String,
        /// The servers.
        server: CqlServer,
        /// What is wrong.
        problem: CqlProblem,
    },
    /// The lease or the layout is held in another datacentre, whose lightweight transactions are
    /// not visible here.
    #[error("{what} is held in datacentre {holder}, but this process is in {local}")]
    ElsewhereHeld {
        /// The lease, or the layout of shards.
        what: String,
        /// The holder's datacentre.
        holder: String,
        /// The datacentre of this process.
        local: String,
    },
}

impl From<CqlError> for StoreError {
    fn from(error: CqlError) -> Self {
        if let CqlError::ElsewhereHeld { .. } = error {
            return Self::OutOfReach(Box::new(error));
        }
        let is_unprepared = matches!(
            error,
            CqlError::Incompatible {
                problem: CqlProblem::NoSchema,
                ..
            }
        );
        Self::Unusable {
            is_unprepared,
            source: Box::new(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn an_error_keeps_its_text_and_its_type() {
        let held = CqlError::ElsewhereHeld {
            what: "the layout of shards".to_owned(),
            holder: "west".to_owned(),
            local: "east".to_owned(),
        };
        let error = StoreError::from(held.clone());
        assert_eq!(
            error.to_string(),
            "the layout of shards is held in datacentre west, but this process is in east"
        );
        assert!(error.source().is_none(), "the text is complete");
        let StoreError::OutOfReach(cause) = error else {
            panic!("{error:?}")
        };
        assert_eq!(cause.downcast_ref(), Some(&held));

        let incompatible = |problem| CqlError::Incompatible {
            keyspace: "waybill".to_owned(),
            server: CqlServer::Cassandra("5.0.8".to_owned()),
            problem,
        };
        let new = CqlProblem::NewSchema { found: 2, known: 1 };
        for (problem, wanted) in [(CqlProblem::NoSchema, true), (new, false)] {
            let cause = incompatible(problem);
            let error = StoreError::from(cause.clone());
            assert_eq!(error.to_string(), "the state store cannot be used");
            let StoreError::Unusable {
                is_unprepared,
                source,
            } = error
            else {
                panic!("{error:?}")
            };
            assert_eq!(is_unprepared, wanted, "{cause}");
            assert_eq!(source.downcast_ref(), Some(&cause));
        }
    }
}
