//! Runs every command of the README's tour, of docs/failure-walkthrough.md, of
//! docs/first-workflow.md and of docs/workflow-tests.md, in order, and compares its output with the
//! page.
//!
//! A block ```` ```console ```` has commands (`$ …`) with their output below. A `console until`
//! block is repeated until the output matches. `…` matches any text within a line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use waybill_test_support::process::{Process, log_tail, without_disk_warning, without_variables};

/// The time limit for an output. Generous, because it limits only failures.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command of the page.
#[derive(Debug, PartialEq)]
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
    until: bool,
}

#[test]
fn the_commands_of_the_walkthrough_print_what_the_page_shows() {
    let setup = |root: &Path| {
        Setup::start(
            root,
            Some("examples/failure-walkthrough/waybill.yaml"),
            None,
        )
    };
    walk("docs/failure-walkthrough.md", setup);
}

#[test]
fn the_commands_of_the_tour_print_what_the_readme_shows() {
    walk("README.md", |root| Setup::start(root, None, None));
}

#[test]
fn the_commands_about_workflow_tests_print_what_the_page_shows() {
    walk("docs/workflow-tests.md", Setup::without_processes);
}

#[test]
fn the_first_workflow_matches_its_page() {
    const PAGE: &str = "docs/first-workflow.md";
    let example = Path::new("examples/first-workflow");
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    for file in ["workflow.yaml", "agents.yaml", "waybill.yaml", "cases.yaml"] {
        let path = example.join(file);
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        let block = format!("```yaml\n# {}\n{text}```\n", path.display());
        assert!(
            page.contains(&block),
            "{PAGE} does not show {file} as it is"
        );
    }
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: {PAGE}: there is no python3 for its services");
        return;
    }
    let config = example.join("waybill.yaml");
    let services = example.join("services.py");
    walk(PAGE, |root| {
        Setup::start(root, config.to_str(), Some(&services))
    });
}

/// Runs the commands of a page in a setup.
fn walk(page: &str, start: impl FnOnce(&Path) -> Setup) {
    let root = root();
    let text = std::fs::read_to_string(root.join(page)).unwrap();
    let steps = steps(&text);
    assert!(steps.len() >= 4, "{page} has lost its commands");
    let setup = start(&root);
    for step in steps {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = setup.run(&step.command);
            if matches(&step.output, &output) {
                break;
            }
            assert!(
                step.until && Instant::now() < deadline,
                "{page}, line {}: {}\nprints\n{output}\nnot\n{}\n{}",
                step.line,
                step.command,
                step.output.join("\n"),
                setup.log(),
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut block: Option<bool> = None;
    for (number, line) in page.lines().enumerate() {
        match (block, line) {
            (None, "```console") => block = Some(false),
            (None, "```console until") => block = Some(true),
            (Some(_), "```") => block = None,
            (Some(until), line) => match line.strip_prefix("$ ") {
                Some(command) => steps.push(Step {
                    line: number + 1,
                    command: command.to_owned(),
                    output: Vec::new(),
                    until,
                }),
                None => steps
                    .last_mut()
                    .expect("an output follows a command")
                    .output
                    .push(line.to_owned()),
            },
            (None, _) => {}
        }
    }
    steps
}

fn matches(expected: &[String], output: &str) -> bool {
    if expected == ["…"] {
        return !output.trim().is_empty();
    }
    let lines: Vec<&str> = output.lines().collect();
    lines.len() == expected.len()
        && expected
            .iter()
            .zip(lines)
            .all(|(expected, line)| line_matches(expected, line))
}

fn line_matches(expected: &str, line: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in between {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The `waybill up` of the page on free ports, and the services, if the page starts its own.
struct Setup {
    dir: TempDir,
    _processes: Vec<Process>,
    root: PathBuf,
    config: Option<PathBuf>,
    /// The addresses on the page, and the actual ones.
    addresses: Vec<(&'static str, SocketAddr)>,
}

impl Setup {
    /// Only the program, for commands that need no other.
    fn without_processes(root: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("waybill");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_waybill"), program).unwrap();
        Self {
            _processes: Vec::new(),
            root: root.to_owned(),
            config: None,
            addresses: Vec::new(),
            dir,
        }
    }

    fn start(root: &Path, config: Option<&str>, services: Option<&Path>) -> Self {
        let mut setup = Self {
            config: config.map(|config| root.join(config)),
            ..Self::without_processes(root)
        };
        let log = setup.dir.path().join("log.txt");
        let mut listeners = vec![
            ("http", "127.0.0.1:8080"),
            ("admin", "127.0.0.1:8081"),
            ("broker", "127.0.0.1:9092"),
        ];
        match services {
            None => listeners.push(("services", "127.0.0.1:8082")),
            Some(script) => {
                let mut command = Command::new("python3");
                command.arg(root.join(script)).arg("0");
                let (process, addresses) = Process::start(command, &["services"], &log);
                setup._processes.push(process);
                let address = addresses["services"];
                setup.addresses.push(("127.0.0.1:8090", address));
                setup.config = Some(setup.moved(script.parent().unwrap()));
            }
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command.current_dir(root).arg("up");
        if let Some(config) = &setup.config {
            command.arg("--config").arg(config);
        }
        command.arg("--data-dir").arg(setup.dir.path().join("data"));
        for flag in ["--http", "--admin", "--broker-listen"] {
            command.args([flag, "127.0.0.1:0"]);
        }
        match services {
            None => command.args(["--services", "127.0.0.1:0"]),
            Some(_) => command.arg("--no-services"),
        };
        let names: Vec<&str> = listeners.iter().map(|(name, _)| *name).collect();
        let (process, addresses) = Process::start(command, &names, &log);
        setup._processes.push(process);
        let moved = listeners
            .iter()
            .map(|(name, page)| (*page, addresses[*name]));
        setup.addresses.extend(moved);
        let ready = setup.run("waybill ready --wait 60s && echo ready");
        assert_eq!(ready, "ready\n", "{}", setup.log());
        setup
    }

    /// The configuration of an example, with its agents' addresses replaced.
    fn moved(&self, example: &Path) -> PathBuf {
        for file in ["agents.yaml", "waybill.yaml"] {
            let text = std::fs::read_to_string(self.root.join(example).join(file)).unwrap();
            let agents = example.join("agents.yaml");
            let here = self.dir.path().join("agents.yaml");
            let text = self.as_here(&text);
            let text = text.replace(agents.to_str().unwrap(), here.to_str().unwrap());
            std::fs::write(self.dir.path().join(file), text).unwrap();
        }
        self.dir.path().join("waybill.yaml")
    }

    /// A text with this setup's addresses instead of the page's.
    fn as_here(&self, text: &str) -> String {
        let moved = self.addresses.iter();
        moved.fold(text.to_owned(), |text, (page, here)| {
            text.replace(page, &here.to_string())
        })
    }

    /// Runs a command of the page.
    fn run(&self, command: &str) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("bash");
        without_variables(&mut shell)
            .args(["-c", &self.as_here(command)])
            .current_dir(&self.root)
            .env("PATH", format!("{}:{path}", self.dir.path().display()));
        if let Some(config) = &self.config {
            shell.env("WAYBILL_CONFIG", config);
        }
        for (listener, page) in [
            ("WAYBILL_HTTP__LISTEN", "127.0.0.1:8080"),
            ("WAYBILL_ADMIN__LISTEN", "127.0.0.1:8081"),
            ("WAYBILL_BROKER__LISTEN", "127.0.0.1:9092"),
        ] {
            shell.env(listener, self.as_here(page));
        }
        let output = shell.output().unwrap();
        without_disk_warning(&String::from_utf8(output.stdout).unwrap())
    }

    fn log(&self) -> String {
        log_tail(&self.dir.path().join("log.txt"))
    }
}
