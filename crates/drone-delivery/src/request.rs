//! A delivery request: its fields, and the check that names every wrong one.
//!
//! The fields are those of the public "drone delivery" reference application, so that its clients
//! work unchanged. For that reason `dropoffLocation` is accepted as `dropOffLocation`, an optional
//! field may be `null`, and an empty `deadline` means none.
//!
//! What must hold: a valid request has one canonical form, independent of the order, spelling and
//! time zone of its fields. That form is the operation's input. Workflow templates refer to it, and
//! it distinguishes a repeat from a conflict. It has every field; absent ones are `null`.
//!
//! Deliberately absent: a check that times are in the future, because its result would change.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::field::{FieldError, pointer_to, shown};

/// The maximum number of characters of an ID, a location or a tag.
pub const TEXT_CHARS_MAX: usize = 256;

/// A request to deliver one package by drone.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeliveryRequest {
    /// The caller's own id for the delivery. With it, sending the request again is safe.
    #[serde(default)]
    #[schema(max_length = 256, example = "mydelivery")]
    pub delivery_id: Option<String>,
    /// The account that orders the delivery.
    #[schema(min_length = 1, max_length = 256, example = "myowner")]
    pub owner_id: String,
    /// Where the package is.
    #[schema(min_length = 1, max_length = 256, example = "my pickup")]
    pub pickup_location: String,
    /// Where the package goes.
    #[serde(alias = "dropoffLocation")]
    #[schema(min_length = 1, max_length = 256, example = "drop off")]
    pub drop_off_location: String,
    /// When to pick up the package: an ISO 8601 date and time; UTC if it has no offset.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime, example = "2030-05-08T20:00:00Z")]
    pub pickup_time: Option<Timestamp>,
    /// When the package should be delivered at the latest: an ISO 8601 date and time, not before
    /// `pickupTime`.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime, example = "2030-05-08T22:00:00Z")]
    pub deadline: Option<Timestamp>,
    /// Whether the delivery is urgent.
    #[serde(default)]
    pub expedited: bool,
    /// How the recipient confirms the delivery.
    #[serde(default)]
    pub confirmation_required: ConfirmationRequired,
    /// The package.
    pub package_info: PackageInfo,
}

/// The package.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PackageInfo {
    /// The package's id.
    #[schema(min_length = 1, max_length = 256, example = "mypackage")]
    pub package_id: String,
    /// The size of container that the package needs.
    pub size: PackageSize,
    /// The weight, above 0.
    #[serde(default)]
    #[schema(exclusive_minimum = 0.0, example = 10.0)]
    pub weight: Option<f64>,
    /// The sender's own label.
    #[serde(default)]
    #[schema(max_length = 256, example = "mytag")]
    pub tag: Option<String>,
}

/// The size of container that a package needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs, reason = "the names say it")]
pub enum PackageSize {
    Small,
    Medium,
    Large,
}

/// How the recipient confirms a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ConfirmationRequired {
    FingerPrint,
    Picture,
    Voice,
    #[default]
    None,
}

impl DeliveryRequest {
    /// The canonical JSON of this request: camelCase names in a fixed order, every field present
    /// (`null` if absent), times in UTC.
    #[must_use]
    pub fn canonical_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("string keys and finite numbers always serialize")
    }
}

/// Checks a delivery request.
///
/// # Errors
///
/// Every wrong field, with what was expected: missing, of another type, unknown, not an allowed
/// value, empty or too long, not a number above 0, not a date and time, or a deadline before the
/// pickup.
pub fn validate(request: &Value) -> Result<DeliveryRequest, Vec<FieldError>> {
    let mut errors = Vec::new();
    match delivery_request(request, &mut errors) {
        Some(request) if errors.is_empty() => Ok(request),
        _ => Err(errors),
    }
}

/// A change of one or both times of a delivery. An omitted time stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reschedule {
    /// The new pickup time: an ISO 8601 date and time; UTC if it has no offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2030-05-08T21:00:00Z")]
    pub pickup_time: Option<Timestamp>,
    /// The new deadline: an ISO 8601 date and time, not before `pickupTime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2030-05-08T23:00:00Z")]
    pub deadline: Option<Timestamp>,
}

impl Reschedule {
    /// The changed fields and their new values, in the format of
    /// [`DeliveryRequest::canonical_json`].
    #[must_use]
    pub fn fields(&self) -> Map<String, Value> {
        [
            ("pickupTime", self.pickup_time),
            ("deadline", self.deadline),
        ]
        .into_iter()
        .filter_map(|(name, time)| Some((name.to_owned(), time?.to_string().into())))
        .collect()
    }
}

/// Checks a change of a delivery. If the change names only one of two times, the function cannot
/// check their order.
///
/// # Errors
///
/// Every wrong field, with what was expected: one that cannot be changed, not a date and time
/// (`null` is refused, because a time can be changed but not removed), or a deadline before the
/// pickup. An empty change is wrong as a whole.
pub fn validate_reschedule(change: &Value) -> Result<Reschedule, Vec<FieldError>> {
    let mut errors = Vec::new();
    let reschedule = reschedule(change, &mut errors);
    match reschedule {
        Some(reschedule) if errors.is_empty() => Ok(reschedule),
        _ => Err(errors),
    }
}

fn reschedule(value: &Value, errors: &mut Vec<FieldError>) -> Option<Reschedule> {
    let mut fields = Fields::of(value, "", errors)?;
    let pickup_time = fields.new_instant("pickupTime");
    let deadline = fields.new_instant("deadline");
    fields.refuse_early_deadline("deadline", deadline, pickup_time);
    fields.refuse_others("cannot be changed; the changeable fields are");
    if fields.object.is_empty() {
        let detail = "must name pickupTime, deadline or both";
        fields.errors.push(FieldError::new("", detail));
    }
    Some(Reschedule {
        pickup_time,
        deadline,
    })
}

fn delivery_request(value: &Value, errors: &mut Vec<FieldError>) -> Option<DeliveryRequest> {
    let mut fields = Fields::of(value, "", errors)?;
    let delivery_id = fields.text("deliveryId", Text::Id);
    let owner_id = fields.required("ownerId", |fields, name| fields.text(name, Text::Id));
    let pickup_location = fields.required("pickupLocation", |fields, name| {
        fields.text(name, Text::Words)
    });
    let drop_off = fields.one_of_two_names("dropOffLocation", "dropoffLocation");
    let drop_off_location =
        fields.required(drop_off, |fields, name| fields.text(name, Text::Words));
    let pickup_time = fields.instant("pickupTime");
    let deadline = fields.deadline("deadline", pickup_time);
    let expedited = fields.flag("expedited");
    let confirmation_required = fields.choice(
        "confirmationRequired",
        &[
            ("FingerPrint", ConfirmationRequired::FingerPrint),
            ("Picture", ConfirmationRequired::Picture),
            ("Voice", ConfirmationRequired::Voice),
            ("None", ConfirmationRequired::None),
        ],
    );
    let package_info = fields.required("packageInfo", |fields, name| {
        let value = fields.present(name)?;
        package_info(value, &pointer_to("", name), fields.errors)
    });
    fields.refuse_unknown();
    Some(DeliveryRequest {
        delivery_id,
        owner_id: owner_id?,
        pickup_location: pickup_location?,
        drop_off_location: drop_off_location?,
        pickup_time,
        deadline,
        expedited: expedited.unwrap_or_default(),
        confirmation_required: confirmation_required.unwrap_or_default(),
        package_info: package_info?,
    })
}

fn package_info(value: &Value, at: &str, errors: &mut Vec<FieldError>) -> Option<PackageInfo> {
    let mut fields = Fields::of(value, at, errors)?;
    let package_id = fields.required("packageId", |fields, name| fields.text(name, Text::Id));
    let size = fields.required("size", |fields, name| {
        fields.choice(
            name,
            &[
                ("Small", PackageSize::Small),
                ("Medium", PackageSize::Medium),
                ("Large", PackageSize::Large),
            ],
        )
    });
    let weight = fields.number_above_zero("weight");
    let tag = fields.text("tag", Text::Label);
    fields.refuse_unknown();
    Some(PackageInfo {
        package_id: package_id?,
        size: size?,
        weight,
        tag,
    })
}

/// The use of a string, which determines its allowed values.
#[derive(Clone, Copy)]
enum Text {
    /// Part of a URL, in which `.` and `..` would name another resource.
    Id,
    /// Text for people.
    Words,
    /// As `Words`, but may be empty.
    Label,
}

/// The fields of one object. Each reader returns `None` for an absent field, and for a wrong one
/// after adding it to `errors`.
struct Fields<'a> {
    object: &'a Map<String, Value>,
    at: &'a str,
    known: Vec<&'static str>,
    errors: &'a mut Vec<FieldError>,
}

impl<'a> Fields<'a> {
    fn of(value: &'a Value, at: &'a str, errors: &'a mut Vec<FieldError>) -> Option<Self> {
        match value.as_object() {
            Some(object) => Some(Self {
                object,
                at,
                known: Vec::new(),
                errors,
            }),
            None => {
                errors.push(FieldError::new(
                    at,
                    format!("must be an object, not {}", shown(value)),
                ));
                None
            }
        }
    }

    /// The field's value; `null` counts as absent.
    fn present(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&mut self, name: &str, detail: impl Into<String>) {
        self.errors
            .push(FieldError::new(pointer_to(self.at, name), detail));
    }

    fn required<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Self, &'static str) -> Option<T>,
    ) -> Option<T> {
        match self.object.get(name) {
            None => {
                self.known.push(name);
                self.wrong(name, "is required");
                None
            }
            Some(Value::Null) => {
                self.known.push(name);
                self.wrong(name, "is required and must not be null");
                None
            }
            Some(_) => read(self, name),
        }
    }

    /// Which of a field's two names was used. If both were, adds an error for the second one.
    fn one_of_two_names(&mut self, name: &'static str, other: &'static str) -> &'static str {
        match (
            self.object.contains_key(name),
            self.object.contains_key(other),
        ) {
            (true, true) => {
                self.known.push(other);
                self.wrong(
                    other,
                    format!("is another name of {name}: give one of them"),
                );
                name
            }
            (false, true) => other,
            (_, false) => name,
        }
    }

    fn text(&mut self, name: &'static str, kind: Text) -> Option<String> {
        let value = self.present(name)?;
        let Some(text) = value.as_str() else {
            self.wrong(name, format!("must be a string, not {}", shown(value)));
            return None;
        };
        let blank = text.trim().is_empty();
        let detail = match kind {
            Text::Id | Text::Words if blank => "must not be empty".to_owned(),
            _ if text.chars().count() > TEXT_CHARS_MAX => {
                format!("must have at most {TEXT_CHARS_MAX} characters")
            }
            _ if text.chars().any(char::is_control) => {
                "must not contain control characters".to_owned()
            }
            Text::Id if matches!(text, "." | "..") => "must not be `.` or `..`".to_owned(),
            Text::Id | Text::Words | Text::Label => return Some(text.to_owned()),
        };
        self.wrong(name, detail);
        None
    }

    fn flag(&mut self, name: &'static str) -> Option<bool> {
        let value = self.present(name)?;
        if !value.is_boolean() {
            self.wrong(name, format!("must be true or false, not {}", shown(value)));
        }
        value.as_bool()
    }

    fn choice<T: Copy>(&mut self, name: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let value = self.present(name)?;
        let chosen = choices
            .iter()
            .find(|(choice, _)| value.as_str() == Some(choice))
            .map(|(_, chosen)| *chosen);
        if chosen.is_none() {
            let names: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
            self.wrong(
                name,
                format!("must be one of {}, not {}", names.join(", "), shown(value)),
            );
        }
        chosen
    }

    fn number_above_zero(&mut self, name: &'static str) -> Option<f64> {
        let value = self.present(name)?;
        let number = value
            .as_f64()
            .filter(|number| number.is_finite() && *number > 0.0);
        if number.is_none() {
            self.wrong(
                name,
                format!("must be a number above 0, not {}", shown(value)),
            );
        }
        number
    }

    fn instant(&mut self, name: &'static str) -> Option<Timestamp> {
        let value = self.present(name)?;
        self.instant_of(name, value)
    }

    /// As [`Fields::instant`], but refuses `null`.
    fn new_instant(&mut self, name: &'static str) -> Option<Timestamp> {
        self.known.push(name);
        let value = self.object.get(name)?;
        self.instant_of(name, value)
    }

    fn instant_of(&mut self, name: &'static str, value: &Value) -> Option<Timestamp> {
        let instant = value.as_str().and_then(date_and_time);
        if instant.is_none() {
            self.wrong(
                name,
                format!(
                    "must be an ISO 8601 date and time such as 2030-05-08T20:00:00Z, not {}",
                    shown(value)
                ),
            );
        }
        instant
    }

    fn deadline(&mut self, name: &'static str, pickup: Option<Timestamp>) -> Option<Timestamp> {
        if self.object.get(name).and_then(Value::as_str) == Some("") {
            self.known.push(name);
            return None;
        }
        let deadline = self.instant(name);
        self.refuse_early_deadline(name, deadline, pickup);
        deadline
    }

    fn refuse_early_deadline(
        &mut self,
        name: &'static str,
        deadline: Option<Timestamp>,
        pickup: Option<Timestamp>,
    ) {
        if let (Some(deadline), Some(pickup)) = (deadline, pickup)
            && deadline < pickup
        {
            self.wrong(name, "must not be before pickupTime");
        }
    }

    fn refuse_unknown(&mut self) {
        self.refuse_others("is unknown; the fields are");
    }

    /// Adds an error for each unknown field: `detail`, followed by the names of the known fields.
    fn refuse_others(&mut self, detail: &str) {
        let object = self.object;
        for name in object.keys() {
            if !self.known.contains(&name.as_str()) {
                let known = self.known.join(", ");
                self.wrong(name, format!("{detail} {known}"));
            }
        }
    }
}

/// Reads an ISO 8601 date and time; one without an offset is UTC.
fn date_and_time(text: &str) -> Option<Timestamp> {
    if !text.contains(['T', 't', ' ']) {
        return None;
    }
    text.parse::<Timestamp>().ok().or_else(|| {
        text.parse::<jiff::civil::DateTime>()
            .ok()?
            .to_zoned(jiff::tz::TimeZone::UTC)
            .ok()
            .map(|zoned| zoned.timestamp())
    })
}
