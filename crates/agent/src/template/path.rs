//! URL paths.

use super::{Escape, KnownVariables, RenderError, Root, Scope, TemplateError, Text};

/// A path that starts with `/`, with its query if it has one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Path {
    segments: Vec<Text>,
    query: Option<Text>,
}

impl Path {
    /// Compiles a template. Its fixed parts must be valid on the wire: percent-encoded where
    /// needed, without empty or dot segments, and without a fragment.
    pub(crate) fn compile(
        template: &str,
        variables: KnownVariables<'_>,
    ) -> Result<Self, TemplateError> {
        let refuse = |why| TemplateError::Path {
            template: template.to_owned(),
            why,
        };
        // Only optional placeholders contain a question mark, inside their braces.
        let (path, query) = split_query(template);
        let Some(path) = path.strip_prefix('/') else {
            return Err(refuse("does not start with `/`"));
        };
        let segments = path
            .split('/')
            .map(|segment| Text::compile(segment, variables))
            .collect::<Result<Vec<_>, _>>()?;
        let query = query
            .map(|query| Text::compile(query, variables))
            .transpose()?;

        let literals = segments
            .iter()
            .chain(&query)
            .flat_map(|text| &text.0)
            .filter_map(|part| match part {
                super::Part::Literal(literal) => Some(literal),
                super::Part::Placeholder(_) => None,
            });
        for literal in literals {
            if !literal.bytes().all(is_path_or_query_byte) {
                return Err(refuse("holds a character that must be percent-encoded"));
            }
        }
        let last = segments.len() - 1;
        for (index, segment) in segments.iter().enumerate() {
            if segment.0.is_empty() && index != last {
                return Err(refuse("has an empty segment"));
            }
            if let [super::Part::Literal(literal)] = segment.0.as_slice()
                && is_dot_segment(literal)
            {
                return Err(refuse("has a `.` or `..` segment"));
            }
            if let [super::Part::Placeholder(placeholder)] = segment.0.as_slice()
                && let Root::Variable(value) = &placeholder.root
                && variables.is_some()
                && (value.is_empty() || is_dot_segment(value))
            {
                return Err(refuse(
                    "has a variable that is empty, `.` or `..` as a segment",
                ));
            }
        }
        Ok(Self { segments, query })
    }

    /// The results, as `step.name`, that it requires.
    pub(crate) fn needed_results(&self) -> impl Iterator<Item = &str> {
        self.segments
            .iter()
            .chain(&self.query)
            .flat_map(Text::needed_results)
    }

    /// The input fields that it requires.
    pub(crate) fn needed_inputs(&self) -> impl Iterator<Item = String> {
        self.segments
            .iter()
            .chain(&self.query)
            .flat_map(Text::needed_inputs)
    }

    /// Appends the path. It has exactly the template's segments, whatever the values are.
    pub(crate) fn render_into(
        &self,
        scope: &Scope<'_>,
        out: &mut String,
    ) -> Result<(), RenderError> {
        for segment in &self.segments {
            out.push('/');
            let start = out.len();
            segment.render_into(scope, Escape::Percent, out)?;
            if let Some(placeholder) = segment.first_placeholder() {
                let rendered = &out[start..];
                if rendered.is_empty() {
                    return Err(placeholder.unsuitable("leaves a path segment empty"));
                }
                if is_dot_segment(rendered) {
                    return Err(placeholder.unsuitable("makes a path segment `.` or `..`"));
                }
            }
        }
        if let Some(query) = &self.query {
            out.push('?');
            query.render_into(scope, Escape::Percent, out)?;
        }
        Ok(())
    }
}

/// Splits at the first `?` outside of a placeholder.
fn split_query(template: &str) -> (&str, Option<&str>) {
    let mut from = 0;
    loop {
        let rest = &template[from..];
        let (mark, open) = (rest.find('?'), rest.find("{{"));
        match (mark, open) {
            (None, _) => return (template, None),
            (Some(mark), Some(open)) if open < mark => match rest[open..].find("}}") {
                Some(close) => from += open + close + 2,
                None => return (template, None),
            },
            (Some(mark), _) => {
                let at = from + mark;
                return (&template[..at], Some(&template[at + 1..]));
            }
        }
    }
}

/// Whether URL resolution (RFC 3986, section 5.2.4) would remove a segment, plain or
/// percent-encoded.
fn is_dot_segment(segment: &str) -> bool {
    // The longest is `%2e%2e`.
    segment.len() <= 6
        && matches!(
            segment.to_ascii_lowercase().replace("%2e", ".").as_str(),
            "." | ".."
        )
}

/// RFC 3986's `pchar`, `/` and `?`, and the percent sign of encoded bytes.
fn is_path_or_query_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte)
}
