//! The requests of the built-in agents, written by hand without templates.

use waybill_engine::OperationId;

use crate::delivery::Delivery;

/// A step of a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Account,
    Package,
    ThirdParty,
    Drone,
    Delivery,
}

impl Step {
    /// All steps, in the order of the workflow.
    pub const ALL: [Self; 5] = [
        Self::Account,
        Self::Package,
        Self::ThirdParty,
        Self::Drone,
        Self::Delivery,
    ];

    /// Its name, which its agent and its service have too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Package => "package",
            Self::ThirdParty => "third-party",
            Self::Drone => "drone",
            Self::Delivery => "delivery",
        }
    }

    /// The step of this name.
    pub fn named(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|step| step.name().as_bytes() == name)
    }

    /// The step that follows this one in a delivery.
    pub const fn next(self, is_remote: bool) -> Option<Self> {
        match self {
            Self::Account => Some(Self::Package),
            Self::Package => Some(Self::ThirdParty),
            Self::ThirdParty if is_remote => Some(Self::Delivery),
            Self::ThirdParty => Some(Self::Drone),
            Self::Drone => Some(Self::Delivery),
            Self::Delivery => None,
        }
    }
}

/// A request to a service.
#[derive(PartialEq, Eq, Debug)]
pub struct Call {
    /// `GET` or `PUT`.
    pub method: &'static str,
    /// The path of the URL.
    pub path: String,
    /// The body as JSON, or empty.
    pub body: String,
    /// The header `Idempotency-Key`.
    pub idempotency_key: String,
}

impl Call {
    /// The request for a step of a delivery. `drone` is the ID of its drone, if it has one and the
    /// ID is known.
    pub fn new(
        step: Step,
        operation: OperationId,
        delivery: Delivery,
        drone: Option<&str>,
    ) -> Self {
        let owner = delivery.owner();
        let package = delivery.package();
        let place = delivery.place();
        let (method, path, body) = match step {
            Step::Account => ("GET", format!("/api/Account/{owner}"), String::new()),
            Step::Package => (
                "PUT",
                format!("/api/packages/{package}"),
                r#"{"size":"Small","tag":"load","weight":1.5}"#.to_owned(),
            ),
            Step::ThirdParty => (
                "PUT",
                format!("/api/ThirdPartyDeliveries/{operation}"),
                format!(r#"{{"dropOffLocation":"{place}","pickupLocation":"12 Harbour Street"}}"#),
            ),
            Step::Drone => (
                "PUT",
                format!("/api/DroneDeliveries/{operation}"),
                format!(
                    r#"{{"dropOffLocation":"{place}","expedited":false,"packageId":"{package}","pickupLocation":"12 Harbour Street","pickupTime":"2030-01-01T10:00:00Z","size":"Small"}}"#
                ),
            ),
            Step::Delivery => {
                let drone = drone.map_or_else(String::new, |id| format!(r#""droneId":"{id}","#));
                (
                    "PUT",
                    format!("/api/Deliveries/{operation}"),
                    format!(
                        r#"{{"confirmationRequired":"None","deadline":"2030-01-01T18:00:00Z",{drone}"dropOffLocation":"{place}","ownerId":"{owner}","packageId":"{package}","pickupLocation":"12 Harbour Street"}}"#
                    ),
                )
            }
        };
        Self {
            method,
            path,
            body,
            idempotency_key: format!("{operation}/{}", step.name()),
        }
    }
}
