//! The requests to the five services.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode};
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use waybill_clock::wall_clock;
use waybill_http::ArrivingBody;

use super::answer::{Answer, Problem, Unanswered, json_text, no_content, read_body};
use super::control;
use super::faults::{Ending, Refusal};
use super::key::{IdempotencyKey, stable_number};
use super::ledger::{RecordError, Run};
use super::{Service, Site};

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const COMPLETE_BY: &str = "waybill-complete-by";

/// How long a request hangs before its connection is closed.
const HANG_MAX: Duration = Duration::from_secs(60);

/// The maximum length of an ID in a path, in bytes as encoded there.
const ID_BYTES_MAX: usize = 1_024;

/// Answers one request, or leaves it unanswered.
pub(super) async fn answer(
    site: Arc<Site>,
    request: Request<ArrivingBody>,
) -> Result<Answer, Unanswered> {
    let (head, body) = request.into_parts();
    match read(&site, &head, body).await {
        Ok(Asked::Service(call)) => call.apply_fate(&site).await,
        Ok(Asked::Control(answer)) => Ok(answer),
        Err(problem) => Ok(problem.into()),
    }
}

enum Asked {
    /// A request to a service, which faults may still affect.
    Service(Call),
    /// A control request, already answered.
    Control(Answer),
}

async fn read(site: &Site, head: &Parts, body: ArrivingBody) -> Result<Asked, Problem> {
    let path = head.uri.path();
    let Some(resource) = path.strip_prefix("/api/") else {
        let answer = control::answer(site, head, body).await?;
        return Ok(Asked::Control(answer));
    };
    let (service, id) = route(resource).ok_or_else(|| Problem::not_found(path))?;
    let body = read_body(body).await?;
    Call::read(service, id, head, body).map(Asked::Service)
}

/// The service of a path below `/api/`, and the ID in it. Names of collections are compared without
/// case, as in the reference application.
fn route(resource: &str) -> Option<(Service, &str)> {
    let (collection, id) = resource.split_once('/')?;
    let service = [
        ("packages", Service::Package),
        ("DroneDeliveries", Service::Drone),
        ("Deliveries", Service::Delivery),
        ("ThirdPartyDeliveries", Service::ThirdParty),
        ("Account", Service::Account),
    ]
    .into_iter()
    .find(|(name, _)| name.eq_ignore_ascii_case(collection))?
    .1;
    let is_id = !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.contains('/');
    is_id.then_some((service, id))
}

/// A well-formed request to a service.
pub(super) struct Call {
    pub(super) service: Service,
    pub(super) action: CallAction,
}

pub(super) enum CallAction {
    /// Reads an account.
    Check { owner: String },
    /// Makes an effect.
    Run { key: HeaderValue, body: Bytes },
    /// Undoes an effect.
    Undo { key: HeaderValue },
    /// Checks whether an effect exists.
    Probe { key: HeaderValue },
}

impl Call {
    /// Parses a request, or returns its error.
    fn read(service: Service, id: &str, head: &Parts, body: Bytes) -> Result<Self, Problem> {
        let action = match (service, &head.method) {
            (Service::Account, &Method::GET) => CallAction::Check {
                owner: owner_id(id)?.into_owned(),
            },
            (Service::Account, _) => return Err(Problem::method_not_allowed("GET")),
            (_, &Method::PUT) => CallAction::Run {
                key: key_header(head)?,
                body,
            },
            (_, &Method::DELETE) => CallAction::Undo {
                key: key_header(head)?,
            },
            (_, &Method::GET) => CallAction::Probe {
                key: key_header(head)?,
            },
            _ => return Err(Problem::method_not_allowed("GET, PUT, DELETE")),
        };
        if let Some(complete_by) = head.headers.get(COMPLETE_BY) {
            refuse_if_late(complete_by)?;
        }
        Ok(Self { service, action })
    }

    /// The number that decides about random refusals.
    fn number(&self) -> u64 {
        match &self.action {
            CallAction::Check { owner } => stable_number(owner),
            CallAction::Run { key, .. } | CallAction::Undo { key } | CallAction::Probe { key } => {
                parsed(key).number()
            }
        }
    }

    /// The rate of random refusals that applies.
    const fn refusal(&self) -> Refusal {
        match self.action {
            CallAction::Check { .. } | CallAction::Run { .. } | CallAction::Probe { .. } => {
                Refusal::Forward
            }
            CallAction::Undo { .. } => Refusal::Undo,
        }
    }

    /// Performs the call, or applies a fault to it.
    pub(super) async fn apply_fate(self, site: &Arc<Site>) -> Result<Answer, Unanswered> {
        let fate = site
            .faults
            .fate(self.service, self.refusal(), || self.number());
        match fate.ending {
            Ending::Answer => self.perform_after(fate.delay, site, false).await,
            Ending::Refuse => self.perform_after(fate.delay, site, true).await,
            Ending::DoThenHang => {
                self.perform_after(fate.delay, site, false).await?;
                Err(hang(site).await)
            }
            Ending::Error => {
                wait(fate.delay, site).await?;
                let problem = Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "service-error",
                    "the service failed, without effect",
                );
                Ok(problem.into())
            }
            Ending::Hang => Err(hang(site).await),
        }
    }

    /// Performs the call, immediately or after a delay. A delayed call is performed even if the
    /// client disconnects: that is how late actions occur.
    async fn perform_after(
        self,
        delay: Duration,
        site: &Arc<Site>,
        refuse: bool,
    ) -> Result<Answer, Unanswered> {
        if delay.is_zero() {
            return Ok(self.perform(site, refuse).unwrap_or_else(Answer::from));
        }
        let Ok(place) = site.delayed.clone().try_acquire_owned() else {
            let problem = Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too-many-delayed",
                "too many delayed requests are waiting; this one was not performed",
            );
            return Ok(problem.into());
        };
        let site = site.clone();
        let performed = tokio::spawn(async move {
            let _place = place;
            wait(delay, &site).await?;
            Ok(self.perform(&site, refuse).unwrap_or_else(Answer::from))
        });
        performed.await.unwrap_or(Err(Unanswered))
    }

    fn perform(&self, site: &Site, refuse: bool) -> Result<Answer, Problem> {
        match &self.action {
            CallAction::Check { .. } if refuse => Err(refused()),
            CallAction::Check { owner } => check_account(site, owner),
            CallAction::Run { key, body } => {
                let key = parsed(key);
                if refuse && !site.ledger.has_record(self.service, key) {
                    return Err(refused());
                }
                run(site, self.service, key, body)
            }
            CallAction::Undo { key } => {
                let key = parsed(key);
                if refuse && !site.ledger.is_undone(self.service, key) {
                    return Err(undo_refused());
                }
                site.ledger.undo(self.service, key)?;
                Ok(no_content())
            }
            CallAction::Probe { key } => {
                let key = parsed(key);
                if refuse && !site.ledger.has_record(self.service, key) {
                    return Err(refused());
                }
                probe(site, self.service, key)
            }
        }
    }
}

fn check_account(site: &Site, owner: &str) -> Result<Answer, Problem> {
    let prefix = &*site.suspended_prefix;
    if !prefix.is_empty() && owner.starts_with(prefix) {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "owner-suspended",
            "the owner is suspended and may not order",
        ));
    }
    Ok(json_text(StatusCode::OK, r#"{"suspended":false}"#))
}

/// Makes an effect. The answer depends on the key alone, so that repeats get the same one.
fn run(
    site: &Site,
    service: Service,
    key: IdempotencyKey<'_>,
    body: &Bytes,
) -> Result<Answer, Problem> {
    if service == Service::ThirdParty
        && !site.ledger.has_record(service, key)
        && !needs_third_party(&site.remote_marker, body)?
    {
        return Ok(json_text(StatusCode::OK, r#"{"required":false}"#));
    }
    match site.ledger.run(service, key)? {
        Run::Exists => {}
        Run::Undone => return Err(undone_before("this key was performed and then undone")),
        Run::UndoneFirst => {
            return Err(undone_before("this key was undone before it was performed"));
        }
    }
    let document = document(service, key);
    Ok(json_text(StatusCode::CREATED, document))
}

/// Checks whether an effect exists, and returns its original answer.
fn probe(site: &Site, service: Service, key: IdempotencyKey<'_>) -> Result<Answer, Problem> {
    if site.ledger.has_effect(service, key) {
        Ok(json_text(StatusCode::OK, document(service, key)))
    } else {
        Err(Problem::new(
            StatusCode::NOT_FOUND,
            "not-performed",
            "no effect exists for this key",
        ))
    }
}

/// The answer to a forward action.
fn document(service: Service, key: IdempotencyKey<'_>) -> String {
    let number = key.number() >> 16;
    match service {
        Service::Account => unreachable!("an account is only checked"),
        Service::Package => format!(r#"{{"label":"package-{number:012x}"}}"#),
        Service::ThirdParty => {
            format!(r#"{{"required":true,"bookingId":"booking-{number:012x}"}}"#)
        }
        Service::Drone => format!(r#"{{"droneId":"drone-{number:012x}"}}"#),
        Service::Delivery => format!(r#"{{"trackingId":"tracking-{number:012x}"}}"#),
    }
}

/// Whether one of the locations in a body is remote.
fn needs_third_party(marker: &str, body: &[u8]) -> Result<bool, Problem> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Transport<'a> {
        #[serde(borrow)]
        pickup_location: Cow<'a, str>,
        #[serde(borrow, alias = "dropoffLocation")]
        drop_off_location: Cow<'a, str>,
    }

    match serde_json::from_slice::<Transport<'_>>(body) {
        Ok(transport) => Ok(!marker.is_empty()
            && (transport.pickup_location.contains(marker)
                || transport.drop_off_location.contains(marker))),
        Err(error) => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "locations-missing",
            format!("the body must be JSON with pickupLocation and dropOffLocation: {error}"),
        )),
    }
}

fn owner_id(id: &str) -> Result<Cow<'_, str>, Problem> {
    percent_decode_str(id).decode_utf8().map_err(|_| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "owner-id-invalid",
            "the owner's id must be percent-encoded UTF-8",
        )
    })
}

/// The well-formed idempotency key of a request.
fn key_header(head: &Parts) -> Result<HeaderValue, Problem> {
    let Some(header) = head.headers.get(IDEMPOTENCY_KEY) else {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "idempotency-key-missing",
            "the header Idempotency-Key is required",
        ));
    };
    let text = header.to_str().unwrap_or_default();
    match IdempotencyKey::parse(text) {
        Ok(_) => Ok(header.clone()),
        Err(error) => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "idempotency-key-invalid",
            format!("the header Idempotency-Key {error}"),
        )),
    }
}

fn parsed(key: &HeaderValue) -> IdempotencyKey<'_> {
    key.to_str()
        .ok()
        .and_then(|text| IdempotencyKey::parse(text).ok())
        .expect("the key was parsed when the request was read")
}

/// Refuses a request that arrives after its complete-by. One that arrives in time is performed,
/// however long it takes.
fn refuse_if_late(complete_by: &HeaderValue) -> Result<(), Problem> {
    let instant = complete_by
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Timestamp>().ok());
    match instant {
        Some(instant) if instant.as_microsecond() < wall_clock().as_micros() => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "complete-by-past",
            "the request arrived past its complete-by and was not performed",
        )),
        Some(_) => Ok(()),
        None => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "complete-by-invalid",
            "the header Waybill-Complete-By must be an RFC 3339 date and time",
        )),
    }
}

fn refused() -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "refused",
        "the service refuses this permanently, without effect",
    )
}

fn undo_refused() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "undo-refused",
        "the service permanently refuses to undo this",
    )
}

/// Agents treat 409 as permanent.
fn undone_before(cause: &'static str) -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "undone-before",
        format!("{cause}; it can no longer be performed"),
    )
}

impl From<RecordError> for Problem {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Write(source) => {
                tracing::error!(error = %source, "could not write the services' ledger");
                Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "ledger-unwritable",
                    "the effect could not be recorded and was not made",
                )
            }
            RecordError::TooManySteps => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "too-many-steps",
                error.to_string(),
            ),
        }
    }
}

/// Waits, unless the services end first.
async fn wait(delay: Duration, site: &Site) -> Result<(), Unanswered> {
    tokio::select! {
        () = tokio::time::sleep(delay) => Ok(()),
        () = site.stopping.cancelled() => Err(Unanswered),
    }
}

/// Keeps a request open, at most for [`HANG_MAX`].
async fn hang(site: &Site) -> Unanswered {
    match wait(HANG_MAX, site).await {
        Ok(()) | Err(Unanswered) => Unanswered,
    }
}
