//! The parts of a request that are outside its body.

use hyper::HeaderMap;
use hyper::header::HeaderName;
use waybill_http::auth::{Caller, Tenants};
use waybill_http::problem::{FieldProblem, Problem};
use waybill_telemetry::trace::TraceContext;

use crate::id::CallerId;

/// The header with the caller's id of a request.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// The header with the trace context.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The parts of a request that are outside its body.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Envelope {
    pub(super) idempotency_key: Option<CallerId>,
    pub(super) traceparent: Option<String>,
    /// The tenants that the sender may act for.
    pub(super) tenants: Tenants,
    /// The wrong headers.
    pub(super) wrong: Vec<FieldProblem>,
}

impl Envelope {
    /// Reads a request's head. Wrong headers are reported together with wrong fields of the body.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut wrong = Vec::new();
        let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
        let key = match (keys.next(), keys.next()) {
            (None, _) => Ok(None),
            (Some(key), None) => CallerId::of_header(key.as_bytes())
                .map(Some)
                .map_err(|error| error.to_string()),
            (Some(_), Some(_)) => Err("must be given once".to_owned()),
        };
        let idempotency_key = key.unwrap_or_else(|detail| {
            wrong.push(FieldProblem::of_header(IDEMPOTENCY_KEY, detail));
            None
        });
        Self {
            idempotency_key,
            traceparent: traceparent(headers),
            tenants: Tenants::All,
            wrong,
        }
    }

    /// Refuses wrong headers, for a request without a body.
    pub fn checked(self) -> Result<Self, Problem> {
        match self.wrong.is_empty() {
            true => Ok(self),
            false => Err(Problem::invalid(self.wrong)),
        }
    }

    /// Sets the sender.
    pub fn from(self, caller: &Caller) -> Self {
        Self {
            tenants: caller.tenants().clone(),
            ..self
        }
    }

    /// Whether the request has an `Idempotency-Key`.
    pub fn has_key(&self) -> bool {
        self.idempotency_key.is_some()
    }

    /// The `Idempotency-Key`, if the request has one.
    pub fn into_key(self) -> Option<CallerId> {
        self.idempotency_key
    }
}

fn traceparent(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(TRACEPARENT)?.to_str().ok()?;
    TraceContext::parse(value).map(|_| value.to_owned())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;
    use waybill_http::problem::Kind;

    #[test]
    fn key_and_trace_context_are_read_from_headers() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_static("\"k-1\""));
        headers.insert("traceparent", HeaderValue::from_static(trace));
        let envelope = Envelope::of(&headers);
        assert_eq!(
            envelope.idempotency_key.as_ref().unwrap().to_string(),
            "k-1"
        );
        assert_eq!(envelope.traceparent.as_deref(), Some(trace));

        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        ] {
            headers.insert("traceparent", HeaderValue::from_str(bad).unwrap());
            assert_eq!(Envelope::of(&headers).traceparent, None, "{bad}");
        }

        let wrong = |headers: &HeaderMap| {
            let refused = Envelope::of(headers).checked().unwrap_err();
            assert_eq!(refused.kind, Kind::InvalidValues);
            refused.errors[0].place().to_owned()
        };
        headers.append("idempotency-key", HeaderValue::from_static("k-2"));
        assert_eq!(wrong(&headers), IDEMPOTENCY_KEY);
        headers.insert("idempotency-key", HeaderValue::from_static("a b"));
        assert_eq!(wrong(&headers), IDEMPOTENCY_KEY);
    }
}
