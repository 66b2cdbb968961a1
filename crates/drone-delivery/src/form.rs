//! Deliveries as the API takes them: a form of their own, and its part of the API's description.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};
use waybill_api::form::{
    CanonicalInput, FormChange, FormDescription, FormInput, FormNames, OperationText, RequestForm,
    example_view,
};
use waybill_engine::{Priority, Timestamp};
use waybill_http::problem::FieldProblem;

use crate::field::FieldError;
use crate::request::{DeliveryRequest, Reschedule, validate, validate_reschedule};

/// The form of the requests of the workflow `drone-delivery`.
#[derive(Clone, Copy, Debug)]
pub struct DroneDelivery;

impl DroneDelivery {
    /// The name of the workflow.
    pub const WORKFLOW: &'static str = "drone-delivery";

    const NAMES: FormNames = FormNames {
        workflow: Self::WORKFLOW,
        noun: "delivery",
        // As in the reference application, so that its clients work unchanged.
        collection: "/api/deliveryrequests",
        item: "/api/deliveryrequests/{id}",
        id_field: "deliveryId",
        deadline_field: "deadline",
    };
}

/// The canonical JSON of a delivery begins so, followed by its id.
const BEFORE_ID: &str = r#"{"deliveryId":"#;

impl RequestForm for DroneDelivery {
    fn names(&self) -> &'static FormNames {
        &Self::NAMES
    }

    fn read(&self, input: &Value) -> Result<FormInput, Vec<FieldProblem>> {
        let mut delivery = validate(input).map_err(problems)?;
        let id = delivery.delivery_id.take();
        Ok(FormInput {
            id,
            deadline: delivery.deadline.map(micros),
            priority: match delivery.expedited {
                true => Priority::High,
                false => Priority::Normal,
            },
            json: CanonicalInput::new(delivery.canonical_json(), BEFORE_ID.len()),
        })
    }

    fn read_change(&self, change: &Value) -> Result<FormChange, Vec<FieldProblem>> {
        let change = validate_reschedule(change).map_err(problems)?;
        Ok(FormChange {
            fields: change.fields(),
            deadline: change.deadline.map(micros),
        })
    }

    fn check_change(&self, change: &FormChange, input: &str) -> Result<(), FieldProblem> {
        let Ok(request) = serde_json::from_str::<DeliveryRequest>(input) else {
            return Ok(());
        };
        let changed = |name: &str| -> Option<jiff::Timestamp> {
            change.fields.get(name)?.as_str()?.parse().ok()
        };
        let new_deadline = changed("deadline");
        let pickup_time = changed("pickupTime").or(request.pickup_time);
        match (pickup_time, new_deadline.or(request.deadline)) {
            (Some(pickup_time), Some(deadline)) if deadline < pickup_time => {
                Err(match new_deadline {
                    Some(_) => FieldProblem::new(
                        "/deadline",
                        format!("must not be before pickupTime, {pickup_time}"),
                    ),
                    None => FieldProblem::new(
                        "/pickupTime",
                        format!("must not be after deadline, {deadline}"),
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    fn description(&self) -> FormDescription {
        let mut schemas = Vec::new();
        add_schema::<DeliveryRequest>(&mut schemas);
        add_schema::<Reschedule>(&mut schemas);
        FormDescription {
            tag: "Deliveries",
            about: "Deliveries by drone.",
            create: OperationText {
                id: "createDelivery",
                summary: "Create a delivery",
                description: CREATING,
            },
            get: OperationText {
                id: "getDelivery",
                summary: "Get a delivery",
                description: "",
            },
            cancel: OperationText {
                id: "cancelDelivery",
                summary: "Cancel a delivery",
                description: CANCELLING,
            },
            change: OperationText {
                id: "rescheduleDelivery",
                summary: "Reschedule a delivery",
                description: RESCHEDULING,
            },
            schemas,
            request_schema: "DeliveryRequest",
            change_schema: "Reschedule",
            new_request_schema: "NewDelivery",
            view_schema: "Delivery",
            view_about: "A delivery: an operation and its request.",
            view_operation_about: "The operation that performs the delivery.",
            general_input: "a DeliveryRequest",
            general_deadline: "it defaults to the deadline in the input, which must also be in the \
                               future",
            general_priority: "`high` if the input's `expedited` is true",
            request_example: request_example(),
            change_example: json!({"pickupTime": "2030-05-08T21:00:00Z"}),
            view_example: example_view(Self::WORKFLOW, ["account", "package", "delivery"]),
        }
    }
}

const CREATING: &str = "The `deadline` is the time promised to the customer, by which the \
                        operation should be final. A past deadline is refused with 422, and so is \
                        a pickup after the deadline. A repeat is accepted even if its deadline \
                        has passed since.";

const CANCELLING: &str = "Undoes completed steps; the delivery ends Cancelled. Refused with 409 \
                          if the delivery is final, or parked in CompensationFailed. If it \
                          becomes so before the cancel is applied, GET shows `cancel: refused`. A \
                          cancel with the caller's own id may arrive before the request, and \
                          takes precedence over it.";

const RESCHEDULING: &str = "Changes the times of the delivery. Refused if a step that uses a \
                            changed field was already requested. If that happens before the \
                            change is applied, the history shows the refusal.";

fn request_example() -> Value {
    json!({
        "ownerId": "myowner",
        "pickupLocation": "my pickup",
        "dropOffLocation": "drop off",
        "pickupTime": "2030-05-08T20:00:00Z",
        "deadline": "2030-05-08T22:00:00Z",
        "expedited": true,
        "confirmationRequired": "None",
        "packageInfo": {"packageId": "mypackage", "size": "Small", "weight": 10, "tag": "mytag"},
    })
}

/// Adds a type's schema, and the schemas that it refers to.
fn add_schema<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    T::schemas(schemas);
    schemas.push((T::name().into_owned(), T::schema()));
}

fn problems(errors: Vec<FieldError>) -> Vec<FieldProblem> {
    let errors = errors.into_iter();
    errors
        .map(|error| FieldProblem::new(error.pointer, error.detail))
        .collect()
}

fn micros(time: jiff::Timestamp) -> Timestamp {
    Timestamp(time.as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canonical_form_has_the_id_that_it_is_given() {
        let mut named = request_example();
        named["deliveryId"] = "d-1".into();
        let input = DroneDelivery.read(&named).unwrap();
        assert_eq!(input.id.as_deref(), Some("d-1"));
        let as_written = validate(&named).unwrap().canonical_json();
        assert_eq!(input.json.with_id("d-1"), as_written);
        let unnamed = validate(&request_example()).unwrap().canonical_json();
        assert_eq!(input.json.without_id(), unnamed);
    }

    #[test]
    fn the_examples_are_valid() {
        let description = DroneDelivery.description();
        DroneDelivery.read(&description.request_example).unwrap();
        let change = &description.change_example;
        DroneDelivery.read_change(change).unwrap();
    }

    #[test]
    fn paths_of_requests_are_in_the_collection() {
        let FormNames {
            collection, item, ..
        } = DroneDelivery::NAMES;
        assert_eq!(item, format!("{collection}/{{id}}"));
    }
}
