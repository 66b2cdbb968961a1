//! The configuration: the committed example, and the program's commands about it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use waybill_config::{Environment, load};
use waybill_node::config::Config;
use waybill_test_support::process::{without_disk_warning, without_variables};

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../waybill.example.yaml")
}

fn printed(output: &[u8]) -> String {
    without_disk_warning(std::str::from_utf8(output).unwrap())
}

#[test]
fn the_example_is_the_default_configuration() {
    let config = load::<Config>(Some(&example()), &Environment::default()).unwrap();
    assert_eq!(config, Config::default());
    config.finish().expect("the defaults are valid");
}

#[test]
fn every_key_is_in_the_example() {
    let text = std::fs::read_to_string(example()).unwrap();
    let written: Value = serde_saphyr::from_str(&text).unwrap();
    let defaults = serde_json::to_value(Config::default()).unwrap();
    let missing = keys_missing(&defaults, &written, "");
    assert!(missing.is_empty(), "{missing:?}");
}

/// The paths in `all` that `some` lacks.
fn keys_missing(all: &Value, some: &Value, path: &str) -> Vec<String> {
    let Value::Object(entries) = all else {
        return Vec::new();
    };
    let of_entry = |(key, value): (&String, &Value)| {
        let path = format!("{path}.{key}");
        match some.get(key) {
            Some(written) => keys_missing(value, written, &path),
            None => vec![path],
        }
    };
    entries.iter().flat_map(of_entry).collect()
}

#[test]
fn every_key_of_the_example_is_explained_by_a_comment_above_it() {
    let text = std::fs::read_to_string(example()).unwrap();
    let mut above = "";
    for line in text.lines() {
        let is_comment = line.trim_start().starts_with('#');
        if !is_comment && line.contains(':') {
            assert!(
                above.trim_start().starts_with('#'),
                "nothing explains {line:?}"
            );
        }
        above = line;
    }
}

#[test]
fn the_output_of_show_is_an_equivalent_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("waybill.yaml");
    std::fs::write(
        &file,
        "partitions: 7\nscheduler: {lease: 1500ms, leaseMargin: 200ms}\n",
    )
    .unwrap();
    let printed = waybill(&["config", "show", "--config", file.to_str().unwrap()]);
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");

    let shown = dir.path().join("shown.yaml");
    std::fs::write(&shown, &printed.stdout).unwrap();
    let [original, shown] = [file, shown]
        .map(|path| load::<Config>(Some(path.as_path()), &Environment::default()).unwrap());
    assert_eq!(shown, original);
}

#[test]
fn secrets_are_in_neither_show_nor_debug_and_reach_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let [file, secret] = ["waybill.yaml", "password"].map(|name| dir.path().join(name));
    std::fs::write(&secret, "hunter2\n").unwrap();
    let text = format!(
        "kafka:\n  properties:\n    security.protocol: SASL_SSL\n    sasl.username: alice\n    ssl.key.password: hunter3\n  \
         propertyFiles:\n    sasl.password: {}\n",
        secret.display()
    );
    std::fs::write(&file, text).unwrap();

    let printed = waybill(&["config", "show", "--config", file.to_str().unwrap()]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    let config = load::<Config>(Some(file.as_path()), &Environment::default()).unwrap();
    let config = config.finish().unwrap();
    for text in [printed, format!("{config:?}")] {
        assert!(
            text.contains("alice") && text.contains("(redacted)"),
            "{text}"
        );
        assert!(!text.contains("hunter"), "{text}");
    }
    let properties: Vec<_> = config.kafka.properties.iter().collect();
    assert!(properties.contains(&("sasl.password", "hunter2")));
    assert!(properties.contains(&("ssl.key.password", "hunter3")));
}

#[test]
fn check_refuses_a_file_with_position_and_nearest_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("waybill.yaml");
    std::fs::write(&file, "scheduler:\n  leaseMargn: 1s\n").unwrap();
    let checked = waybill(&["config", "check", file.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(checked.stderr).unwrap(),
        format!(
            "waybill: {}:2:3: unknown key scheduler.leaseMargn; did you mean \
             scheduler.leaseMargin?\n",
            file.display()
        )
    );

    let checked = waybill(&["config", "check", example().to_str().unwrap()]);
    assert_eq!(
        (checked.status.code(), printed(&checked.stdout).as_str()),
        (Some(0), "ok\n")
    );
}

#[test]
fn check_without_a_file_checks_the_effective_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("waybill.yaml");
    std::fs::write(&file, "scheduler: {lease: 2s}\n").unwrap();
    let file = file.to_str().unwrap();
    let missing = dir.path().join("missing.yaml");
    let missing = format!("[{}]", missing.display());
    let checked = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = command(&["config", "check"]);
        let output = command.args(flags).envs(variables.iter().copied());
        let output = output.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), printed(&text))
    };
    assert_eq!(checked(&[], &[]), (Some(0), "ok\n".to_owned()));
    let variables = [
        ("WAYBILL_PARTITIONS", "0", "partitions is 0"),
        ("WAYBILL_PARTITIONZ", "1", "WAYBILL_PARTITIONZ"),
        ("WAYBILL_CONFIG", file, "scheduler.lease"),
        ("WAYBILL_WORKFLOWS__FILES", &missing, "missing.yaml"),
    ];
    let variables = variables.map(|(name, value, reason)| (checked(&[], &[(name, value)]), reason));
    let flags = [
        ("--config", file, "scheduler.lease"),
        ("--partitions", "0", "partitions is 0"),
    ];
    let flags = flags.map(|(name, value, reason)| (checked(&[name, value], &[]), reason));
    for ((code, text), reason) in variables.into_iter().chain(flags) {
        assert_eq!(code, Some(2), "{reason}: {text}");
        assert!(
            text.starts_with("waybill: ") && text.contains(reason),
            "{text}"
        );
    }
}

#[test]
fn check_and_start_refuse_two_listeners_at_one_address() {
    let flags = ["--http", "127.0.0.1:9", "--admin", "127.0.0.1:9"];
    for command in [&["config", "check"][..], &["up"]] {
        let refused = waybill(&[command, &flags].concat());
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert_eq!(
            String::from_utf8(refused.stderr).unwrap(),
            "waybill: http.listen (--http) is 127.0.0.1:9 and admin.listen (--admin) is 127.0.0.1:9: these addresses \
             overlap: give each listener its own\n"
        );
    }
}

#[test]
fn an_invalid_log_filter_is_refused() {
    let refused = waybill(&["up", "--log", "bananas"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(refused.stderr).unwrap(),
        "waybill: telemetry.logFilter (or --log) is invalid: \"bananas\" is neither a level \
         (error, warn, info, debug, trace, off) nor a pair such as waybill=debug\n"
    );
    let of_nobody = "info,waybil_kafka=debug";
    let by_flag = waybill(&["config", "check", "--log", of_nobody]);
    let variable = [("WAYBILL_TELEMETRY__LOG_FILTER", of_nobody)];
    let by_variable = command(&["config", "check"]).envs(variable).output();
    for refused in [by_flag, by_variable.unwrap()] {
        assert_eq!(refused.status.code(), Some(2));
        let message = String::from_utf8(refused.stderr).unwrap();
        for part in [
            "waybill: telemetry.logFilter (or --log) is invalid: ",
            "no log line has the target \"waybil_kafka\"",
            "waybill_kafka, ",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

#[test]
fn an_unauthenticated_public_listener_is_refused_with_its_address() {
    for (role, flag, key) in [
        (&["up"][..], "--http", "http.listen"),
        (&["up"], "--admin", "admin.listen"),
        (&["up"], "--broker-listen", "broker.listen"),
        (&["up"], "--services", "services.listen"),
        (&["broker"], "--broker-listen", "broker.listen"),
        (&["services"], "--services", "services.listen"),
        (&["agents", "--brokers", "a:1"], "--admin", "admin.listen"),
        (&["config", "check"], "--http", "http.listen"),
    ] {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8080"] {
            let refused = waybill(&[role, &[flag, address]].concat());
            let message = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.code(), Some(2), "{role:?} {flag}: {message}");
            let named = format!("waybill: {key} ({flag}) is {address}: ");
            assert!(message.starts_with(&named), "{message}");
            for way_out in ["loopback", "--insecure"] {
                assert!(message.contains(way_out), "{message}");
            }
        }
    }
    for flags in [
        &["--http", "0.0.0.0:0", "--insecure"][..],
        &["--http", "[::1]:0", "--admin", "127.0.0.2:0"],
    ] {
        let line = [&["config", "check"][..], flags].concat();
        assert_eq!(waybill(&line).status.code(), Some(0), "{flags:?}");
    }
    let shown = waybill(&["config", "show", "--http", "0.0.0.0:0"]);
    assert_eq!(
        shown.status.code(),
        Some(0),
        "what only looks listens nowhere"
    );
}

#[test]
fn limits_of_the_broker_that_lock_its_own_roles_out_are_refused_with_the_need() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("waybill.yaml");
    for (broker, problem) in [
        (
            "connectionsMax: 2",
            "broker.connectionsMax is 2, and must be at least 13: ",
        ),
        (
            "connectionsPerAddressMax: 5",
            "broker.connectionsPerAddressMax is 5, and must be at least 10: ",
        ),
        // Enough for the topics of operations, but not for those of the agents.
        (
            "partitionsMax: 79",
            "broker.partitionsMax is 79, and must be at least 80, the partitions of ",
        ),
    ] {
        std::fs::write(&file, format!("broker: {{{broker}}}\n")).unwrap();
        for command in [&["config", "check"][..], &["up"]] {
            let refused = waybill(&[command, &["--config", file.to_str().unwrap()]].concat());
            let message = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.code(), Some(2), "{command:?}: {message}");
            assert!(
                message.starts_with(&format!("waybill: {problem}")),
                "{message}"
            );
        }
    }
}

#[test]
fn the_example_of_another_domain_runs() {
    let root = example().parent().unwrap().to_owned();
    let file = "examples/order-fulfilment/waybill.yaml";
    let checked = command(&["config", "check", file])
        .current_dir(root)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(checked.stderr).unwrap(), "");
    assert_eq!(
        (checked.status.code(), printed(&checked.stdout).as_str()),
        (Some(0), "ok\n")
    );
}

#[test]
fn a_broken_file_of_workflows_or_agents_is_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let workflow = "name: w\nversion: 1\nsteps:\n  - {name: a, agent: a, failureMax: 3}\n";
    std::fs::write(path("w.yaml"), workflow).unwrap();
    std::fs::write(path("a.yaml"), "agents: [{nam: a}]\n").unwrap();
    let (workflows, agents) = ("WAYBILL_WORKFLOWS__FILES", "WAYBILL_AGENTS__FILES");
    let transport = ("WAYBILL_AGENTS__TRANSPORT", "direct");
    let alone = ["--brokers", "127.0.0.1:1", "--scylla", "127.0.0.1:1"];
    let refused = |line: &[&str], variable: &str, file: &str| {
        let (file, data) = (path(file), path("data"));
        let output = command(line)
            .args(["--data-dir", &data, "--admin", "127.0.0.1:0"])
            .envs([(variable, file.as_str()), transport])
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line:?} {file}: {message}");
        let key = match (Path::new(&file).exists(), variable == workflows) {
            (true, _) => "",
            (false, true) => "workflows.files: ",
            (false, false) => "agents.files: ",
        };
        assert!(
            message.starts_with(&format!("waybill: {key}{file}")),
            "{message}"
        );
        assert!(!Path::new(&data).exists(), "{line:?} {file}");
        message
    };
    let message = refused(&["up"], workflows, "w.yaml");
    assert!(
        message.contains("unknown key steps.failureMax"),
        "{message}"
    );
    refused(&["up"], workflows, "missing.yaml");
    for role in ["agents", "ingestion", "scheduler", "supervisor"] {
        refused(&[&[role][..], &alone].concat(), workflows, "w.yaml");
    }
    refused(&["up"], agents, "missing.yaml");
    for role in ["agents", "scheduler"] {
        refused(&[&[role][..], &alone].concat(), agents, "a.yaml");
    }
}

#[test]
fn check_and_start_refuse_a_configuration_without_agents() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("waybill.yaml");
    std::fs::write(&file, "agents: {builtIn: false}\n").unwrap();
    let run = |line: &[&str]| {
        let output = command(line)
            .arg("--config")
            .arg(&file)
            .args(["--admin", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path().join("data"))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), text)
    };
    let brokers = ["--brokers", "127.0.0.1:1"];
    let refused = run(&["config", "check"]);
    assert_eq!(refused.0, Some(2), "{}", refused.1);
    let expected = "waybill: no agent to run: ";
    assert!(refused.1.starts_with(expected), "{}", refused.1);
    for line in [&["up"][..], &[&["agents"][..], &brokers].concat()] {
        let (code, message) = run(line);
        assert_eq!(code, refused.0, "{line:?}: {message}");
        assert!(
            refused.1.starts_with(message.trim_end()),
            "{line:?}: {message}"
        );
    }
    assert!(refused.1.contains("--role"), "{}", refused.1);
    let without = run(&["config", "check", "--no-agents"]);
    assert_eq!(without, (Some(0), String::new()), "as for `up --no-agents`");
    let of_up = run(&["config", "check", "--role", "up", "--no-agents"]);
    assert_eq!(of_up, without);
    let (code, message) = run(&["config", "check", "--role", "broker", "--no-agents"]);
    assert_eq!(code, Some(2), "{message}");
    let expected = "waybill: --no-agents is a flag of `up`";
    assert!(message.starts_with(expected), "{message}");
    let elsewhere = run(&[&["config", "check"][..], &brokers].concat());
    assert_eq!(
        elsewhere,
        (Some(0), String::new()),
        "agents may run elsewhere"
    );
}

#[test]
fn check_and_start_refuse_a_misspelt_agent_and_only_name_other_unknown_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let agents = "agents: [{name: crm, http: {baseUrl: 'http://a', request: {method: PUT, path: /a}}},\n  \
                  {name: mail-1, http: {baseUrl: 'http://a', request: {method: PUT, path: /a}}}]\n";
    std::fs::write(path("agents.yaml"), agents).unwrap();
    let run = |line: &[&str], agent: &str| {
        let step = format!("{{name: book, agent: {agent}, kind: pure}}");
        let workflow = format!("name: trip\nversion: 2\nsteps: [{step}]\n");
        std::fs::write(path("trip.yaml"), workflow).unwrap();
        let output = command(line)
            .env("WAYBILL_WORKFLOWS__FILES", path("trip.yaml"))
            .env("WAYBILL_AGENTS__FILES", path("agents.yaml"))
            .args(["--data-dir", &path("data"), "--admin", "127.0.0.1:0"])
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let alone = ["--brokers", "127.0.0.1:1", "--scylla", "127.0.0.1:1"];
    let scheduler = [&["scheduler"][..], &alone].concat();
    for (agent, near) in [("crn", "crm"), ("acount", "account")] {
        let expected = format!(
            "waybill: workflow trip, version 2: step book: unknown agent {agent:?}; did you mean {near:?}?"
        );
        for line in [
            &["config", "check"][..],
            &["up"],
            &[&["agents"][..], &alone].concat(),
        ] {
            let (code, message) = run(line, agent);
            assert_eq!(code, Some(2), "{line:?}: {message}");
            assert!(message.starts_with(&expected), "{line:?}: {message}");
        }
    }
    // Numbers distinguish agents.
    for agent in ["warehouse", "mail-2", "crm"] {
        let (code, message) = run(&["config", "check"], agent);
        assert_eq!(code, Some(0), "{message}");
        let is_named = message.contains(&format!("agents not in any file: {agent}"));
        assert_eq!(is_named, agent != "crm", "{message}");
    }
    let (_, message) = run(
        &[&["config", "check", "--role"][..], &scheduler].concat(),
        "crn",
    );
    assert!(
        message.starts_with("ok for scheduler"),
        "it reads no agents: {message}"
    );
}

#[test]
fn a_configuration_of_one_role_is_checked_as_for_that_role() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("broker.yaml");
    // Valid for `broker` only, because there are no agents and the workflow file does not exist.
    let text = "agents: {builtIn: false}\nworkflows: {files: [nowhere.yaml]}\n";
    std::fs::write(&file, text).unwrap();
    let check = |role: &[&str]| {
        let mut command = command(&["config", "check"]);
        let output = command.arg(&file).args(role).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    for role in ["broker", "services"] {
        let expected = (Some(0), format!("ok for {role}\n"));
        assert_eq!(check(&["--role", role]), expected);
    }
    let as_json = check(&["--role", "broker", "--output", "json"]).1;
    assert_eq!(as_json, "{\"role\":\"broker\"}\n");
    let here = std::env::current_dir().unwrap().join("nowhere.yaml");
    let unreadable = format!(
        "workflows.files: nowhere.yaml cannot be read ({}: a relative path starts at the working directory): No such",
        here.display()
    );
    for (flags, refused) in [
        (&[][..], &*unreadable),
        (&["--role", "up"], "workflows.files: nowhere.yaml"),
        (&["--role", "agents"], "--brokers is required"),
        (&["--role", "agents", "--brokers", "a:1"], "workflows.files"),
        (&["--role", "ingestion", "--brokers", "a:1"], "--scylla"),
        (
            &["--role", "broker", "--broker-listen", "0.0.0.0:0"],
            "broker.listen",
        ),
    ] {
        let (code, message) = check(flags);
        assert_eq!(code, Some(2), "{flags:?}: {message}");
        assert!(
            message.starts_with(&format!("waybill: {refused}")),
            "{message}"
        );
    }
    let elsewhere = check(&["--role", "broker", "--http", "0.0.0.0:0"]);
    assert_eq!(elsewhere.0, Some(0), "it does not listen there");
}

#[test]
fn check_reads_a_workflow_from_a_pipe() {
    let workflow = "name: errand\nversion: 1\nsteps:\n  - {name: go, agent: walker}\n";
    let mut checking = command(&["config", "check"])
        .env("WAYBILL_WORKFLOWS__FILES", "[/dev/stdin]")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = checking.stdin.take().unwrap();
    pipe.write_all(workflow.as_bytes()).unwrap();
    drop(pipe);
    let output = checking.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let message = printed(&output.stdout);
    let expected = "ok; agents not in any file: walker\n";
    assert_eq!(message, expected);
}

#[test]
fn a_data_directory_that_is_a_file_is_refused_before_anything_listens() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let line = [
        "broker",
        "--admin",
        "127.0.0.1:0",
        "--broker-listen",
        "127.0.0.1:0",
    ];
    let refused = command(&line)
        .arg("--data-dir")
        .arg(&file)
        .output()
        .unwrap();
    let log = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{log}");
    let expected = format!(
        "dataDir (--data-dir): {} is not a directory",
        file.display()
    );
    assert!(log.contains(&expected), "{log}");
    for absent in ["listening", "chmod", "file/broker"] {
        assert!(!log.contains(absent), "{absent}: {log}");
    }
}

#[test]
fn missing_arguments_are_refused_and_failed_writes_are_errors() {
    for (line, message) in [
        (&["store", "check"][..], "waybill: --scylla is required: "),
        (&["store", "migrate"], "waybill: --scylla is required: "),
        (
            &["schemas", "check"],
            "waybill: schemaRegistry.url is required: ",
        ),
        (
            &["up", "--services", "localhost:8082"],
            "waybill: --services must be an IP address and a port of at most 65535, such as \
                 127.0.0.1:8080",
        ),
        (
            &["up", "--http", "localhost:8080"],
            "error: invalid value 'localhost:8080' for '--http <ADDR>': must be an IP address and a port of at most \
             65535, such as 127.0.0.1:8080; host names are not allowed",
        ),
    ] {
        let refused = waybill(line);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{line:?}: {text}");
        assert!(text.starts_with(message), "{text}");
    }
    let dir = tempfile::tempdir().unwrap();
    let below_a_file = dir.path().join("file/man").display().to_string();
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert_eq!(waybill(&["man", &below_a_file]).status.code(), Some(1));
}

#[test]
fn usage_shows_only_flags_that_were_given_or_are_needed() {
    let usage = |line: &[&str]| {
        let mut command = command(line);
        let output = command.env("WAYBILL_CONFIG", example()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = printed(&output.stderr);
        let usage = text.lines().find(|line| line.starts_with("Usage: "));
        usage.unwrap_or_default().to_owned()
    };
    assert_eq!(usage(&["ops", "show"]), "Usage: waybill ops show <ID>");
    let file = example();
    let given = ["ops", "show", "--config", file.to_str().unwrap()];
    assert_eq!(
        usage(&given),
        "Usage: waybill ops show --config <FILE> <ID>"
    );
}

#[test]
fn usage_errors_end_with_code_2_and_help_with_0() {
    for line in [
        &["fly"][..],
        &["up", "--no-such-flag"],
        &[],
        &["up", "--http", "here"],
        &["agents"],
    ] {
        assert_eq!(waybill(line).status.code(), Some(2), "{line:?}");
    }
    for line in [&["--help"][..], &["up", "--help"], &["--version"]] {
        assert_eq!(waybill(line).status.code(), Some(0), "{line:?}");
    }
}

fn waybill(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// The program without Waybill's environment variables.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command).args(arguments);
    command
}
