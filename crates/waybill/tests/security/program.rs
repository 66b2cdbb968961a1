//! A directory with the files of a program with authentication, and the program as a process.

use std::fs::{File, Permissions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use reqwest::Client;
use sha2::{Digest as _, Sha256};
use waybill_test_support::certificate::Certificate;
use waybill_test_support::process::without_variables;

use super::PATIENCE;
use super::jwt::Signing;

/// A token and its file.
pub struct Token {
    pub text: String,
    pub file: PathBuf,
    _directory: tempfile::TempDir,
}

impl Token {
    /// A token that is in no tokens file.
    pub fn unknown() -> Self {
        let made = output(program().args([
            "token",
            "create",
            "--name",
            "x",
            "--scopes",
            "read",
            "--all-tenants",
        ]));
        Self::of(made.stderr.trim())
    }

    fn of(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, format!("{text}\n")).unwrap();
        Self {
            text: text.to_owned(),
            file,
            _directory: directory,
        }
    }
}

/// The files that the program is started with.
pub struct Site {
    pub certificate: Certificate,
    directory: tempfile::TempDir,
    jwt: String,
}

impl Site {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let certificate = Certificate::new();
        certificate.write(directory.path());
        std::fs::write(directory.path().join("tokens.yaml"), "[]\n").unwrap();
        let site = Self {
            certificate,
            directory,
            jwt: String::new(),
        };
        site.configure();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configure(&self) {
        let here = self.directory.path().display();
        let tls = format!("{{certFile: {here}/tls.crt, keyFile: {here}/tls.key}}");
        let text = format!(
            "dataDir: {here}/data\n\
             http: {{listen: '127.0.0.1:0', tls: {tls}}}\n\
             admin: {{listen: '127.0.0.1:0', tls: {tls}}}\n\
             broker: {{listen: '127.0.0.1:0'}}\n\
             services: {{listen: '127.0.0.1:0'}}\n\
             auth: {{tokensFile: {here}/tokens.yaml{}}}\n",
            self.jwt
        );
        std::fs::write(self.path("waybill.yaml"), text).unwrap();
    }

    /// Adds a token to the tokens file.
    pub fn token(&mut self, name: &str, scopes: &str, tenant: &str) -> Token {
        self.make_token(&["--name", name, "--scopes", scopes, "--tenant", tenant])
    }

    /// The same for agents.
    pub fn agents_token(&mut self, name: &str, agents: &str) -> Token {
        self.make_token(&["--name", name, "--agents", agents, "--all-tenants"])
    }

    /// `waybill agents` in its own process, with its token in a file as in a pod.
    pub fn agents(&self, up: &Up, token: &Token) -> Agents {
        let config = self.path("agents.yaml");
        let text = format!(
            "kafka:\n  brokers: ['{}']\n  properties: {{security.protocol: SASL_PLAINTEXT, sasl.mechanism: SCRAM-SHA-256, \
             sasl.username: agents}}\n  propertyFiles: {{sasl.password: {}}}\n\
             dataDir: {}\n\
             admin: {{listen: '127.0.0.1:0'}}\n\
             services: {{listen: '{}'}}\n",
            up.broker,
            token.file.display(),
            self.path("agents-data").display(),
            up.listening("services").unwrap(),
        );
        std::fs::write(&config, text).unwrap();
        let mut command = program();
        command.arg("agents").arg("--config").arg(&config);
        command.stdout(Stdio::null()).stdin(Stdio::null());
        Agents(command.spawn().unwrap())
    }

    fn make_token(&mut self, flags: &[&str]) -> Token {
        let made = output(program().args(["token", "create"]).args(flags));
        assert_eq!(made.code, 0, "{}", made.text);
        let file = self.path("tokens.yaml");
        let before = std::fs::read_to_string(&file).unwrap();
        let before = before.replace("[]\n", "");
        std::fs::write(&file, before + &made.stdout).unwrap();
        let token = Token::of(made.stderr.trim());
        let hash: String = Sha256::digest(&token.text)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert!(made.stdout.contains(&hash), "{}", made.stdout);
        token
    }

    /// Makes a file readable for all users.
    pub fn let_everybody_read(&self, name: &str) {
        let mode = Permissions::from_mode(0o644);
        std::fs::set_permissions(self.path(name), mode).unwrap();
    }

    /// Leaves the tokens file half-edited.
    pub fn break_tokens(&self) {
        let file = File::options().append(true).open(self.path("tokens.yaml"));
        writeln!(file.unwrap(), "- name: half").unwrap();
    }

    /// Removes a token and repairs the file.
    pub fn revoke(&self, name: &str) {
        let file = self.path("tokens.yaml");
        let text = std::fs::read_to_string(&file).unwrap();
        let entries = text.split_inclusive("\n- ").map(str::to_owned);
        let left: String = entries
            .map(|entry| {
                entry
                    .trim_start_matches("- ")
                    .trim_end_matches("- ")
                    .to_owned()
            })
            .filter(|entry| entry.contains("sha256") && !entry.contains(&format!("\"{name}\"")))
            .map(|entry| format!("- {entry}"))
            .collect();
        std::fs::write(file, left).unwrap();
    }

    pub fn renew_certificate(&mut self) {
        self.certificate = Certificate::new();
        self.certificate.write(self.directory.path());
    }

    pub fn take_jwts(&mut self, signing: &Signing) {
        let keys = self.path("keys.json");
        std::fs::write(&keys, signing.set()).unwrap();
        self.jwt = format!(
            ", jwt: {{jwksFile: {}, issuer: 'https://id.example', audience: waybill}}",
            keys.display()
        );
        self.configure();
    }

    /// Accepts JSON web tokens by these settings.
    pub fn take_jwts_by(&mut self, settings: &str) {
        self.jwt = format!(", jwt: {{{settings}}}");
        self.configure();
    }

    /// A client that trusts only the program's certificate.
    pub fn client(&self) -> Client {
        let pem = self.certificate.x509.to_pem().unwrap();
        Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()])
            .resolve("localhost", SocketAddr::from(([127, 0, 0, 1], 0)))
            .build()
            .unwrap()
    }

    /// Starts `waybill up` and waits until it listens.
    pub fn up(&self, flags: &[&str]) -> Up {
        Up::start(self.directory.path(), &self.path("waybill.yaml"), flags)
    }

    /// Runs a command with a token and the certificate.
    pub fn run(&self, arguments: &[&str], token: Option<&Token>) -> Done {
        let mut command = self.command(arguments, token);
        command.env("WAYBILL_CA_FILE", self.path("tls.crt"));
        output(&mut command)
    }

    pub fn run_without_ca(&self, arguments: &[&str], token: Option<&Token>) -> Done {
        output(&mut self.command(arguments, token))
    }

    /// Runs a command without the configuration.
    pub fn run_without_configuration(arguments: &[&str]) -> Done {
        output(program().args(arguments))
    }

    fn command(&self, arguments: &[&str], token: Option<&Token>) -> Command {
        let mut command = program();
        command
            .args(arguments)
            .arg("--config")
            .arg(self.path("waybill.yaml"));
        if let Some(token) = token {
            command.env("WAYBILL_TOKEN_FILE", &token.file);
        }
        command
    }
}

/// The result of a command.
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    /// Both outputs.
    pub text: String,
}

fn output(command: &mut Command) -> Done {
    let output = command.output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    Done {
        code: output.status.code().unwrap(),
        text: format!("{stdout}{stderr}"),
        stdout,
        stderr,
    }
}

/// The program without Waybill's environment variables.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command);
    command
}

/// A running `waybill up`.
pub struct Up {
    pub http: SocketAddr,
    pub admin: SocketAddr,
    pub broker: SocketAddr,
    child: Child,
    output: PathBuf,
}

impl Up {
    fn start(directory: &Path, config: &Path, flags: &[&str]) -> Self {
        let output = directory.join("output");
        let file = File::create(&output).unwrap();
        let child = program()
            .arg("up")
            .args(flags)
            .arg("--config")
            .arg(config)
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut up = Self {
            http: SocketAddr::from(([0, 0, 0, 0], 0)),
            admin: SocketAddr::from(([0, 0, 0, 0], 0)),
            broker: SocketAddr::from(([0, 0, 0, 0], 0)),
            child,
            output,
        };
        let began = Instant::now();
        loop {
            let listening = |name| up.listening(name);
            if let (Some(http), Some(admin), Some(broker)) =
                (listening("http"), listening("admin"), listening("broker"))
            {
                (up.http, up.admin, up.broker) = (http, admin, broker);
                return up;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "it does not listen: {}",
                up.text()
            );
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// The announced address of a listener.
    fn listening(&self, name: &str) -> Option<SocketAddr> {
        let announced = format!("listening {name} ");
        let text = self.text();
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(&announced))?;
        line.parse().ok()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap()).into_owned()
    }

    /// Waits until its output contains this text.
    pub async fn wait_for(&self, words: &str) {
        until(async || self.text().contains(words)).await;
    }

    /// Stops it gracefully and returns its whole output.
    pub fn stop(mut self) -> String {
        let id = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status().unwrap();
        let status = self.child.wait().unwrap();
        let text = self.text();
        assert!(status.success(), "{text}");
        text
    }
}

/// A running `waybill agents`.
pub struct Agents(Child);

impl Drop for Agents {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the condition is true.
pub async fn until(holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "the program takes too long");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}
