//! The routes of the API: their paths, and who may use them.
//!
//! Deliberately absent: axum, which routes the admin port. Measured per accepted delivery, its
//! router took 4 % more instructions in user space than this one, and 11 % more with tower-http's
//! limits, time-outs and request ids: 2 to 3 % and 7 % more CPU. The limits of bodies would stay in
//! the handlers: they follow the scope of the caller and the memory of all requests.

use hyper::Method;
use waybill_api::form::{Form, Forms};
use waybill_api::verb::Verb;
use waybill_engine::OperationId;
use waybill_http::auth::Scope;

use super::measure::RouteLabel;
use super::token::StatusToken;

/// The path of operations.
pub const OPERATIONS: &str = "/v1/operations";
/// The path of batches.
pub const BATCH: &str = "/v1/operations:batch";
/// The suffix of an operation's path for its events.
pub const EVENTS: &str = "/events";
/// The pattern of the paths of one operation.
pub const OPERATION: &str = "/v1/operations/{id}";
/// The pattern of the paths of its events.
pub const EVENTS_OF_ONE: &str = "/v1/operations/{id}/events";
/// The pattern of the paths of its verbs.
pub const ASK: &str = "/v1/operations/{id}:{verb}";
/// The path of the API's description.
pub const OPENAPI: &str = "/openapi.json";
/// The path of the page about the API.
pub const DOCS: &str = "/docs";
/// The base path of the pages about problems.
pub const PROBLEMS: &str = "/problems";
/// The pattern of these pages' paths.
pub const PROBLEM: &str = "/problems/{kind}";

/// The path of the operations that have requests in this form; `None` is the general form.
pub fn base(form: Option<Form>) -> &'static str {
    form.map_or(OPERATIONS, |form| form.names.collection)
}

/// The address of an operation's status.
pub fn location(base: &str, id: OperationId, token: Option<StatusToken>) -> String {
    match token {
        Some(token) => format!("{base}/{id}?at={token}"),
        None => format!("{base}/{id}"),
    }
}

/// The resource that a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route<'a> {
    /// The collection of the requests in a form of their own.
    Requests(Form),
    /// One of them.
    Request(Form, &'a str),
    Operations,
    Operation(&'a str),
    Events(&'a str),
    Batch,
    OpenApi,
    Docs,
    /// A file that the page about the API loads.
    DocsFile(&'a str),
    Problem(&'a str),
    Home,
    Nothing,
}

impl Route<'_> {
    /// The route of a path. `forms` are those of the configured workflows.
    pub fn of<'a>(path: &'a str, forms: &Forms) -> Route<'a> {
        let below = |base: &str| {
            path.strip_prefix(base)
                .and_then(|rest| rest.strip_prefix('/'))
                .filter(|id| !id.is_empty() && !id.contains('/'))
        };
        match path {
            OPERATIONS => Route::Operations,
            BATCH => Route::Batch,
            OPENAPI => Route::OpenApi,
            DOCS => Route::Docs,
            "/" => Route::Home,
            _ => None
                .or_else(|| below(OPERATIONS).map(Route::Operation))
                .or_else(|| events_of(path).map(Route::Events))
                .or_else(|| below(PROBLEMS).map(Route::Problem))
                .or_else(|| below(DOCS).map(Route::DocsFile))
                .or_else(|| {
                    forms.iter().find_map(|form| match form.names.collection {
                        collection if collection == path => Some(Route::Requests(form)),
                        collection => below(collection).map(|id| Route::Request(form, id)),
                    })
                })
                .unwrap_or(Route::Nothing),
        }
    }

    /// The scope that a caller needs; `None` if the route is open to all.
    pub fn scope(self, method: &Method) -> Option<Scope> {
        let is_get = method == Method::GET || method == Method::HEAD;
        match self {
            Self::Requests(_) | Self::Batch => Some(Scope::Submit),
            Self::Operations | Self::Request(..) | Self::Operation(_) if is_get => {
                Some(Scope::Read)
            }
            Self::Operations | Self::Request(..) => Some(Scope::Submit),
            Self::Operation(part) => match Verb::of_part(part) {
                Some(Verb::Cancel) => Some(Scope::Submit),
                Some(_) => Some(Scope::Repair),
                // No such verb exists.
                None => Some(Scope::Read),
            },
            Self::Events(_) => Some(Scope::Read),
            Self::OpenApi
            | Self::Docs
            | Self::DocsFile(_)
            | Self::Problem(_)
            | Self::Home
            | Self::Nothing => None,
        }
    }

    /// The label that requests are counted under.
    pub fn label(self, method: &Method, query: Option<&str>) -> RouteLabel {
        let is_get = method == Method::GET || method == Method::HEAD;
        match self {
            _ if method == Method::OPTIONS => RouteLabel::Other,
            Self::Requests(_) if waits(query) => RouteLabel::Wait,
            Self::Operations if waits(query) && !is_get => RouteLabel::Wait,
            Self::Request(..) | Self::Operation(_) if waits(query) && is_get => RouteLabel::Wait,
            Self::Requests(form) => RouteLabel::CreateInForm(form),
            Self::Operations if is_get => RouteLabel::ListOperations,
            Self::Operations => RouteLabel::CreateOperation,
            Self::Request(..) | Self::Operation(_) if !is_get => RouteLabel::Ask,
            Self::Request(form, _) => RouteLabel::GetInForm(form),
            Self::Operation(_) => RouteLabel::GetOperation,
            Self::Events(_) => RouteLabel::Events,
            Self::Batch => RouteLabel::Batch,
            Self::OpenApi | Self::Docs | Self::DocsFile(_) | Self::Problem(_) | Self::Home => {
                RouteLabel::Docs
            }
            Self::Nothing => RouteLabel::Other,
        }
    }
}

/// Whether a request waits for the result, so that its duration does not measure the server.
fn waits(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.contains("wait="))
}

/// The operation, as written in the path, if the path names its events.
fn events_of(path: &str) -> Option<&str> {
    let id = path.strip_prefix(OPERATIONS)?.strip_prefix('/')?;
    let id = id.strip_suffix(EVENTS)?;
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

#[cfg(test)]
mod tests {
    use waybill_drone_delivery::DroneDelivery;

    use super::*;

    fn forms() -> Forms {
        Forms::new([&DroneDelivery as _])
    }

    #[test]
    fn every_route_but_the_documents_needs_a_scope() {
        let (read, submit, repair) = (Scope::Read, Scope::Submit, Scope::Repair);
        for (method, path, scope) in [
            ("POST", "/api/deliveryrequests", Some(submit)),
            ("GET", "/api/deliveryrequests/x", Some(read)),
            ("HEAD", "/api/deliveryrequests/x", Some(read)),
            ("DELETE", "/api/deliveryrequests/x", Some(submit)),
            ("PATCH", "/api/deliveryrequests/x", Some(submit)),
            ("POST", "/v1/operations", Some(submit)),
            ("POST", "/v1/operations:batch", Some(submit)),
            ("GET", "/v1/operations", Some(read)),
            ("GET", "/v1/operations/x", Some(read)),
            ("GET", "/v1/operations/x/events", Some(read)),
            ("POST", "/v1/operations/x:cancel", Some(submit)),
            ("POST", "/v1/operations/x:resubmit", Some(repair)),
            ("POST", "/v1/operations/x:compensate", Some(repair)),
            ("POST", "/v1/operations/x:abandon", Some(repair)),
            ("POST", "/v1/operations/x:retry-compensation", Some(repair)),
            ("POST", "/v1/operations/x:undone", Some(repair)),
            // An unknown verb does not bypass the scope check.
            ("POST", "/v1/operations/x:no-such-verb", Some(read)),
            ("POST", "/v1/operations/x", Some(read)),
            ("PUT", "/v1/operations", Some(submit)),
            ("GET", "/openapi.json", None),
            ("GET", "/docs", None),
            ("GET", "/docs/page.js", None),
            ("GET", "/problems/not-found", None),
            ("GET", "/", None),
            ("GET", "/nothing", None),
        ] {
            let method: Method = method.parse().unwrap();
            let route = Route::of(path, &forms());
            assert_eq!(route.scope(&method), scope, "{method} {path}");
        }
    }

    #[test]
    fn paths_are_distinguished() {
        let forms = forms();
        let form = forms.of(DroneDelivery::WORKFLOW).unwrap();
        let cases = [
            ("/api/deliveryrequests", Route::Requests(form)),
            ("/api/deliveryrequests/a%2Fb", Route::Request(form, "a%2Fb")),
            ("/api/deliveryrequests/", Route::Nothing),
            ("/api/deliveryrequests/a/b", Route::Nothing),
            ("/v1/operations", Route::Operations),
            ("/v1/operations:batch", Route::Batch),
            ("/v1/operations/x", Route::Operation("x")),
            ("/v1/operations/x:cancel", Route::Operation("x:cancel")),
            ("/v1/operations/x/events", Route::Events("x")),
            ("/v1/operations//events", Route::Nothing),
            ("/v1/operations/x/y/events", Route::Nothing),
            ("/v1/operationsx", Route::Nothing),
            ("/problems/not-found", Route::Problem("not-found")),
            ("/docs", Route::Docs),
            ("/docs/page.js", Route::DocsFile("page.js")),
            ("/", Route::Home),
            ("*", Route::Nothing),
        ];
        for (path, route) in cases {
            assert_eq!(Route::of(path, &forms), route, "{path}");
        }
        for path in ["/api/deliveryrequests", "/api/deliveryrequests/x"] {
            assert_eq!(Route::of(path, &Forms::default()), Route::Nothing, "{path}");
        }
    }
}
