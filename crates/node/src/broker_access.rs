//! The rights of a token on the embedded broker.
//!
//! With authentication on, the embedded broker requires clients to log in with a token as the
//! password. A PLAIN login may have any user name; a SCRAM login uses the token's name. The roles
//! in the broker's own process have their own listener, and log in there with a token that this
//! process alone knows, whether or not authentication is on: nobody else can use up that listener.
//!
//! What must hold: only agents and administrators read step requests and write replies. A token
//! that is withdrawn or expires loses its rights immediately, on open connections too. Records of
//! all tenants share topics, so a token for one tenant allows nothing here. Personal data (`notify`
//! of a request, owner notices) is for administrators alone.

use std::fmt;
use std::sync::Arc;

use waybill_broker::{Action, Logins, Rights};
use waybill_config::Secret;
use waybill_http::auth::{Authenticator, ListedToken, NewToken, Principal, Scope};
use waybill_kafka::no_group;
use waybill_messages::Topics;
use waybill_sasl::Verifier;

/// Checks the logins of the roles in the broker's own process.
pub struct OwnLogins(NewToken);

impl OwnLogins {
    /// Accepts a new token.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        Self(NewToken::make())
    }

    /// The token of the broker's own process.
    pub fn token(&self) -> &Secret {
        &self.0.token
    }
}

impl Logins for OwnLogins {
    fn log_in(&self, _user: &str, password: &str) -> Option<Arc<dyn Rights>> {
        self.0
            .is(password)
            .then(|| Arc::new(OwnProcess) as Arc<dyn Rights>)
    }

    fn verifier(&self, _user: &str) -> Option<(Verifier, Arc<dyn Rights>)> {
        None
    }
}

impl fmt::Debug for OwnLogins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnLogins").finish_non_exhaustive()
    }
}

/// Checks the logins of the embedded broker's other clients.
pub struct BrokerLogins {
    authenticator: Arc<Authenticator>,
    rules: Arc<Rules>,
}

impl BrokerLogins {
    /// Accepts the API's tokens. `agents_group` is the consumer group that agents share.
    pub fn new(authenticator: Arc<Authenticator>, topics: Topics, agents_group: String) -> Self {
        Self {
            authenticator,
            rules: Arc::new(Rules {
                topics,
                agents_group,
            }),
        }
    }

    fn holder(&self, proof: Proof) -> Arc<dyn Rights> {
        Arc::new(Holder {
            authenticator: Arc::clone(&self.authenticator),
            proof,
            rules: Arc::clone(&self.rules),
        })
    }
}

impl Logins for BrokerLogins {
    fn log_in(&self, _user: &str, password: &str) -> Option<Arc<dyn Rights>> {
        self.authenticator.principal(password).ok()?;
        Some(self.holder(Proof::Token(Secret::from(password))))
    }

    fn verifier(&self, user: &str) -> Option<(Verifier, Arc<dyn Rights>)> {
        let (token, verifier) = self.authenticator.verifier(user)?;
        Some((verifier, self.holder(Proof::Listed(token))))
    }
}

impl fmt::Debug for BrokerLogins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerLogins").finish_non_exhaustive()
    }
}

/// The unlimited rights of the broker's own process.
#[derive(Debug)]
struct OwnProcess;

impl Rights for OwnProcess {
    fn allow(&self, _action: Action<'_>) -> bool {
        true
    }
}

/// The rights of a token.
struct Holder {
    authenticator: Arc<Authenticator>,
    proof: Proof,
    rules: Arc<Rules>,
}

/// How a client has proved who it is.
enum Proof {
    /// It has sent a token.
    Token(Secret),
    /// It has proved with SCRAM that it has a token of the file.
    Listed(ListedToken),
}

impl Rights for Holder {
    fn allow(&self, action: Action<'_>) -> bool {
        let principal = match &self.proof {
            Proof::Token(token) => self.authenticator.principal(token.reveal()),
            Proof::Listed(token) => self.authenticator.holder_of(*token),
        };
        principal.is_ok_and(|principal| self.rules.allow(&principal, action))
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder").finish_non_exhaustive()
    }
}

/// The topics and groups that each scope and agent may use.
struct Rules {
    topics: Topics,
    agents_group: String,
}

impl Rules {
    fn allow(&self, principal: &Principal, action: Action<'_>) -> bool {
        let holds = |scope| principal.scopes.contains(scope);
        if principal.tenants.only().is_some() {
            return false;
        }
        if holds(Scope::Admin) {
            return true;
        }
        let topics = &self.topics;
        let is_agent = !principal.agents.is_empty();
        match action {
            Action::Administer => false,
            Action::Group(group) => {
                let reads = is_agent || holds(Scope::Read);
                (reads && !self.is_ours(group))
                    || group == no_group(topics.prefix())
                    || (is_agent && group == self.agents_group)
            }
            Action::ProducerId => is_agent || holds(Scope::Submit),
            Action::Read(topic) => {
                is_asked_on(principal, topics, topic) || (holds(Scope::Read) && self.is_open(topic))
            }
            Action::Write(topic) => {
                let is_request =
                    topic == topics.requests() || topic == topics.high_priority_requests();
                (is_agent && topic == topics.step_replies())
                    || Topics::source_of_dead_letter(topic)
                        .is_some_and(|source| is_asked_on(principal, topics, source))
                    || (holds(Scope::Submit) && is_request)
            }
        }
    }

    /// Whether a topic or group has the prefix of Waybill's own.
    fn is_ours(&self, name: &str) -> bool {
        name.starts_with(self.topics.prefix())
    }

    /// Whether the scope `read` allows a topic: not if it holds personal data, as requests do, and
    /// not if schedulers, agents and supervisors share it.
    fn is_open(&self, topic: &str) -> bool {
        let topics = &self.topics;
        let source = Topics::source_of_dead_letter(topic).unwrap_or(topic);
        let open = [
            topics.failed_operations(),
            topics.operation_status(),
            topics.operator_alerts(),
        ];
        !self.is_ours(source) || open.contains(&source)
    }
}

/// Whether a topic carries the step requests of one of the token's agents.
fn is_asked_on(principal: &Principal, topics: &Topics, topic: &str) -> bool {
    let mut agents = principal.agents.iter();
    agents.any(|agent| topics.step_requests(agent) == topic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use waybill_http::auth::Tenants;

    fn principal(scopes: &[Scope], agents: &[&str]) -> Principal {
        Principal {
            name: "a".into(),
            scopes: scopes.iter().copied().collect(),
            tenants: Tenants::All,
            agents: agents.iter().map(|agent| (*agent).into()).collect(),
        }
    }

    fn rules() -> Rules {
        Rules {
            topics: Topics::new("acme"),
            agents_group: "acme-agents".to_owned(),
        }
    }

    /// Every action that a token allows.
    fn allowed(principal: &Principal) -> Vec<String> {
        let rules = rules();
        let topics = [
            "operation-requests",
            "high-priority-requests",
            "drone.requests",
            "package.requests",
            "step-replies",
            "recovery",
            "failed-operations",
            "operation-status",
            "operator-alerts",
            "owner-notices",
        ];
        let mut allowed = Vec::new();
        for short in topics {
            for (suffix, mark) in [("", ""), (".dlq", ".dlq")] {
                let topic = format!("acme.{short}.v1{suffix}");
                for (what, action) in [
                    ("read", Action::Read(&topic)),
                    ("write", Action::Write(&topic)),
                ] {
                    if rules.allow(principal, action) {
                        allowed.push(format!("{what} {short}{mark}"));
                    }
                }
            }
        }
        for action in [
            Action::Group("acme-agents"),
            Action::Group("acme-alerts"),
            Action::Group("acme-no-group"),
            Action::Group("reports"),
            Action::Read("replies-of-a-caller"),
            Action::Write("replies-of-a-caller"),
            Action::ProducerId,
            Action::Administer,
        ] {
            if rules.allow(principal, action) {
                allowed.push(format!("{action:?}"));
            }
        }
        allowed
    }

    #[test]
    fn an_agent_may_only_read_its_requests_and_write_replies() {
        assert_eq!(
            allowed(&principal(&[], &["drone"])),
            [
                "read drone.requests",
                "write drone.requests.dlq",
                "write step-replies",
                "Group(\"acme-agents\")",
                "Group(\"acme-no-group\")",
                "Group(\"reports\")",
                "ProducerId",
            ]
        );
    }

    #[test]
    fn a_reader_may_only_read_topics_about_operations() {
        assert_eq!(
            allowed(&principal(&[Scope::Read, Scope::Repair], &[])),
            [
                "read failed-operations",
                "read failed-operations.dlq",
                "read operation-status",
                "read operation-status.dlq",
                "read operator-alerts",
                "read operator-alerts.dlq",
                "Group(\"acme-no-group\")",
                "Group(\"reports\")",
                "Read(\"replies-of-a-caller\")",
            ]
        );
    }

    #[test]
    fn a_submitter_may_write_requests_and_an_administrator_everything() {
        assert_eq!(
            allowed(&principal(&[Scope::Submit], &[])),
            [
                "write operation-requests",
                "write high-priority-requests",
                "Group(\"acme-no-group\")",
                "ProducerId",
            ]
        );
        assert_eq!(allowed(&principal(&[Scope::Admin], &[])).len(), 40 + 8);
    }

    #[test]
    fn a_token_for_one_tenant_allows_nothing() {
        let mut principal = principal(&Scope::ALL, &["drone"]);
        principal.tenants = Tenants::One("acme".into());
        assert_eq!(allowed(&principal), [""; 0]);
    }
}
