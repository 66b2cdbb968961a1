//! JSON bodies.

use serde_json::Value;

use super::{
    KnownVariables, Part, Placeholder, RenderError, Scope, TemplateError, Text, push_json_string,
};

/// A JSON body with placeholders in its strings.
///
/// A string that is exactly one placeholder becomes the value itself, with its JSON type. If an
/// optional one has no value, its object member or list item is left out; as the whole body it is
/// `null`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Body(Node);

#[derive(Clone, PartialEq, Debug)]
enum Node {
    /// JSON text that does not depend on the request.
    Literal(Box<str>),
    Value(Placeholder),
    Text(Text),
    /// Members with their keys as JSON text, the colon included.
    Object(Vec<(Box<str>, Node)>),
    Array(Vec<Node>),
}

impl Body {
    /// Compiles a template.
    pub(crate) fn compile(
        template: &Value,
        variables: KnownVariables<'_>,
    ) -> Result<Self, TemplateError> {
        Node::compile(template, variables).map(Self)
    }

    /// The results, as `step.name`, that it requires.
    pub(crate) fn needed_results(&self) -> Vec<&str> {
        let placeholders = self.placeholders().into_iter();
        placeholders
            .filter_map(Placeholder::needed_result)
            .collect()
    }

    /// The input fields that it requires.
    pub(crate) fn needed_inputs(&self) -> Vec<String> {
        let placeholders = self.placeholders().into_iter();
        placeholders.filter_map(Placeholder::needed_input).collect()
    }

    fn placeholders(&self) -> Vec<&Placeholder> {
        let mut placeholders = Vec::new();
        self.0.collect_placeholders(&mut placeholders);
        placeholders
    }

    /// Renders the body as JSON text.
    pub(crate) fn render(&self, scope: &Scope<'_>) -> Result<String, RenderError> {
        let mut out = String::with_capacity(256);
        if !self.0.render(scope, &mut out)? {
            out.push_str("null");
        }
        Ok(out)
    }
}

impl Node {
    fn compile(template: &Value, variables: KnownVariables<'_>) -> Result<Self, TemplateError> {
        let node = match template {
            Value::String(text) => {
                let mut compiled = Text::compile(text, variables)?;
                match compiled.0.as_slice() {
                    [Part::Placeholder(_)] => match compiled.0.pop() {
                        Some(Part::Placeholder(placeholder)) => Self::Value(placeholder),
                        _ => unreachable!("the slice was just matched"),
                    },
                    _ if compiled.is_literal() => Self::literal(template),
                    _ => Self::Text(compiled),
                }
            }
            Value::Object(members) => {
                let members = members
                    .iter()
                    .map(|(key, value)| {
                        let mut name = String::with_capacity(key.len() + 3);
                        push_json_string(key, &mut name);
                        name.push(':');
                        Ok((name.into_boxed_str(), Self::compile(value, variables)?))
                    })
                    .collect::<Result<Vec<_>, TemplateError>>()?;
                if members.iter().all(|(_, node)| node.is_literal()) {
                    Self::literal(template)
                } else {
                    Self::Object(members)
                }
            }
            Value::Array(items) => {
                let items = items
                    .iter()
                    .map(|item| Self::compile(item, variables))
                    .collect::<Result<Vec<_>, _>>()?;
                if items.iter().all(Self::is_literal) {
                    Self::literal(template)
                } else {
                    Self::Array(items)
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::literal(template),
        };
        Ok(node)
    }

    fn literal(template: &Value) -> Self {
        Self::Literal(template.to_string().into_boxed_str())
    }

    fn is_literal(&self) -> bool {
        matches!(self, Self::Literal(_))
    }

    fn collect_placeholders<'a>(&'a self, found: &mut Vec<&'a Placeholder>) {
        match self {
            Self::Literal(_) => {}
            Self::Value(placeholder) => found.push(placeholder),
            Self::Text(text) => found.extend(text.placeholders()),
            Self::Object(members) => {
                for (_, node) in members {
                    node.collect_placeholders(found);
                }
            }
            Self::Array(items) => {
                for node in items {
                    node.collect_placeholders(found);
                }
            }
        }
    }

    /// Appends the node; returns whether there was a value to append.
    fn render(&self, scope: &Scope<'_>, out: &mut String) -> Result<bool, RenderError> {
        match self {
            Self::Literal(json) => out.push_str(json),
            Self::Value(placeholder) => return placeholder.render_json(scope, out),
            Self::Text(text) => {
                out.push('"');
                text.render_into(scope, super::Escape::Json, out)?;
                out.push('"');
            }
            Self::Object(members) => {
                out.push('{');
                for (key, node) in members {
                    render_item(key, node, scope, out)?;
                }
                close(out, '}');
            }
            Self::Array(items) => {
                out.push('[');
                for node in items {
                    render_item("", node, scope, out)?;
                }
                close(out, ']');
            }
        }
        Ok(true)
    }
}

/// Appends `key`, the node and a comma, or nothing if the node has no value.
fn render_item(
    key: &str,
    node: &Node,
    scope: &Scope<'_>,
    out: &mut String,
) -> Result<(), RenderError> {
    let start = out.len();
    out.push_str(key);
    if node.render(scope, out)? {
        out.push(',');
    } else {
        out.truncate(start);
    }
    Ok(())
}

/// Replaces the last item's comma by the closing bracket. The comma is the separator: a JSON value
/// never ends in one.
fn close(out: &mut String, bracket: char) {
    if out.ends_with(',') {
        out.pop();
    }
    out.push(bracket);
}
