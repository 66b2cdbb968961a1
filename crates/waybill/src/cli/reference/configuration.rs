//! The configuration page, generated from waybill.example.yaml. A test compares that file with the
//! program.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use waybill_config::variables;
use waybill_node::config::Config;

const EXAMPLE: &str = include_str!("../../../../../waybill.example.yaml");

const HEAD: &str = "\
# Configuration

<!-- Made by `waybill reference configuration` from waybill.example.yaml; a test holds the two together. -->

Layers: the defaults, the file (`--config`, YAML), the environment, the flags; later ones win. Durations have a unit (ms, s, m,
h, d), sizes too (B, KiB, MiB, GiB). `waybill config check FILE` checks a file, `waybill config show` prints what applies, without
secrets. A key that is not known is refused, and so is a variable that begins with `WAYBILL_` and is none of those below
(of `kafka.properties` and `kafka.propertyFiles` any name can be set, such as the one that is given).

Relative paths of files and directories count from the working directory of the process, not from the configuration file. In
containers and services, write absolute paths.
";

/// The text of the page.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    let variables = variables::<Config>();
    for key in keys(EXAMPLE) {
        key.write(&variables, &mut page)
            .expect("writing to a string cannot fail");
    }
    page
}

/// A key of the file, with the comment above it.
#[derive(PartialEq, Eq, Debug)]
struct Key<'a> {
    /// From the outermost section inwards.
    path: Vec<&'a str>,
    /// The value in the file; empty for a section.
    default: &'a str,
    /// The lines of the comment, without their marks.
    about: Vec<&'a str>,
}

impl Key<'_> {
    fn write(&self, variables: &BTreeMap<String, String>, page: &mut String) -> std::fmt::Result {
        let Self {
            path,
            default,
            about,
        } = self;
        let name = path.join(".");
        if default.is_empty() {
            let depth = "#".repeat((path.len() + 1).min(4));
            write!(page, "\n{depth} `{name}`\n\n{}\n", text(about, ""))?;
            return Ok(());
        }
        let head = if path.len() == 1 { "\n" } else { "" };
        let variable = variables.get(&name);
        let variable = variable.map_or_else(String::new, |variable| format!("; `{variable}`"));
        write!(
            page,
            "{head}* **`{name}`** (`{default}`{variable}): {}",
            text(about, "  ")
        )
    }
}

/// Keeps sentences as text and turns indented lines of the comment into code. Lines after the first
/// begin with `indent`.
fn text(about: &[&str], indent: &str) -> String {
    let mut text = String::new();
    let mut in_code = false;
    for (number, line) in about.iter().enumerate() {
        let is_code = line.starts_with("  ");
        if is_code != in_code {
            let gap = if number == 0 { "" } else { indent };
            let _ = match is_code {
                true => writeln!(text, "\n{gap}```yaml"),
                false => writeln!(text, "{gap}```\n"),
            };
            in_code = is_code;
        }
        let indent = if number == 0 { "" } else { indent };
        let line = line.trim_end();
        let line = if is_code {
            line.get(2..).unwrap_or_default()
        } else {
            line
        };
        let _ = writeln!(text, "{indent}{line}");
    }
    if in_code {
        let _ = writeln!(text, "{indent}```");
    }
    text
}

/// The keys of the file, in order.
fn keys(file: &str) -> Vec<Key<'_>> {
    let mut keys = Vec::new();
    let mut path: Vec<&str> = Vec::new();
    let mut about = Vec::new();
    for line in file.lines() {
        let inner = line.trim_start();
        let depth = (line.len() - inner.len()) / 2;
        if let Some(comment) = inner.strip_prefix('#') {
            about.push(comment.strip_prefix(' ').unwrap_or(comment));
        } else if let Some((key, default)) = inner.split_once(':') {
            path.truncate(depth);
            path.push(key);
            keys.push(Key {
                path: path.clone(),
                default: default.trim(),
                about: std::mem::take(&mut about),
            });
        } else {
            // After an empty line the comment above is about the whole file.
            about.clear();
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# About the file.

# A section.
kafka:
  # Brokers, such as
  #   a: 1
  # or none.
  brokers: null
  requestTimeout: 5s

# Alone.
dataDir: data
";

    #[test]
    fn keys_have_their_path_their_default_and_what_stands_above_them() {
        let keys = keys(FILE);
        let shown: Vec<_> = keys
            .iter()
            .map(|key| (key.path.join("."), key.default, key.about.len()))
            .collect();
        let expected = [
            ("kafka", "", 1),
            ("kafka.brokers", "null", 3),
            ("kafka.requestTimeout", "5s", 0),
            ("dataDir", "data", 1),
        ];
        let expected = expected.map(|(path, default, about)| (path.to_owned(), default, about));
        assert_eq!(shown, expected);
    }

    #[test]
    fn what_is_indented_in_a_comment_is_code() {
        let mut page = String::new();
        let brokers = (
            "kafka.brokers".to_owned(),
            "WAYBILL_KAFKA__BROKERS".to_owned(),
        );
        let variables = BTreeMap::from([brokers]);
        keys(FILE)[1].write(&variables, &mut page).unwrap();
        assert_eq!(
            page,
            "* **`kafka.brokers`** (`null`; `WAYBILL_KAFKA__BROKERS`): Brokers, such as\n\n  ```yaml\n  a: 1\n  ```\n\n  \
             or none.\n"
        );
    }
}
