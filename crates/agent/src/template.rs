//! Templates: text, header values, URL paths and JSON bodies with `{{placeholders}}`.
//!
//! A template is compiled and its placeholders are checked once, when the agent's file is loaded.
//! What must hold: **a value stays a value**. In a path it cannot add a segment, climb out of one
//! or start a query; in a JSON string it cannot end the string; in a header it cannot start another
//! line.
//!
//! Deliberately absent: expressions, loops and conditions. An agent that needs them is written in
//! Rust.

mod body;
mod escape;
mod path;
mod variables;

use std::borrow::Cow;
use std::cell::OnceCell;

use serde_json::value::RawValue;
use waybill_engine::{StepRequest, Timestamp};

use crate::raw;
use escape::{Escape, push_json_string};

pub(crate) use body::Body;
pub(crate) use escape::percent_encoded;
pub(crate) use path::Path;
pub use variables::Variables;

/// Why a template cannot be loaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TemplateError {
    /// A `{{` without its `}}`.
    #[error("`{{{{` is not closed by `}}}}` in {template:?}")]
    Unclosed {
        /// The template.
        template: String,
    },
    /// A placeholder in single braces.
    #[error(
        "`{{{placeholder}}}` has single braces: placeholders have two, as in `{{{{input.name}}}}`"
    )]
    SingleBraces {
        /// The text between the braces.
        placeholder: String,
    },
    /// A placeholder that refers to no known value.
    #[error(
        "`{{{{{placeholder}}}}}` is unknown: use input.<path>, results.<step>.<name>, vars.<name>, \
         operation, workflow, step, attempt, tenant, idempotencyKey or completeBy"
    )]
    UnknownPlaceholder {
        /// The text between the braces.
        placeholder: String,
    },
    /// A variable without a value.
    #[error("`{placeholder}` is an unknown variable; {known}")]
    UnknownVariable {
        /// The placeholder.
        placeholder: String,
        /// The known ones.
        known: String,
    },
    /// A variable in a base URL without its closing braces.
    #[error("`{open}` is not closed in {template:?}")]
    UnclosedVariable {
        /// The opening braces.
        open: String,
        /// The base URL.
        template: String,
    },
    /// A path template that is not a safe absolute path.
    #[error("the path template {template:?} {why}")]
    Path {
        /// The template.
        template: String,
        /// The defect.
        why: &'static str,
    },
}

/// Why a template cannot be rendered for one request. A retry does not help.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RenderError {
    /// A value that is missing, or null.
    #[error("`{{{{{placeholder}}}}}` has no value")]
    Missing {
        /// The text between the braces.
        placeholder: String,
    },
    /// A value that is not allowed at its position.
    #[error("the value of `{{{{{placeholder}}}}}` {why}")]
    Unsuitable {
        /// The text between the braces.
        placeholder: String,
        /// Why it is not allowed.
        why: &'static str,
    },
    /// The operation's input is not JSON.
    #[error("the operation's input is not JSON: {cause}")]
    Input {
        /// The parser's message.
        cause: String,
    },
}

impl RenderError {
    /// The stable code of this failure in replies.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "template-value-missing",
            Self::Unsuitable { .. } => "template-value-unsuitable",
            Self::Input { .. } => "input-not-json",
        }
    }
}

/// The values of placeholders, for one request.
pub(crate) struct Scope<'a> {
    request: &'a StepRequest,
    idempotency_key: &'a str,
    /// The input, checked once to be JSON. Values are found in it without copying.
    input: OnceCell<Result<&'a RawValue, String>>,
}

impl<'a> Scope<'a> {
    pub(crate) fn new(request: &'a StepRequest, idempotency_key: &'a str) -> Self {
        Self {
            request,
            idempotency_key,
            input: OnceCell::new(),
        }
    }

    pub(crate) fn request(&self) -> &'a StepRequest {
        self.request
    }

    pub(crate) fn idempotency_key(&self) -> &'a str {
        self.idempotency_key
    }

    fn input(&self) -> Result<&'a RawValue, RenderError> {
        let request = self.request;
        let input = self.input.get_or_init(|| {
            serde_json::from_slice(&request.input).map_err(|error| error.to_string())
        });
        input.clone().map_err(|cause| RenderError::Input { cause })
    }
}

/// A wall-clock instant as RFC 3339 in UTC, with microseconds only if they are not zero.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros())
        .unwrap_or(jiff::Timestamp::MAX)
        .to_string()
}

/// The variables that resolve placeholders; `None` accepts every variable.
pub(crate) type KnownVariables<'a> = Option<&'a Variables>;

/// One `{{placeholder}}`.
#[derive(Clone, PartialEq, Debug)]
struct Placeholder {
    /// As written, for messages.
    text: Box<str>,
    root: Root,
    /// Written with a trailing `?`: renders as nothing if the value is missing.
    optional: bool,
}

#[derive(Clone, PartialEq, Debug)]
enum Root {
    Input(Vec<Box<str>>),
    /// `step.name`, the key of a result.
    Result(Box<str>),
    /// The value of a variable.
    Variable(Box<str>),
    Operation,
    Workflow,
    Step,
    Attempt,
    Tenant,
    IdempotencyKey,
    CompleteBy,
}

/// A placeholder's value.
enum Found<'a> {
    /// A value of the input that is not a string.
    Json(&'a RawValue),
    Text(Cow<'a, str>),
    Number(u32),
}

impl<'a> Found<'a> {
    fn of_input(value: &'a RawValue) -> Result<Self, RenderError> {
        match raw::string(value) {
            Ok(Some(text)) => Ok(Self::Text(text)),
            Ok(None) => Ok(Self::Json(value)),
            Err(error) => Err(RenderError::Input {
                cause: error.to_string(),
            }),
        }
    }
}

impl Placeholder {
    fn parse(inner: &str, variables: KnownVariables<'_>) -> Result<Self, TemplateError> {
        let trimmed = inner.trim();
        let (name, optional) = match trimmed.strip_suffix('?') {
            Some(name) => (name, true),
            None => (trimmed, false),
        };
        let unknown = || TemplateError::UnknownPlaceholder {
            placeholder: trimmed.to_owned(),
        };
        let mut parts = name.split('.');
        let root = parts.next().unwrap_or_default();
        let rest: Vec<Box<str>> = parts.map(Into::into).collect();
        if rest.iter().any(|part| !is_name(part)) {
            return Err(unknown());
        }
        let root = match (root, rest.len()) {
            ("input", _) => Root::Input(rest),
            ("results", 2) => Root::Result(rest.join(".").into()),
            ("vars", 1) => Root::Variable(match variables {
                Some(variables) => variables.configured(&rest[0])?.into(),
                None => Box::default(),
            }),
            ("operation", 0) => Root::Operation,
            ("workflow", 0) => Root::Workflow,
            ("step", 0) => Root::Step,
            ("attempt", 0) => Root::Attempt,
            ("tenant", 0) => Root::Tenant,
            ("idempotencyKey", 0) => Root::IdempotencyKey,
            ("completeBy", 0) => Root::CompleteBy,
            _ => return Err(unknown()),
        };
        Ok(Self {
            text: trimmed.into(),
            root,
            optional,
        })
    }

    /// The value; `None` if it is missing (or null) and the placeholder is optional.
    fn find<'a>(&'a self, scope: &'a Scope<'_>) -> Result<Option<Found<'a>>, RenderError> {
        let request = scope.request;
        let found = match &self.root {
            Root::Input(path) => raw::find(scope.input()?, path)
                .map(Found::of_input)
                .transpose()?,
            Root::Result(name) => request
                .results
                .iter()
                .find(|(key, _)| **key == **name)
                .map(|(_, value)| Found::Text(Cow::Borrowed(value))),
            Root::Variable(value) => Some(Found::Text(Cow::Borrowed(value))),
            Root::Operation => Some(Found::Text(request.operation.to_string().into())),
            Root::Workflow => Some(Found::Text(Cow::Borrowed(&request.workflow))),
            Root::Step => Some(Found::Text(Cow::Borrowed(&request.step))),
            Root::Attempt => Some(Found::Number(request.attempt.0)),
            Root::Tenant => Some(Found::Text(Cow::Borrowed(&request.tenant))),
            Root::IdempotencyKey => Some(Found::Text(Cow::Borrowed(scope.idempotency_key))),
            Root::CompleteBy => Some(Found::Text(rfc3339(request.complete_by).into())),
        };
        if found.is_none() && !self.optional {
            return Err(RenderError::Missing {
                placeholder: self.text.to_string(),
            });
        }
        Ok(found)
    }

    /// The result, as `step.name`, that it requires.
    fn needed_result(&self) -> Option<&str> {
        match (&self.root, self.optional) {
            (Root::Result(name), false) => Some(name),
            _ => None,
        }
    }

    /// The field of the input, with dots between keys, that it requires.
    fn needed_input(&self) -> Option<String> {
        match (&self.root, self.optional) {
            (Root::Input(path), false) if !path.is_empty() => Some(path.join(".")),
            _ => None,
        }
    }

    fn unsuitable(&self, why: &'static str) -> RenderError {
        RenderError::Unsuitable {
            placeholder: self.text.to_string(),
            why,
        }
    }

    /// Appends the value as text; nothing for an optional value that is missing.
    fn render_text(
        &self,
        scope: &Scope<'_>,
        escape: Escape,
        out: &mut String,
    ) -> Result<(), RenderError> {
        let Some(found) = self.find(scope)? else {
            return Ok(());
        };
        match found {
            Found::Text(text) => escape.push(&text, out),
            Found::Number(number) => escape.push(&number.to_string(), out),
            Found::Json(value) if value.get().starts_with(['{', '[']) => {
                return Err(
                    self.unsuitable("is an object or a list, which cannot be part of a text")
                );
            }
            Found::Json(value) => escape.push(value.get(), out),
        }
        Ok(())
    }

    /// Appends the value as JSON with its type; returns whether there was one.
    fn render_json(&self, scope: &Scope<'_>, out: &mut String) -> Result<bool, RenderError> {
        let Some(found) = self.find(scope)? else {
            return Ok(false);
        };
        match found {
            Found::Json(value) => out.push_str(value.get()),
            Found::Number(number) => out.push_str(&number.to_string()),
            Found::Text(text) => push_json_string(&text, out),
        }
        Ok(true)
    }
}

/// Refuses fixed text with a placeholder in single braces, which would be sent literally. Other
/// braces are text.
fn refuse_single_braces(literal: &str) -> Result<(), TemplateError> {
    for behind in literal.split('{').skip(1) {
        let Some((inner, _)) = behind.split_once('}') else {
            continue;
        };
        // Other tools name input fields `request.NAME`.
        let is_of_request = inner.strip_prefix("request.").is_some_and(is_name);
        if is_of_request || Placeholder::parse(inner, None).is_ok() {
            return Err(TemplateError::SingleBraces {
                placeholder: inner.to_owned(),
            });
        }
    }
    Ok(())
}

fn is_name(part: &str) -> bool {
    !part.is_empty()
        && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

#[derive(Clone, PartialEq, Debug)]
enum Part {
    Literal(Box<str>),
    Placeholder(Placeholder),
}

/// A text with placeholders.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Text(Vec<Part>);

impl Text {
    /// Compiles a template.
    pub(crate) fn compile(
        template: &str,
        variables: KnownVariables<'_>,
    ) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some(start) = rest.find("{{") {
            if start > 0 {
                refuse_single_braces(&rest[..start])?;
                parts.push(Part::Literal(rest[..start].into()));
            }
            let inner = &rest[start + 2..];
            let end = inner.find("}}").ok_or_else(|| TemplateError::Unclosed {
                template: template.to_owned(),
            })?;
            parts.push(Part::Placeholder(Placeholder::parse(
                &inner[..end],
                variables,
            )?));
            rest = &inner[end + 2..];
        }
        if !rest.is_empty() {
            refuse_single_braces(rest)?;
            parts.push(Part::Literal(rest.into()));
        }
        Ok(Self(parts))
    }

    /// Renders the text unescaped, for a header value.
    pub(crate) fn render(&self, scope: &Scope<'_>) -> Result<String, RenderError> {
        let mut out = String::new();
        self.render_into(scope, Escape::Plain, &mut out)?;
        Ok(out)
    }

    /// The error for a rendered text that is not allowed at its position.
    pub(crate) fn unsuitable(&self, why: &'static str) -> RenderError {
        match self.first_placeholder() {
            Some(placeholder) => placeholder.unsuitable(why),
            None => RenderError::Unsuitable {
                placeholder: String::new(),
                why,
            },
        }
    }

    /// The results, as `step.name`, that it requires.
    pub(crate) fn needed_results(&self) -> impl Iterator<Item = &str> {
        self.placeholders().filter_map(Placeholder::needed_result)
    }

    /// The input fields that it requires.
    pub(crate) fn needed_inputs(&self) -> impl Iterator<Item = String> {
        self.placeholders().filter_map(Placeholder::needed_input)
    }

    /// Whether no part of it depends on the request.
    fn is_literal(&self) -> bool {
        self.first_placeholder().is_none()
    }

    /// Whether it is the same for every request.
    pub(crate) fn is_fixed(&self) -> bool {
        self.placeholders()
            .all(|placeholder| matches!(placeholder.root, Root::Variable(_)))
    }

    /// The first placeholder, to name in a message.
    fn first_placeholder(&self) -> Option<&Placeholder> {
        self.placeholders().next()
    }

    fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.0.iter().filter_map(|part| match part {
            Part::Placeholder(placeholder) => Some(placeholder),
            Part::Literal(_) => None,
        })
    }

    fn render_into(
        &self,
        scope: &Scope<'_>,
        escape: Escape,
        out: &mut String,
    ) -> Result<(), RenderError> {
        for part in &self.0 {
            match part {
                Part::Literal(text) if escape == Escape::Json => escape.push(text, out),
                Part::Literal(text) => out.push_str(text),
                Part::Placeholder(placeholder) => placeholder.render_text(scope, escape, out)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
