//! The kinds of requests, and how each must end.
//!
//! | kind | is | must end |
//! |---|---|---|
//! | `drone` | a delivery by drone | `Processed`, with package, drone and delivery |
//! | `remote` | one to a remote place | `Processed`, with package, third party and delivery |
//! | `high-priority` | one by drone, of high priority | `Processed`, with package, drone and delivery |
//! | `suspended` | one whose account the services refuse | `Compensated`, with nothing |
//! | `cancelled` | one by drone that is cancelled after its acceptance | `Cancelled`, with nothing; or `Processed` with everything, if the cancel came too late |
//! | `repeated` | one by drone with its own ID, sent again after its acceptance | `Processed` as one operation with one set of effects |
//! | `malformed` | an invalid body | never started: answered 4xx |

use std::io::Write as _;

use serde::Deserialize;
use waybill_engine::{Priority, ProcessState};

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the table above says it")]
pub enum Kind {
    Drone,
    Remote,
    HighPriority,
    Suspended,
    Cancelled,
    Repeated,
    Malformed,
}

/// A request that was drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// Its number in the run, from 0.
    pub index: u64,
    /// Its kind.
    pub kind: Kind,
    /// The index of its tenant in the scenario, if it has one.
    pub tenant: Option<u16>,
    /// The phase in which it is sent.
    pub phase: u16,
}

/// Invalid bodies of different kinds. None has a line break, because each is a line of a batch.
const MALFORMED: [&str; 6] = [
    r#"{"workflow":"drone-delivery","input":{"ownerId":"owner-1""#,
    r#"{"workflow":"drone-delivery","input":{"ownerId":7,"pickupLocation":"a","dropOffLocation":"b","packageInfo":{"packageId":"p","size":"Small"}}}"#,
    r#"{"workflow":"no-such-workflow","input":{}}"#,
    r#"[]"#,
    "\u{1}\u{2}not json at all",
    r#"{"workflow":"drone-delivery","input":{"ownerId":"o","pickupLocation":"a","dropOffLocation":"b","packageInfo":{"packageId":"p","size":"Gigantic","weight":-1}}}"#,
];

impl Kind {
    /// Its name in files and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drone => "drone",
            Self::Remote => "remote",
            Self::HighPriority => "high-priority",
            Self::Suspended => "suspended",
            Self::Cancelled => "cancelled",
            Self::Repeated => "repeated",
            Self::Malformed => "malformed",
        }
    }

    /// Whether the request starts an operation.
    pub const fn is_good(self) -> bool {
        !matches!(self, Self::Malformed)
    }

    /// The priority of the request.
    pub const fn priority(self) -> Priority {
        match self {
            Self::HighPriority => Priority::High,
            _ => Priority::Normal,
        }
    }

    /// Whether it needs HTTP, because a topic returns no answer.
    pub const fn needs_answer(self) -> bool {
        matches!(self, Self::Repeated | Self::Malformed)
    }

    /// Whether this is a correct end without faults.
    pub fn may_end(self, state: ProcessState) -> bool {
        match self {
            Self::Drone | Self::Remote | Self::HighPriority | Self::Repeated => {
                state == ProcessState::Processed
            }
            Self::Suspended => state == ProcessState::Compensated,
            Self::Cancelled => {
                matches!(state, ProcessState::Cancelled | ProcessState::Processed)
            }
            Self::Malformed => false,
        }
    }

    /// The steps whose effects must exist after `Processed`, ordered by name. `None` if it may
    /// never end as `Processed`.
    pub const fn effects(self) -> Option<[&'static str; 3]> {
        match self {
            Self::Drone | Self::HighPriority | Self::Cancelled | Self::Repeated => {
                Some(["delivery", "drone", "package"])
            }
            Self::Remote => Some(["delivery", "package", "third-party"]),
            Self::Suspended | Self::Malformed => None,
        }
    }
}

impl Drawn {
    /// Appends the delivery. `run` distinguishes the IDs of this run from those of others.
    pub fn write_input(&self, run: &str, body: &mut Vec<u8>) {
        let index = self.index;
        body.push(b'{');
        // A write to a vector cannot fail, here and below.
        if self.kind == Kind::Repeated {
            let _ = write!(body, r#""deliveryId":"{run}-{index}","#);
        }
        let owner = match self.kind {
            Kind::Suspended => "suspended",
            _ => "owner",
        };
        let place = match self.kind {
            Kind::Remote => "remote island 7",
            _ => "7 Hill Road",
        };
        let _ = write!(
            body,
            concat!(
                r#""ownerId":"{}-{}","pickupLocation":"12 Harbour Street","dropOffLocation":"{}","#,
                r#""pickupTime":"2030-01-01T10:00:00Z","deadline":"2030-01-01T18:00:00Z","expedited":{},"#,
                r#""confirmationRequired":"None","packageInfo":{{"packageId":"package-{}","size":"Small","#,
                r#""weight":1.5,"tag":"load"}}}}"#
            ),
            owner,
            index % 1_000,
            place,
            self.kind == Kind::HighPriority,
            index
        );
    }

    /// Appends the request in the general form, for any tenant, without a line break.
    pub fn write_operation(&self, run: &str, tenant: Option<&str>, body: &mut Vec<u8>) {
        if self.kind == Kind::Malformed {
            body.extend_from_slice(self.malformed().as_bytes());
            return;
        }
        body.extend_from_slice(br#"{"workflow":"drone-delivery","#);
        if let Some(tenant) = tenant {
            body.extend_from_slice(br#""tenant":"#);
            let _ = serde_json::to_writer(&mut *body, tenant);
            body.push(b',');
        }
        body.extend_from_slice(br#""input":"#);
        self.write_input(run, body);
        body.push(b'}');
    }

    /// The invalid body.
    fn malformed(&self) -> &'static str {
        let choice = super::draw::number(self.index, 3) as usize;
        MALFORMED[choice % MALFORMED.len()]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn drawn(kind: Kind) -> Drawn {
        Drawn {
            index: 7,
            kind,
            tenant: None,
            phase: 0,
        }
    }

    #[test]
    fn requests_are_json_that_names_their_kind() {
        let mut inputs = Vec::new();
        for kind in [
            Kind::Drone,
            Kind::Remote,
            Kind::HighPriority,
            Kind::Suspended,
            Kind::Cancelled,
            Kind::Repeated,
        ] {
            let mut body = Vec::new();
            drawn(kind).write_operation("r", Some("a\"b"), &mut body);
            let value: Value = serde_json::from_slice(&body).expect("the text is JSON");
            assert_eq!(value["tenant"], "a\"b");
            inputs.push(value["input"].clone());
        }
        assert_eq!(inputs[0]["ownerId"], "owner-7");
        assert_eq!(inputs[1]["dropOffLocation"], "remote island 7");
        let expedited: Vec<_> = inputs.iter().map(|input| &input["expedited"]).collect();
        assert_eq!(expedited, [false, false, true, false, false, false]);
        assert_eq!(inputs[3]["ownerId"], "suspended-7");
        assert_eq!(inputs[5]["deliveryId"], "r-7");
        assert!(inputs[0]["deliveryId"].is_null());
    }

    #[test]
    fn each_kind_has_its_expected_final_states() {
        use ProcessState as S;
        for (kind, ends) in [
            (Kind::Drone, &[S::Processed] as &[S]),
            (Kind::Remote, &[S::Processed]),
            (Kind::HighPriority, &[S::Processed]),
            (Kind::Suspended, &[S::Compensated]),
            (Kind::Cancelled, &[S::Processed, S::Cancelled]),
            (Kind::Repeated, &[S::Processed]),
            (Kind::Malformed, &[]),
        ] {
            for state in [S::Processed, S::Compensated, S::Cancelled, S::Error] {
                assert_eq!(
                    kind.may_end(state),
                    ends.contains(&state),
                    "{kind:?} {state:?}"
                );
            }
            assert_eq!(kind.effects().is_some(), ends.contains(&S::Processed));
        }
    }

    #[test]
    fn no_malformed_body_has_a_line_break() {
        assert!(MALFORMED.iter().all(|body| !body.contains(['\n', '\r'])));
    }
}
