//! Nonces prove that a reply answers a request that the scheduler has sent.
//!
//! The nonce of an attempt is the first 16 bytes of an HMAC-SHA256 under the installation's reply
//! key, over the identity of the attempt: operation, epoch, attempt, action and step. So nothing is
//! stored for it, every scheduler of the installation derives the same nonce, and a request that is
//! sent again has the same nonce.
//!
//! What must hold: a reply without the nonce of its attempt never reaches an engine. A client that
//! can write to `step-replies` but cannot read the agents' topics cannot advance an operation.

use anyhow::Context as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use waybill_engine::{Action, Attempt, Epoch, Nonce, OperationId, StepReply, StepRequest};
use waybill_store::{ReplyKey, Store};

/// The reply key of the installation, which the first scheduler creates.
///
/// # Errors
///
/// If the store fails, or the system gives no random bytes.
pub async fn reply_key(store: &dyn Store) -> anyhow::Result<ReplyKey> {
    let mut random = [0; ReplyKey::BYTES];
    openssl::rand::rand_bytes(&mut random).context("cannot read random bytes from the system")?;
    let key = store.reply_key(ReplyKey::new(random)).await;
    key.context("cannot read the reply key")
}

/// Derives and verifies nonces.
#[derive(Clone)]
pub(super) struct Nonces {
    /// With the key already hashed in: a nonce costs no key schedule and no allocation.
    keyed: Hmac<Sha256>,
}

/// Why a reply is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Unproven {
    #[error(
        "the step-reply has no nonce: an agent must repeat the `nonce` of the request, which \
         proves that the agent received it"
    )]
    Missing,
    #[error(
        "the nonce of the step-reply does not match a request for this operation, step, attempt, \
         epoch and action: an agent must repeat these fields and `nonce` unchanged from the \
         request"
    )]
    Wrong,
}

impl Nonces {
    pub(super) fn new(key: &ReplyKey) -> Self {
        let keyed = Hmac::new_from_slice(key.reveal()).expect("HMAC takes keys of any length");
        Self { keyed }
    }

    /// The nonce for a request.
    pub(super) fn of_request(&self, request: &StepRequest) -> Nonce {
        let StepRequest {
            operation,
            epoch,
            attempt,
            action,
            step,
            ..
        } = request;
        first_bytes(self.over(*operation, *epoch, *attempt, *action, step))
    }

    /// The nonce of the request that a reply answers.
    pub(super) fn of_reply(&self, reply: &StepReply) -> Nonce {
        first_bytes(self.over_reply(reply))
    }

    /// Verifies the nonce of a reply in constant time.
    pub(super) fn verify(&self, reply: &StepReply) -> Result<(), Unproven> {
        let Nonce(nonce) = reply.nonce.ok_or(Unproven::Missing)?;
        let expected = self.over_reply(reply);
        let verified = expected.verify_truncated_left(&nonce);
        verified.map_err(|_| Unproven::Wrong)
    }

    fn over_reply(&self, reply: &StepReply) -> Hmac<Sha256> {
        let StepReply {
            operation,
            epoch,
            attempt,
            action,
            step,
            ..
        } = reply;
        self.over(*operation, *epoch, *attempt, *action, step)
    }

    /// All fields but the step have a fixed length, and the step comes last: no two attempts have
    /// the same bytes.
    fn over(
        &self,
        operation: OperationId,
        epoch: Epoch,
        attempt: Attempt,
        action: Action,
        step: &str,
    ) -> Hmac<Sha256> {
        let action = match action {
            Action::Run => 1,
            Action::Compensate => 2,
            Action::Probe => 3,
        };
        let mut keyed = self.keyed.clone();
        keyed.update(operation.0.as_bytes());
        keyed.update(&epoch.0.to_be_bytes());
        keyed.update(&attempt.0.to_be_bytes());
        keyed.update(&[action]);
        keyed.update(step.as_bytes());
        keyed
    }
}

fn first_bytes(mac: Hmac<Sha256>) -> Nonce {
    let mut nonce = [0; Nonce::BYTES];
    nonce.copy_from_slice(&mac.finalize().into_bytes()[..Nonce::BYTES]);
    Nonce(nonce)
}

#[cfg(test)]
mod tests {
    use waybill_agent::testing::StepRequestBuilder;
    use waybill_engine::Outcome;

    use super::*;

    fn nonces(byte: u8) -> Nonces {
        Nonces::new(&ReplyKey::new([byte; ReplyKey::BYTES]))
    }

    fn request() -> StepRequest {
        let builder = StepRequestBuilder::new("drone", "fly")
            .operation(OperationId(uuid::Uuid::from_u128(7)))
            .attempt(Attempt(2))
            .epoch(Epoch(3));
        let mut request = builder.build();
        request.nonce = Some(nonces(1).of_request(&request));
        request
    }

    fn reply() -> StepReply {
        let outputs = Vec::new();
        StepReply::to(&request(), Outcome::Success { outputs })
    }

    /// Expected value from Python's `hmac`: schedulers of two versions must agree.
    #[test]
    fn the_derivation_of_nonces_is_stable() {
        let Nonce(nonce) = request().nonce.unwrap();
        let nonce: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(nonce, "7c37323c45b7be737a8c7e013a9ec516");
    }

    #[test]
    fn a_reply_with_the_nonce_of_its_request_is_accepted_whatever_its_outcome() {
        assert_eq!(nonces(1).verify(&reply()), Ok(()));
        let other = StepReply {
            outcome: Outcome::NotPerformed,
            ..reply()
        };
        assert_eq!(nonces(1).verify(&other), Ok(()));
        assert_eq!(Some(nonces(1).of_reply(&other)), other.nonce);
    }

    #[test]
    fn a_reply_with_a_missing_or_wrong_nonce_is_refused() {
        let missing = StepReply {
            nonce: None,
            ..reply()
        };
        assert_eq!(nonces(1).verify(&missing), Err(Unproven::Missing));
        let others = [
            StepReply {
                nonce: Some(Nonce([0; Nonce::BYTES])),
                ..reply()
            },
            StepReply {
                operation: OperationId(uuid::Uuid::from_u128(8)),
                ..reply()
            },
            StepReply {
                attempt: Attempt(3),
                ..reply()
            },
            StepReply {
                epoch: Epoch(4),
                ..reply()
            },
            StepReply {
                action: Action::Probe,
                ..reply()
            },
            StepReply {
                step: "flyy".to_owned(),
                ..reply()
            },
        ];
        for other in others {
            assert_eq!(nonces(1).verify(&other), Err(Unproven::Wrong), "{other:?}");
        }
        assert_eq!(
            nonces(2).verify(&reply()),
            Err(Unproven::Wrong),
            "another key"
        );
    }

    #[test]
    fn a_nonce_with_one_bit_changed_is_refused() {
        for bit in 0..Nonce::BYTES * 8 {
            let mut changed = reply();
            let Some(Nonce(nonce)) = &mut changed.nonce else {
                unreachable!()
            };
            nonce[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(nonces(1).verify(&changed), Err(Unproven::Wrong), "{bit}");
        }
    }
}
