//! Access control of the admin listener.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use metrics::Counter;
use waybill_http::auth::{Auth, DENIALS, Denied, Scope, Tenants};
use waybill_http::problem::{Kind, Problem};
use waybill_telemetry::{Declared, Metric};

use super::Admin;

const UNAUTHORIZED: Metric<Counter, 1> = Metric::new(
    "waybill_admin_unauthorized_total",
    "Requests to the admin port that failed authentication or authorization",
    ["reason"],
);

/// All metrics of the guard.
pub const METRICS: &[&dyn Declared] = &[&UNAUTHORIZED];

/// The access that a request needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Needs {
    /// No access: probes, Prometheus, and the pages about problems.
    Nothing,
    /// Read access to the work of all tenants.
    Read,
    /// Permission to change shards, partitions and the log filter, and to make backups.
    Change,
}

impl Needs {
    /// Every path is restricted unless it is listed as open.
    fn of(method: &Method, path: &str) -> Self {
        let is_open = matches!(path, "/livez" | "/readyz" | "/metrics");
        match is_open || path.starts_with("/problems/") {
            true => Self::Nothing,
            false if method == Method::GET || method == Method::HEAD => Self::Read,
            false => Self::Change,
        }
    }
}

/// The denied requests, by reason.
#[derive(Clone, Debug)]
pub(super) struct Denials([Counter; DENIALS.len()]);

impl Denials {
    pub(super) fn new() -> Self {
        Self(DENIALS.map(|reason| UNAUTHORIZED.of([reason])))
    }

    fn count(&self, problem: &Problem) {
        let counted = DENIALS.iter().zip(&self.0);
        let mut counted = counted.filter(|(reason, _)| problem.denial() == Some(reason));
        if let Some((_, counter)) = counted.next() {
            counter.increment(1);
        }
    }
}

/// Passes a request on if its caller has permission to send it, and refuses it with the reason
/// otherwise.
pub(super) async fn guard(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let (method, uri) = (request.method(), request.uri());
    if let Err(foreign) = admin.hosts.check(method, uri, request.headers()) {
        return Problem::from(foreign).into_response();
    }
    let needs = Needs::of(method, uri.path());
    match admit(&admin.auth, needs, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            admin.denials.count(&problem);
            problem.into_response()
        }
    }
}

fn admit(auth: &Auth, needs: Needs, headers: &HeaderMap) -> Result<(), Problem> {
    let caller = match needs {
        Needs::Nothing => return Ok(()),
        Needs::Read | Needs::Change => auth.caller(headers)?,
    };
    let may = |scope| caller.may(scope);
    match needs {
        Needs::Read if !may(Scope::Read) && !may(Scope::Admin) => {
            Err(Denied::Scope(Scope::Read).into())
        }
        Needs::Change if !may(Scope::Admin) => Err(Denied::Scope(Scope::Admin).into()),
        _ if *caller.tenants() != Tenants::All => {
            let detail = "The token is for one tenant; use a token for all tenants.";
            Err(Problem::new(Kind::AnotherTenant, detail))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_probes_metrics_and_problem_pages_need_no_token() {
        for (method, path, needs) in [
            ("GET", "/livez", Needs::Nothing),
            ("GET", "/readyz", Needs::Nothing),
            ("GET", "/metrics", Needs::Nothing),
            ("GET", "/problems/not-found", Needs::Nothing),
            ("GET", "/schedulers", Needs::Read),
            ("HEAD", "/shards", Needs::Read),
            ("GET", "/partitions", Needs::Read),
            ("GET", "/process", Needs::Read),
            ("PUT", "/schedulers/2", Needs::Change),
            ("PUT", "/shards", Needs::Change),
            ("PUT", "/partitions", Needs::Change),
            ("POST", "/backup", Needs::Change),
            ("GET", "/metrics/", Needs::Read),
            ("GET", "/nothing", Needs::Read),
            ("POST", "/nothing", Needs::Change),
        ] {
            let method: Method = method.parse().unwrap();
            assert_eq!(Needs::of(&method, path), needs, "{method} {path}");
        }
    }
}
