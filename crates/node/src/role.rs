//! The roles, and the other processes that each needs.

use std::fmt;

use clap::ValueEnum;
use clap::builder::PossibleValue;

/// A role, or all of them: a command that runs until it is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// All roles.
    Up {
        /// Whether the agents run in this process.
        agents: bool,
        /// Whether the simulated services run in this process.
        services: bool,
        /// How many sample deliveries to send.
        samples: u64,
    },
    /// The embedded broker.
    Broker,
    /// The agents.
    Agents,
    /// The simulated services.
    Services,
    /// The HTTP API.
    Ingestion,
    /// The scheduler.
    Scheduler,
    /// The supervisor and the notifications.
    Supervisor,
}

/// The name of the role's command.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ValueEnum for Role {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::EVERYTHING,
            Self::Broker,
            Self::Agents,
            Self::Services,
            Self::Ingestion,
            Self::Scheduler,
            Self::Supervisor,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl Role {
    /// `up` with everything that it can start.
    pub const EVERYTHING: Self = Self::Up {
        agents: true,
        services: true,
        samples: 0,
    };

    /// The name of the role's command.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up { .. } => "up",
            Self::Broker => "broker",
            Self::Agents => "agents",
            Self::Services => "services",
            Self::Ingestion => "ingestion",
            Self::Scheduler => "scheduler",
            Self::Supervisor => "supervisor",
        }
    }

    /// The service name in traces.
    #[must_use]
    pub const fn service(self) -> &'static str {
        match self {
            Self::Up { .. } => "waybill",
            Self::Broker => "waybill-broker",
            Self::Agents => "waybill-agents",
            Self::Services => "waybill-services",
            Self::Ingestion => "waybill-ingestion",
            Self::Scheduler => "waybill-scheduler",
            Self::Supervisor => "waybill-supervisor",
        }
    }

    /// The other processes that the role needs when it runs alone.
    #[must_use]
    pub fn needs(self) -> Needs {
        let (brokers, store) = match self {
            Self::Up { .. } | Self::Broker | Self::Services => (false, false),
            Self::Agents => (true, false),
            Self::Ingestion | Self::Scheduler | Self::Supervisor => (true, true),
        };
        Needs { brokers, store }
    }
}

/// What must run in other processes.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// The brokers.
    pub brokers: bool,
    /// The state store.
    pub store: bool,
}
