//! YAML files, and errors that say where the fault is and how to correct it.

mod place;

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};
use waybill_telemetry::visible::on_one_line;

use self::place::{first_line_of_mapping, indentation, key_at, key_before, keys_above};
use crate::environment::{key_paths, yaml_options};
use crate::error::did_you_mean;
use crate::words::in_our_words;
use crate::{ConfigError, Configuration};

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{path} cannot be read")]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It is not valid YAML, or not the expected document.
    #[error("{path}{}: {problem}", place(.position))]
    Wrong {
        /// The file, or the name of the text.
        path: String,
        /// Line and column from 1, if known.
        position: Option<(u64, u64)>,
        /// What is wrong there.
        problem: String,
    },
}

impl FileError {
    /// The error of a file that the configuration key `key` names.
    #[must_use]
    pub fn of_key(self, key: &str) -> ConfigError {
        match self {
            Self::Unreadable { path, source } => ConfigError::NamedFile {
                key: key.to_owned(),
                path,
                source,
            },
            wrong @ Self::Wrong { .. } => ConfigError::File(wrong),
        }
    }
}

/// Reads a configuration file over the defaults.
pub(crate) fn read<C: Configuration>(path: &Path) -> Result<C, FileError> {
    let name = path.display().to_string();
    parse_over_defaults(&name, &read_text(path)?)
}

/// Reads a file that contains another YAML document.
///
/// # Errors
///
/// If it cannot be read, or is not such a document.
pub fn read_document<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    parse(&path.display().to_string(), &read_text(path)?)
}

/// Reads a whole file.
///
/// # Errors
///
/// If it cannot be read, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(|source| FileError::Unreadable {
        path: path.display().to_string(),
        source,
    })
}

/// Reads a configuration over the defaults. A text of only comments changes nothing. Errors call
/// the text `name`.
///
/// # Errors
///
/// If it is not YAML, or has an unknown key or an invalid value.
pub fn parse_over_defaults<C: Configuration>(name: &str, text: &str) -> Result<C, FileError> {
    let is_comment =
        |line: &str| line.trim_start().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(is_comment) {
        return Ok(C::default());
    }
    serde_saphyr::from_str_with_options(text, yaml_options())
        .map_err(|error| refusal(name, text, &error, &key_paths::<C>()))
}

/// Reads another YAML document. Errors call it `name`.
///
/// # Errors
///
/// If it is not such a document.
pub fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, FileError> {
    serde_saphyr::from_str(text).map_err(|error| refusal(name, text, &error, &[]))
}

/// Rewrites the parser's error. `key_paths` has all keys of the document, to find a valid key that
/// is in the wrong section. Of the line itself only a key is quoted: the line may hold a secret.
fn refusal(name: &str, text: &str, error: &Error, key_paths: &[String]) -> FileError {
    let mut error = error;
    while let Error::WithSnippet { error: inner, .. } | Error::AliasError { error: inner, .. } =
        error
    {
        error = inner;
    }
    let position = error
        .location()
        .map(|location| (location.line(), location.column()));
    let above = position.map_or_else(Vec::new, |position| keys_above(text, position));
    // The key's path goes before the message about its value.
    let of_key = |message: &str| {
        let key = position.and_then(|position| {
            if let Some(key) = key_before(text, position) {
                // The position is after the key.
                let is_path = above.last().is_some_and(|last| last.ends_with(key));
                return Some(match is_path {
                    true => above.join("."),
                    false => key.to_owned(),
                });
            }
            // The position of a wrong value may be that of its key; other faults begin at their
            // position.
            let key = key_at(text, position).filter(|_| message.starts_with("invalid value"))?;
            Some(path_of(&above, key))
        });
        let rendered = on_one_line(in_our_words(message));
        match key {
            Some(key) => format!("{key}: {rendered}"),
            None => rendered,
        }
    };
    let fault = position.and_then(|position| indentation_fault(text, error, position));
    if let Some((position, problem)) = fault {
        return FileError::Wrong {
            path: name.to_owned(),
            position: Some(position),
            problem,
        };
    }
    if let Error::SerdeMissingField { field, .. } = error
        && let Some((last, column)) = position
        && let Some(line) = first_line_of_mapping(text, (last, column))
    {
        let of = match above.as_slice() {
            [] => String::new(),
            above => format!("{}: ", above.join(".")),
        };
        return FileError::Wrong {
            path: name.to_owned(),
            position: Some((line, column)),
            problem: format!("{of}missing field `{field}`"),
        };
    }
    let problem = match error {
        Error::SerdeUnknownField {
            field, expected, ..
        } => {
            let whole = |key: &str| path_of(&above, key);
            let near = nearest(field, expected.iter().copied()).map(whole);
            let near = near.or_else(|| paths_that_end_in(field, key_paths));
            let instead = match (near, expected.is_empty()) {
                (None, false) => format!("; expected one of {}", expected.join(", ")),
                (near, _) => did_you_mean(near.as_deref()),
            };
            format!("unknown key {}{instead}", whole(field))
        }
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => of_key(&format!("{variant} is not one of {}", expected.join(", "))),
        Error::InvalidBooleanStrict { .. } => of_key("invalid boolean"),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key {key} appears twice"),
        other => of_key(&UserMessageFormatter.format_message(other)),
    };
    if let Some((line, column, key)) = unquoted_placeholder(text, position) {
        return FileError::Wrong {
            path: name.to_owned(),
            position: Some((line, column)),
            problem: format!(
                "{key}a value that begins with {{{{ needs quotes, as in \"{{{{input.name}}}}\": YAML reads it as a mapping"
            ),
        };
    }
    FileError::Wrong {
        path: name.to_owned(),
        position,
        problem,
    }
}

/// A fault of the indentation, which the parser describes by its grammar: the position and the
/// problem.
fn indentation_fault(
    text: &str,
    error: &Error,
    (line, _): (u64, u64),
) -> Option<((u64, u64), String)> {
    let message = UserMessageFormatter.format_message(error);
    let is_of_grammar = ["in this context", "within this context"]
        .iter()
        .any(|words| message.contains(words));
    let lines: Vec<&str> = text.lines().take(usize::try_from(line).ok()?).collect();
    let (last, before) = lines.split_last().filter(|_| is_of_grammar)?;
    let place = |column: usize| u64::try_from(column + 1).ok().map(|column| (line, column));
    let blank = &last[..last.len() - last.trim_start().len()];
    if let Some(column) = blank.find('\t') {
        let problem = "a tab in the indentation: YAML indents with spaces";
        return Some((place(column)?, problem.to_owned()));
    }
    let has_content = |line: &&&str| {
        let content = line.trim_start();
        !content.is_empty() && !content.starts_with('#')
    };
    let (line_above, here) = (before.iter().rfind(has_content)?, indentation(last));
    let has_value = {
        let content = line_above.split(" #").next().unwrap_or_default();
        !content.trim_end().ends_with([':', '|', '>', '-'])
    };
    let above = indentation(line_above);
    (has_value && here > above).then_some((
        place(here)?,
        format!(
            "wrong indentation: column {}, but the line above starts in column {} and already has a value",
            here + 1,
            above + 1
        ),
    ))
}

/// The value that begins with an unquoted placeholder, on the line of a fault or the one before it:
/// line, column and the key before its colon.
fn unquoted_placeholder(text: &str, position: Option<(u64, u64)>) -> Option<(u64, u64, String)> {
    let (line, _) = position?;
    let lines = (1..).zip(text.lines());
    let near = lines.filter(|(number, _)| (line.saturating_sub(1)..=line).contains(number));
    let found = near.filter_map(|(number, line)| {
        let column = ["{{", "- {{"]
            .iter()
            .find_map(|begin| {
                line.trim_start()
                    .starts_with(begin)
                    .then(|| line.find("{{"))
            })
            .flatten()
            .or_else(|| line.find(": {{").map(|at| at + 2))?;
        let column = u64::try_from(line[..column].chars().count()).ok()? + 1;
        let key = key_before(line.trim_end(), (1, column.saturating_sub(1)));
        let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
        Some((number, column, key))
    });
    found.last()
}

/// The path of a key below the keys in `above`.
fn path_of(above: &[String], key: &str) -> String {
    let above = above.iter().map(String::as_str);
    above.chain([key]).collect::<Vec<_>>().join(".")
}

/// The candidate that `wanted` misspells, if any: one or two characters are wrong.
#[must_use]
pub fn misspelling_of<'a>(
    wanted: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    const SLIPS_MAX: usize = 2;
    let near = nearest(wanted, candidates)?;
    let slips = strsim::damerau_levenshtein(wanted, near);
    (slips <= SLIPS_MAX && near.chars().count() > 2 * slips).then_some(near)
}

/// The most similar candidate, if any is similar enough.
fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Allows one or two wrong characters.
    const LIKENESS_MIN: f64 = 0.6;
    let wanted = wanted.to_ascii_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::normalized_damerau_levenshtein(&wanted, &candidate.to_ascii_lowercase()),
                candidate,
            )
        })
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

fn paths_that_end_in(key: &str, key_paths: &[String]) -> Option<String> {
    let ending = format!(".{}", key.to_ascii_lowercase());
    let paths: Vec<&str> = key_paths
        .iter()
        .filter(|path| path.to_ascii_lowercase().ends_with(&ending))
        .map(String::as_str)
        .collect();
    (!paths.is_empty()).then(|| paths.join(" or "))
}

fn place(position: &Option<(u64, u64)>) -> String {
    position
        .map(|(line, column)| format!(":{line}:{column}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only refusals are looked at")]
    struct Plan {
        name: String,
        steps: Vec<Step>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only refusals are looked at")]
    struct Step {
        agent: String,
        timeout: Option<String>,
    }

    fn refused(text: &str) -> String {
        parse::<Plan>("w.yaml", text).unwrap_err().to_string()
    }

    #[test]
    fn a_missing_field_is_reported_at_the_first_line_of_its_mapping_with_the_keys_above() {
        for (text, expected) in [
            (
                "name: a\nsteps:\n  - agent: b\n  - name: c\n    timeout: 2s\n    kind: pure\n",
                "w.yaml:4:5: steps: missing field `agent`",
            ),
            (
                "# A plan.\nsteps:\n  - agent: b\n",
                "w.yaml:2:1: missing field `name`",
            ),
        ] {
            assert_eq!(refused(text), expected);
        }
    }

    #[test]
    fn wrong_indentation_is_reported_as_such() {
        for (text, expected) in [
            (
                "name: a\nsteps:\n\t- agent: b\n",
                "w.yaml:3:1: a tab in the indentation: YAML indents with spaces",
            ),
            (
                "name: a\nsteps:\n  - agent: b\n     timeout: 2s\n",
                "w.yaml:4:6: wrong indentation: column 6, but the line above starts in column 5 and already has a value",
            ),
        ] {
            assert_eq!(refused(text), expected);
        }
        let other = refused("name: a\nsteps:\n  note: b: c\n");
        assert!(!other.contains("indentation"), "{other}");
    }
}
