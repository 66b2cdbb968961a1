//! What lasts: the roles, and what each cannot do without.

/// A command that starts roles and lasts.
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
    /// The supervisor, and what tells people of alerts.
    Supervisor,
}

impl Role {
    /// What the process is called where the spans of many are looked at.
    pub(crate) const fn service(self) -> &'static str {
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

    /// What it cannot do without if it runs alone: nothing of that is in its process.
    pub(super) fn needs(self) -> Needs {
        let (brokers, store) = match self {
            Self::Up { .. } | Self::Broker | Self::Services => (false, false),
            Self::Agents => (true, false),
            Self::Ingestion | Self::Scheduler | Self::Supervisor => (true, true),
        };
        Needs { brokers, store }
    }
}

/// What has to run elsewhere.
pub(super) struct Needs {
    pub(super) brokers: bool,
    pub(super) store: bool,
}
