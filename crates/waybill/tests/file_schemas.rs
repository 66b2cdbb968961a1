//! The JSON Schemas of the files that people write: the committed copies, and what they accept and
//! refuse.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex_lite::Regex;
use serde_json::{Value, json};
use waybill_config::address_from_text;
use waybill_node::config::Config;
use waybill_scheduler::PartitionChoice;
use waybill_units::{ByteSize, FreeMin, duration_from_text};

const KINDS: [&str; 4] = ["workflow", "agents", "config", "cases"];
/// What an editor reads in the first line of a file.
const COMMENT: &str = "# yaml-language-server: $schema=";

#[test]
fn the_committed_schemas_are_those_that_the_program_generates() {
    for kind in KINDS {
        let path = format!("schemas/files/{kind}.schema.json");
        let committed = std::fs::read_to_string(root().join(&path)).unwrap_or_default();
        assert!(
            committed == printed(&["schema", kind]),
            "{path} is outdated: waybill schema {kind} --out {path}"
        );
        assert_eq!(
            schema(kind)["$schema"],
            "https://json-schema.org/draft/2020-12/schema"
        );
    }
}

#[test]
fn a_schema_is_written_to_the_file_that_a_flag_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("workflow.json");
    let out = file.to_str().unwrap();
    let message = printed(&["schema", "workflow", "--out", out]);
    assert_eq!(message, format!("schema {out}\n"));
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(written, printed(&["schema", "workflow"]));
}

#[test]
fn every_example_names_its_schema_in_its_first_line_and_is_valid_against_it() {
    let mut files = yaml_files("examples");
    files.extend(yaml_files("workflows"));
    files.push(root().join("waybill.example.yaml"));
    for name in [
        "base",
        "overlays/trial",
        "overlays/production",
        "overlays/own-workflow",
    ] {
        files.push(root().join("k8s").join(name).join("waybill.yaml"));
    }
    for name in ["workflow.yaml", "agents.yaml"] {
        files.push(root().join("k8s/overlays/own-workflow").join(name));
    }
    assert!(files.len() > 18, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let first = text.lines().next().unwrap_or_default();
        let shown = file.display();
        let named = first.strip_prefix(COMMENT);
        let named = named.unwrap_or_else(|| panic!("{shown} does not begin with {COMMENT}"));
        let named = file.with_file_name(named).canonicalize();
        let named = named.unwrap_or_else(|error| panic!("{shown}: no such schema: {error}"));
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        // The keys at the top differ.
        let kind =
            ["steps", "agents", "cases"].map(|key| value.get(key).is_some_and(Value::is_array));
        let kind = match kind {
            [true, ..] => "workflow",
            [_, true, _] => "agents",
            [.., true] => "cases",
            _ => "config",
        };
        let expected = root().join(format!("schemas/files/{kind}.schema.json"));
        assert_eq!(named, expected.canonicalize().unwrap(), "{shown}");
        let faults = faults(&schema(kind), &value);
        assert!(faults.is_empty(), "{shown}: {faults:#?}");
    }
}

#[test]
fn the_page_about_cases_explains_every_key_and_choice() {
    let page = std::fs::read_to_string(root().join("docs/workflow-tests.md")).unwrap();
    let mut missing = BTreeSet::new();
    each_schema(&schema("cases"), &mut |part| {
        let keys = part.get("properties").and_then(Value::as_object);
        let keys = keys.into_iter().flat_map(|keys| keys.keys().cloned());
        let choices = part.get("const").or(part.get("enum")).cloned();
        let choices = choices.into_iter().flat_map(|choices| match choices {
            Value::Array(choices) => choices,
            choice => vec![choice],
        });
        let choices = choices.filter_map(|choice| choice.as_str().map(str::to_owned));
        let is_explained = |name: &String| page.contains(&format!("`{name}`"));
        missing.extend(keys.chain(choices).filter(|name| !is_explained(name)));
    });
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_schema_of_the_configuration_has_the_keys_of_the_configuration() {
    let defaults = serde_json::to_value(Config::default()).unwrap();
    let schema = schema("config");
    let (mut known, mut described) = (BTreeSet::new(), BTreeSet::new());
    keys_of_value(&defaults, "", &mut known);
    keys_of_schema(&schema, &schema, "", &mut described);
    assert!(known.len() > 150, "{known:?}");
    assert_eq!(known, described);
    assert_eq!(faults(&schema, &defaults), [""; 0]);
}

#[test]
fn a_misspelt_key_a_missing_one_and_a_wrong_value_are_refused_in_every_kind_of_file() {
    let step = || json!({"name": "pay", "agent": "bank"});
    let workflow = |step: Value| json!({"name": "order", "version": 1, "steps": [step]});
    let with = |key: &str, value: Value| {
        let mut step = step();
        step[key] = value;
        workflow(step)
    };
    let cases = |more: Value| {
        let mut case = json!({"name": "one", "expect": {"state": "Processed"}});
        let more = more.as_object().unwrap().clone();
        case.as_object_mut().unwrap().extend(more);
        json!({"cases": [case]})
    };
    let agent = |http: Value| json!({"agents": [{"name": "bank", "http": http}]});
    let valid = [
        ("workflow", workflow(step())),
        ("workflow", with("retry", json!({"maxAttempts": 3}))),
        (
            "workflow",
            with("when", json!({"step": "a", "output": "b", "equals": true})),
        ),
        ("workflow", with("compensation", json!({"manual": true}))),
        ("agents", agent(json!({"baseUrl": "http://a"}))),
        (
            "agents",
            agent(json!({"baseUrl": "http://a", "statuses": {"absent": [404, "410-420"]}})),
        ),
        ("cases", cases(json!({}))),
        (
            "cases",
            cases(json!({"answers": {"pay": [{}, {"outcome": "noAnswer", "times": 2}]}})),
        ),
        ("config", json!({})),
        ("config", json!({"http": {"listen": "[::1]:0"}})),
        ("config", json!({"scheduler": {"partitions": 2}})),
        (
            "config",
            json!({"kafka": {"properties": {"socket.timeout.ms": 5000}}}),
        ),
        (
            "config",
            json!({"alerts": {"receivers": {"a": {"webhook": {"url": "https://a"}}}}}),
        ),
    ];
    for (kind, value) in valid {
        assert_eq!(faults(&schema(kind), &value), [""; 0], "{kind}: {value}");
    }
    let wrong = [
        ("workflow", json!({"name": "order", "version": 1})),
        ("workflow", workflow(json!({"name": "pay"}))),
        ("workflow", with("agnet", json!("bank"))),
        ("workflow", with("timeout", json!(5))),
        ("workflow", with("timeout", json!("1w"))),
        ("workflow", with("kind", json!("pivto"))),
        ("workflow", with("retry", json!({"attempts": 3}))),
        ("workflow", with("compensation", json!({"manuel": true}))),
        ("agents", json!({"agent": []})),
        ("agents", agent(json!({}))),
        ("agents", agent(json!({"baseUrl": "http://a", "poool": {}}))),
        (
            "agents",
            agent(json!({"baseUrl": "http://a", "statuses": {"absent": [99]}})),
        ),
        ("cases", json!({"cases": []})),
        ("cases", json!({"cases": [{"name": "one"}]})),
        ("cases", cases(json!({"answer": {}}))),
        (
            "cases",
            cases(json!({"answers": {"pay": [{"outcome": "sucess"}]}})),
        ),
        ("cases", cases(json!({"expect": {"state": "Pending"}}))),
        ("config", json!({"htpp": {}})),
        ("config", json!({"http": {"listn": "127.0.0.1:1"}})),
        ("config", json!({"http": {"listen": "localhost:1"}})),
        ("config", json!({"http": {"bodyBytesMax": 5}})),
        ("config", json!({"telemetry": {"logFormat": "xml"}})),
        (
            "config",
            json!({"alerts": {"receivers": {"a": {"webhook": {"link": "https://a"}}}}}),
        ),
    ];
    for (kind, value) in wrong {
        assert!(!faults(&schema(kind), &value).is_empty(), "{kind}: {value}");
    }
    for kind in KINDS {
        each_schema(&schema(kind), &mut |part| {
            if part.get("properties").is_some() {
                assert_eq!(
                    part.get("additionalProperties"),
                    Some(&json!(false)),
                    "{part}"
                );
            }
        });
    }
}

#[test]
fn the_patterns_accept_what_the_parsers_accept_and_refuse_what_they_refuse() {
    type Accepts = fn(&str) -> bool;
    let texts = [
        "0s",
        "200ms",
        "5s",
        "2m",
        "1h",
        "7d",
        " 5s ",
        "2 m",
        "05s",
        "",
        "5",
        "s",
        "-5s",
        "1.5s",
        "5sec",
        "5S",
        "1h30m",
        "0B",
        "512B",
        "64KiB",
        "16MiB",
        "8GiB",
        "64 KiB",
        "64KB",
        "64kib",
        "-1B",
        "1.5GiB",
        "1TiB",
        "auto",
        " auto",
        "5%",
        "0%",
        "99%",
        "099%",
        "5 %",
        "100%",
        "-1%",
        "1.5%",
        "%",
        "Auto",
        "5 percent",
        "all",
        "2",
        "0-3",
        " 1 - 2 ",
        "1-",
        "-1",
        "a-b",
        "0..3",
        "everything",
        "127.0.0.1:80",
        "0.0.0.0:0",
        "[::1]:8080",
        "[::ffff:1.2.3.4]:1",
        "[fe80::1%2]:1",
        "localhost:80",
        "127.0.0.1",
        "::1:80",
        "127.0.0.1:http",
        ":80",
    ];
    let patterns: [(&str, &str, Accepts); 4] = [
        ("config", "Duration", |text| {
            duration_from_text(text).is_ok()
        }),
        ("config", "Size", |text| text.parse::<ByteSize>().is_ok()),
        ("config", "FreeMin", |text| text.parse::<FreeMin>().is_ok()),
        ("config", "ListenAddress", |text| {
            address_from_text(text).is_ok()
        }),
    ];
    for (kind, name, accepts) in patterns {
        let schema = schema(kind);
        let unit = &schema["$defs"][name];
        compare(unit["pattern"].as_str().unwrap(), accepts, &texts, name);
        for example in unit["examples"].as_array().unwrap() {
            assert!(accepts(example.as_str().unwrap()), "{name}: {example}");
        }
    }
    for kind in ["workflow", "agents"] {
        let [of_kind, of_config] =
            [kind, "config"].map(|kind| schema(kind)["$defs"]["Duration"].clone());
        assert_eq!(of_kind, of_config, "{kind}");
    }
    let choice = schema("config")["$defs"]["PartitionChoice"]["anyOf"][1].clone();
    let accepts: Accepts = |text| text.parse::<PartitionChoice>().is_ok();
    compare(
        choice["pattern"].as_str().unwrap(),
        accepts,
        &texts,
        "PartitionChoice",
    );
}

fn compare(pattern: &str, accepts: fn(&str) -> bool, texts: &[&str], name: &str) {
    let pattern = Regex::new(pattern).unwrap();
    let accepted = texts.iter().filter(|text| accepts(text)).count();
    assert!(accepted > 3 && accepted < texts.len(), "{name}");
    for text in texts {
        assert_eq!(pattern.is_match(text), accepts(text), "{name}: {text:?}");
    }
}

#[test]
fn every_key_has_the_description_of_its_file() {
    for kind in KINDS {
        each_schema(&schema(kind), &mut |part| {
            let properties = part.get("properties").and_then(Value::as_object);
            for (key, value) in properties.into_iter().flatten() {
                // The only key of a variant is explained by the variant.
                let explained = value.get("description").or_else(|| part.get("description"));
                assert!(explained.is_some(), "{kind}: {key} has no description");
            }
            let description = part.get("description").and_then(Value::as_str);
            for word in description
                .unwrap_or_default()
                .split('`')
                .skip(1)
                .step_by(2)
            {
                let is_snake =
                    word.trim_end_matches('_').contains('_') && word == word.to_lowercase();
                let is_of_rust =
                    is_snake || word.contains("::") || word == "None" || word == "Debug";
                assert!(!is_of_rust, "{kind}: a description mentions {word}");
            }
        });
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn printed(arguments: &[&str]) -> String {
    let program = Command::new(env!("CARGO_BIN_EXE_waybill"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(program.status.success(), "{program:?}");
    String::from_utf8(program.stdout).unwrap()
}

fn schema(kind: &str) -> Value {
    serde_json::from_str(&printed(&["schema", kind])).unwrap()
}

fn yaml_files(directory: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(directory)];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "yaml")
            {
                found.push(path);
            }
        }
    }
    found
}

fn keys_of_value(value: &Value, path: &str, keys: &mut BTreeSet<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{key}");
        keys_of_value(value, &path, keys);
        keys.insert(path);
    }
}

fn keys_of_schema(root: &Value, schema: &Value, path: &str, keys: &mut BTreeSet<String>) {
    if let Some(target) = schema.get("$ref") {
        keys_of_schema(root, referenced(root, target), path, keys);
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (key, schema) in properties.into_iter().flatten() {
        let path = format!("{path}/{key}");
        keys_of_schema(root, schema, &path, keys);
        keys.insert(path);
    }
}

fn referenced<'a>(root: &'a Value, target: &Value) -> &'a Value {
    let pointer = target.as_str().and_then(|target| target.strip_prefix('#'));
    root.pointer(pointer.unwrap()).unwrap()
}

/// Visits a schema and every schema in it.
fn each_schema(schema: &Value, visit: &mut impl FnMut(&Value)) {
    visit(schema);
    for (keyword, rule) in schema.as_object().into_iter().flatten() {
        match (keyword.as_str(), rule) {
            ("$defs" | "properties", Value::Object(named)) => {
                named.values().for_each(|part| each_schema(part, visit));
            }
            ("items" | "additionalProperties", part) => each_schema(part, visit),
            ("anyOf" | "oneOf", Value::Array(parts)) => {
                parts.iter().for_each(|part| each_schema(part, visit));
            }
            _ => {}
        }
    }
}

fn faults(schema: &Value, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    check(schema, schema, value, "", &mut faults);
    faults
}

/// Checks a value against a schema, with the keywords that our schemas use. Any other keyword fails
/// the test.
fn check(root: &Value, schema: &Value, value: &Value, path: &str, faults: &mut Vec<String>) {
    let keywords = match schema {
        Value::Bool(true) => return,
        Value::Bool(false) => return faults.push(format!("{path}: nothing is valid here")),
        schema => schema.as_object().unwrap(),
    };
    let is_valid = |schema: &Value| {
        let mut faults = Vec::new();
        check(root, schema, value, path, &mut faults);
        faults.is_empty()
    };
    for (keyword, rule) in keywords {
        let list = || rule.as_array().unwrap().iter();
        let holds = match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" | "examples" => true,
            "$ref" => {
                check(root, referenced(root, rule), value, path, faults);
                true
            }
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
                kind => is_of(kind, value),
            },
            "enum" => list().any(|one| one == value),
            "const" => rule == value,
            "anyOf" => list().any(is_valid),
            "oneOf" => list().filter(|one| is_valid(one)).count() == 1,
            "pattern" => {
                let pattern = Regex::new(rule.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "minimum" => value
                .as_f64()
                .is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value
                .as_f64()
                .is_none_or(|number| number <= rule.as_f64().unwrap()),
            "exclusiveMinimum" => value
                .as_f64()
                .is_none_or(|number| number > rule.as_f64().unwrap()),
            "minItems" | "maxItems" => {
                let most = rule
                    .as_u64()
                    .and_then(|most| usize::try_from(most).ok())
                    .unwrap();
                let length = value.as_array().map(Vec::len);
                length.is_none_or(|length| {
                    if keyword == "minItems" {
                        length >= most
                    } else {
                        length <= most
                    }
                })
            }
            "required" => value
                .as_object()
                .is_none_or(|object| list().all(|key| object.contains_key(key.as_str().unwrap()))),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, item, &format!("{path}/{index}"), faults);
                }
                true
            }
            "properties" => {
                for (key, rule) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(key) {
                        check(root, rule, value, &format!("{path}/{key}"), faults);
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = |key: &str| {
                    keywords
                        .get("properties")
                        .is_some_and(|known| known.get(key).is_some())
                };
                let object = value.as_object().into_iter().flatten();
                for (key, value) in object.filter(|(key, _)| !known(key)) {
                    check(root, rule, value, &format!("{path}/{key}"), faults);
                }
                true
            }
            other => panic!("{path}: the test does not know the keyword {other}"),
        };
        if !holds {
            faults.push(format!("{path}: {value} breaks {keyword}: {rule}"));
        }
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no such type: {other}"),
    }
}
