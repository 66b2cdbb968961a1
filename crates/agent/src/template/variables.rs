//! Values that are the same for every request.

use std::collections::BTreeMap;

use super::TemplateError;

/// The values that an agents file may name. They are fixed when the file is loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Variables {
    program: BTreeMap<String, String>,
    configured: BTreeMap<String, String>,
}

impl Variables {
    /// The variables of the program, `{name}` in a base URL, and those of the configuration,
    /// `{{vars.name}}` in every template.
    #[must_use]
    pub fn new(program: BTreeMap<String, String>, configured: BTreeMap<String, String>) -> Self {
        Self {
            program,
            configured,
        }
    }

    pub(super) fn configured(&self, name: &str) -> Result<&str, TemplateError> {
        value(&self.configured, name).ok_or_else(|| TemplateError::UnknownVariable {
            placeholder: format!("{{{{vars.{name}}}}}"),
            known: match self.configured.is_empty() {
                true => "there are none (`variables` in the configuration)".to_owned(),
                false => format!("known variables: {}", names(&self.configured)),
            },
        })
    }

    /// Replaces each variable in a base URL with its value.
    pub(crate) fn substitute(&self, text: &str) -> Result<String, TemplateError> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find('{') {
            out.push_str(&rest[..start]);
            let (open, close) = match rest[start..].starts_with("{{") {
                true => ("{{", "}}"),
                false => ("{", "}"),
            };
            let inner = &rest[start + open.len()..];
            let Some(end) = inner.find(close) else {
                return Err(TemplateError::UnclosedVariable {
                    open: open.to_owned(),
                    template: text.to_owned(),
                });
            };
            let name = inner[..end].trim();
            let configured = name.strip_prefix("vars.").filter(|_| open == "{{");
            out.push_str(match configured {
                Some(name) => self.configured(name)?,
                None => value(&self.program, name)
                    .filter(|_| open == "{")
                    .ok_or_else(|| TemplateError::UnknownVariable {
                        placeholder: format!("{open}{name}{close}"),
                        known: format!(
                            "use `{{{{vars.<name>}}}}`; known variables of the program: {}",
                            names(&self.program)
                        ),
                    })?,
            });
            rest = &inner[end + close.len()..];
        }
        out.push_str(rest);
        Ok(out)
    }
}

fn value<'a>(variables: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    variables.get(name).map(String::as_str)
}

fn names(variables: &BTreeMap<String, String>) -> String {
    let names: Vec<&str> = variables.keys().map(String::as_str).collect();
    names.join(", ")
}
