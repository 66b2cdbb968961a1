//! An agent's compiled requests.

use std::collections::BTreeMap;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{HeaderMap, Method, Request, Uri};
use waybill_engine::Action;

use super::LoadError;
use super::answer::{AnswerRule, Keep, RulesOf};
use super::config::{HttpConfig, InverseConfig, RequestConfig};
use crate::spans::TRACEPARENT;
use crate::template::{
    Body, KnownVariables, Path, RenderError, Scope, TemplateError, Text, Variables, rfc3339,
};

/// The allowed methods.
const METHODS: [Method; 6] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];

/// Headers of the connection, which templates must not set.
const RESERVED_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers whose values are credentials.
pub(super) const CREDENTIAL_HEADERS: [&str; 5] = [
    "api-key",
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "x-auth-token",
];

/// All requests of an agent, with its base URL.
#[derive(Debug)]
pub(super) struct Plan {
    base: Base,
    idempotency_key_header: HeaderName,
    complete_by_header: HeaderName,
    requests: Requests,
}

/// An agent's requests, by step.
#[derive(Debug)]
pub(super) struct Requests {
    of_any_step: Option<Actions>,
    of_step: BTreeMap<String, Actions>,
}

/// The requests that perform, undo and probe a step.
#[derive(Debug)]
pub(super) struct Actions {
    /// Its path in the agent's file.
    pub(super) key: String,
    pub(super) run: StepPlan,
    compensate: Option<StepPlan>,
    probe: Option<StepPlan>,
}

/// The fixed part of every URL. Scheme and authority are parsed once and never rendered, so that no
/// value can change the host.
#[derive(Debug)]
struct Base {
    scheme: Scheme,
    authority: Authority,
    /// The path prefix, without a trailing slash.
    path: String,
}

/// The request for one step, and the values to keep of its answer.
#[derive(Debug)]
pub(super) struct StepPlan {
    method: Method,
    path: Path,
    headers: Vec<(HeaderName, Text)>,
    body: Option<Body>,
    pub(super) keep: Keep,
    pub(super) answers: Vec<AnswerRule>,
}

impl Plan {
    pub(super) fn compile(config: &HttpConfig, variables: &Variables) -> Result<Self, LoadError> {
        Ok(Self {
            base: Base::parse(&config.base_url, variables)?,
            idempotency_key_header: header_name(
                "idempotencyKeyHeader",
                &config.idempotency_key_header,
            )?,
            complete_by_header: header_name("completeByHeader", &config.complete_by_header)?,
            requests: Requests::compile(config, Some(variables))?,
        })
    }

    pub(super) fn is_tls(&self) -> bool {
        self.base.scheme == Scheme::HTTPS
    }

    /// The scheme and the host of the service.
    pub(super) fn service(&self) -> Uri {
        let uri = Uri::builder()
            .scheme(self.base.scheme.clone())
            .authority(self.base.authority.clone())
            .path_and_query("/");
        uri.build()
            .expect("scheme, authority and path are all given")
    }

    /// Whether the service is on this machine.
    pub(super) fn is_this_machine(&self) -> bool {
        is_this_machine(self.base.authority.host())
    }

    /// Refuses requests that set a header that the agent itself sets.
    pub(super) fn refuse_header(&self, header: &HeaderName) -> Result<(), LoadError> {
        let why = || format!("`auth` sets the header {header}, too: remove one of them");
        for (key, own) in [
            ("idempotencyKeyHeader", &self.idempotency_key_header),
            ("completeByHeader", &self.complete_by_header),
        ] {
            if own == header {
                return Err(LoadError::invalid(key, why()));
            }
        }
        let of_step = self.requests.of_step.values();
        for actions in of_step.chain(&self.requests.of_any_step) {
            for (suffix, plan) in [
                ("", Some(&actions.run)),
                (".compensate", actions.compensate.as_ref()),
                (".probe", actions.probe.as_ref()),
            ] {
                let mut names = plan.into_iter().flat_map(|plan| &plan.headers);
                if names.any(|(name, _)| name == header) {
                    let key = format!("{}{suffix}.headers", actions.key);
                    return Err(LoadError::invalid(key, why()));
                }
            }
        }
        Ok(())
    }

    /// The request for an action of a step; `None` if this agent has none.
    pub(super) fn step(&self, step: &str, action: Action) -> Option<&StepPlan> {
        self.requests.of(step)?.request(action)
    }

    /// Renders the request.
    pub(super) fn render(
        &self,
        step: &StepPlan,
        scope: &Scope<'_>,
    ) -> Result<Request<Bytes>, RenderError> {
        let mut path = String::with_capacity(self.base.path.len() + 96);
        path.push_str(&self.base.path);
        step.path.render_into(scope, &mut path)?;

        let mut headers = HeaderMap::with_capacity(step.headers.len() + 6);
        for (name, template) in &step.headers {
            let value = HeaderValue::try_from(template.render(scope)?)
                .map_err(|_| template.unsuitable("does not fit into a header"))?;
            headers.insert(name.clone(), value);
        }
        headers.insert(
            self.idempotency_key_header.clone(),
            scope_header("idempotencyKey", scope.idempotency_key())?,
        );
        headers.insert(
            self.complete_by_header.clone(),
            scope_header("completeBy", &rfc3339(scope.request().complete_by))?,
        );
        if let Some(traceparent) = scope.request().traceparent.as_deref()
            && let Ok(value) = HeaderValue::from_str(traceparent)
        {
            headers.insert(TRACEPARENT, value);
        }
        let body = match &step.body {
            Some(body) => {
                headers
                    .entry(CONTENT_TYPE)
                    .or_insert(HeaderValue::from_static("application/json"));
                Bytes::from(body.render(scope)?)
            }
            None => Bytes::new(),
        };

        let mut uri = hyper::http::uri::Parts::default();
        uri.scheme = Some(self.base.scheme.clone());
        uri.authority = Some(self.base.authority.clone());
        uri.path_and_query =
            Some(
                PathAndQuery::try_from(path).map_err(|_| RenderError::Unsuitable {
                    placeholder: "path".to_owned(),
                    why: "makes the URL too long",
                })?,
            );
        let uri = Uri::from_parts(uri).expect("scheme, authority and path are all given");

        let mut request = Request::new(body);
        *request.method_mut() = step.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

fn scope_header(placeholder: &str, value: &str) -> Result<HeaderValue, RenderError> {
    HeaderValue::from_str(value).map_err(|_| RenderError::Unsuitable {
        placeholder: placeholder.to_owned(),
        why: "does not fit into a header",
    })
}

impl Base {
    fn parse(text: &str, variables: &Variables) -> Result<Self, LoadError> {
        let text = variables.substitute(text);
        let text = text.map_err(|source| LoadError::Template {
            key: "baseUrl".to_owned(),
            source,
        })?;
        let invalid = |why: &str| LoadError::invalid("baseUrl", format!("{text:?} {why}"));
        // The URL is not quoted: it has a password.
        let authority = text.split("://").nth(1).unwrap_or(&text);
        if authority
            .split('/')
            .next()
            .is_some_and(|it| it.contains('@'))
        {
            let why = "contains a login: use `auth`";
            return Err(LoadError::invalid("baseUrl", why));
        }
        if text.contains(['?', '#']) {
            return Err(invalid("has a query or a fragment"));
        }
        let uri: Uri = text.parse().map_err(|_| invalid("is not a URL"))?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(invalid("has no scheme or no host"));
        };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(invalid("is neither http nor https"));
        }
        let path = parts
            .path_and_query
            .map(|path| path.as_str().trim_end_matches('/').to_owned())
            .unwrap_or_default();
        Ok(Self {
            scheme,
            authority,
            path,
        })
    }
}

impl Requests {
    pub(super) fn compile(
        config: &HttpConfig,
        variables: KnownVariables<'_>,
    ) -> Result<Self, LoadError> {
        if config.request.is_none() && config.steps.is_empty() {
            return Err(LoadError::invalid(
                "request",
                "this key or `steps` is required",
            ));
        }
        Ok(Self {
            of_any_step: config
                .request
                .as_ref()
                .map(|request| Actions::compile("request", request, variables))
                .transpose()?,
            of_step: config
                .steps
                .iter()
                .map(|(step, request)| {
                    let actions = Actions::compile(&format!("steps.{step}"), request, variables)?;
                    Ok((step.clone(), actions))
                })
                .collect::<Result<_, LoadError>>()?,
        })
    }

    /// The requests for a step; `None` if the agent does not know the step.
    pub(super) fn of(&self, step: &str) -> Option<&Actions> {
        self.of_step.get(step).or(self.of_any_step.as_ref())
    }
}

impl Actions {
    /// The request for an action; `None` if there is none.
    pub(super) fn request(&self, action: Action) -> Option<&StepPlan> {
        match action {
            Action::Run => Some(&self.run),
            Action::Compensate => self.compensate.as_ref(),
            Action::Probe => self.probe.as_ref(),
        }
    }

    fn compile(
        key: &str,
        config: &RequestConfig,
        variables: KnownVariables<'_>,
    ) -> Result<Self, LoadError> {
        let inverse = |name: &str, inverse: &InverseConfig, keep: &BTreeMap<String, String>| {
            let request = RequestConfig {
                method: inverse.method.clone(),
                path: inverse.path.as_ref().unwrap_or(&config.path).clone(),
                headers: inverse.headers.clone(),
                body: inverse.body.clone(),
                keep: keep.clone(),
                answers: inverse.answers.clone(),
                compensate: None,
                probe: None,
            };
            StepPlan::compile(&format!("{key}.{name}"), &request, variables, true)
        };
        let nothing = BTreeMap::new();
        Ok(Self {
            key: key.to_owned(),
            run: StepPlan::compile(key, config, variables, false)?,
            compensate: config
                .compensate
                .as_ref()
                .map(|request| inverse("compensate", request, &nothing))
                .transpose()?,
            probe: config
                .probe
                .as_ref()
                .map(|request| inverse("probe", request, &config.keep))
                .transpose()?,
        })
    }
}

impl StepPlan {
    /// The results, as `step.name`, that the request requires, each with the part of the request
    /// that uses it.
    pub(super) fn needed_results(&self) -> Vec<(String, &str)> {
        let of = |part: &str, result| (part.to_owned(), result);
        let path = self.path.needed_results();
        let mut needed: Vec<_> = path.map(|result| of("path", result)).collect();
        for (name, value) in &self.headers {
            let part = format!("headers.{name}");
            needed.extend(value.needed_results().map(|result| of(&part, result)));
        }
        if let Some(body) = &self.body {
            let body = body.needed_results();
            needed.extend(body.into_iter().map(|result| of("body", result)));
        }
        needed
    }

    /// The input fields that the request requires.
    pub(super) fn needed_inputs(&self) -> Vec<String> {
        let mut needed: Vec<_> = self.path.needed_inputs().collect();
        for (_, value) in &self.headers {
            needed.extend(value.needed_inputs());
        }
        if let Some(body) = &self.body {
            needed.extend(body.needed_inputs());
        }
        needed
    }

    fn compile(
        key: &str,
        config: &RequestConfig,
        variables: KnownVariables<'_>,
        may_be_absent: bool,
    ) -> Result<Self, LoadError> {
        let template = |part: &str, source: TemplateError| LoadError::Template {
            key: format!("{key}.{part}"),
            source,
        };
        Ok(Self {
            method: METHODS
                .into_iter()
                .find(|method| method.as_str() == config.method)
                .ok_or_else(|| {
                    LoadError::invalid(
                        format!("{key}.method"),
                        format!(
                            "{:?} is not one of {}",
                            config.method,
                            METHODS.map(|method| method.to_string()).join(", ")
                        ),
                    )
                })?,
            path: Path::compile(&config.path, variables)
                .map_err(|source| template("path", source))?,
            headers: config
                .headers
                .iter()
                .map(|(name, value)| {
                    let key = format!("{key}.headers.{name}");
                    let compiled =
                        Text::compile(value, variables).map_err(|source| LoadError::Template {
                            key: key.clone(),
                            source,
                        })?;
                    let name = header_name(&key, name)?;
                    refuse_credential(&key, &name, value, &compiled)?;
                    Ok((name, compiled))
                })
                .collect::<Result<_, LoadError>>()?,
            body: config
                .body
                .as_ref()
                .map(|body| Body::compile(body, variables))
                .transpose()
                .map_err(|source| template("body", source))?,
            keep: Keep::compile(&format!("{key}.keep"), &config.keep)?,
            answers: RulesOf {
                key: &format!("{key}.answers"),
                keep: &config.keep,
                may_be_absent,
            }
            .compile(&config.answers)?,
        })
    }
}

/// Whether a host name or address is this machine's own.
pub(super) fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let address = address.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Refuses a header with a literal credential, or with an environment variable.
fn refuse_credential(
    key: &str,
    name: &HeaderName,
    template: &str,
    value: &Text,
) -> Result<(), LoadError> {
    let is_of_environment = template.contains("${");
    let is_literal = value.is_fixed() || has_literal_besides_scheme(template);
    if is_of_environment || (CREDENTIAL_HEADERS.contains(&name.as_str()) && is_literal) {
        let what = match is_of_environment {
            true => "`${...}` is not replaced in this file",
            false => "holds a credential, visible to everyone who can read this file",
        };
        return Err(LoadError::invalid(
            key,
            format!(
                "{what}. Put the credential into a file, and name that file under `http`: \
                 `auth: {{ bearer: {{ tokenFile: /run/secrets/token }} }}`; instead of `bearer` also \
                 `basic`, `apiKey` or `oauth2`"
            ),
        ));
    }
    Ok(())
}

/// Whether a template has more literal text than the name of a scheme: `Bearer {{input.token}}`.
fn has_literal_besides_scheme(template: &str) -> bool {
    let parts = template.split("{{").enumerate();
    let literals = parts.map(|(index, part)| match index {
        0 => part,
        _ => part.split_once("}}").map_or("", |(_, literal)| literal),
    });
    let literals: Vec<&str> = literals.flat_map(str::split_whitespace).collect();
    match literals[..] {
        [] => false,
        [scheme] => !scheme.bytes().all(|byte| byte.is_ascii_alphabetic()),
        _ => true,
    }
}

pub(super) fn header_name(key: &str, name: &str) -> Result<HeaderName, LoadError> {
    HeaderName::from_bytes(name.as_bytes())
        .ok()
        .filter(|name| !RESERVED_HEADERS.contains(&name.as_str()))
        .ok_or_else(|| {
            LoadError::invalid(
                key,
                format!("{name:?} is not a header that an agent may set"),
            )
        })
}
