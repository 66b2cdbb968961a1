//! A PostgreSQL server in its own directory.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use waybill_test_support::ports::free_address;

use crate::shop::wait_until;

/// A running server with the database `shop`. Dropping it kills it.
pub struct Postgres {
    server: Child,
    psql: PathBuf,
    port: u16,
}

/// A transaction that holds a lock until it is dropped.
pub struct Lock {
    psql: Child,
    _commands: ChildStdin,
}

impl Postgres {
    /// Starts a server with its files in `dir`, or returns why that is not possible here.
    pub fn start(dir: &Path) -> Result<Self, String> {
        let initdb = find("initdb").ok_or("PostgreSQL is not installed")?;
        let psql = find("psql").ok_or("PostgreSQL's psql is not installed")?;
        // The server refuses to run as root.
        let user = match id(&["-u"])? {
            0 => Some((id(&["-u", "postgres"])?, id(&["-g", "postgres"])?)),
            _ => None,
        };
        let data = dir.join("postgres");
        fs::create_dir(&data).unwrap();
        if let Some((user, group)) = user {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
            chown(&data, Some(user), Some(group)).unwrap();
        }
        let as_user = |program: &Path| {
            let mut command = Command::new(program);
            if let Some((user, group)) = user {
                command.uid(user).gid(group);
            }
            command.current_dir(&data);
            command
        };
        let made = as_user(&initdb)
            .args(["--auth=trust", "--username=shop", "--encoding=UTF8", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let port = free_address().port();
        let log = fs::File::create(dir.join("postgres.log")).unwrap();
        let server = as_user(&initdb.with_file_name("postgres"))
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&data)
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Self { server, psql, port };
        wait_until("PostgreSQL is up", || {
            let asked = server.psql("postgres", "CREATE DATABASE shop").output();
            asked.unwrap().status.success()
        });
        Ok(server)
    }

    /// The connection string for libpq.
    pub fn database(&self) -> String {
        format!("host=127.0.0.1 port={} user=shop dbname=shop", self.port)
    }

    /// The result of a query: a line per row, fields separated by `|`.
    pub fn ask(&self, query: &str) -> String {
        let output = self.psql("shop", query).output().unwrap();
        assert!(output.status.success(), "{query}: {output:?}");
        String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    /// The number that a query returns.
    pub fn number(&self, query: &str) -> i64 {
        self.ask(query).parse().unwrap()
    }

    /// Blocks writes to a table. Rows can still be read and locked.
    pub fn lock(&self, table: &str) -> Lock {
        let mut psql = self
            .psql_command("shop")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut commands = psql.stdin.take().unwrap();
        writeln!(
            commands,
            "BEGIN; LOCK TABLE {table} IN SHARE MODE; SELECT 'locked';"
        )
        .unwrap();
        let mut lines = BufReader::new(psql.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "locked"));
        Lock {
            psql,
            _commands: commands,
        }
    }

    /// Whether any session waits for a lock.
    pub fn is_waited_in(&self) -> bool {
        self.number("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0
    }

    fn psql(&self, database: &str, query: &str) -> Command {
        let mut command = self.psql_command(database);
        command.args(["-c", query]);
        command
    }

    fn psql_command(&self, database: &str) -> Command {
        let mut command = Command::new(&self.psql);
        command
            .args(["-X", "-A", "-t", "-q", "-h", "127.0.0.1", "-U", "shop"])
            .args(["-p", &self.port.to_string(), "-d", database]);
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

/// The path of a PostgreSQL program: on `PATH`, or where packages install it.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = [
        "/usr/lib/postgresql",
        "/opt/homebrew/opt",
        "/usr/local/opt",
        "/usr",
    ]
    .into_iter()
    .filter_map(|dir| fs::read_dir(dir).ok())
    .flat_map(|entries| entries.filter_map(Result::ok))
    .map(|entry| entry.path())
    .filter(|dir| dir.to_string_lossy().contains("postgresql") || dir.starts_with("/usr/pgsql"))
    .map(|dir| dir.join("bin"));
    // A link on `PATH` may be in another directory than the server that `initdb` starts.
    versions
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

fn id(arguments: &[&str]) -> Result<u32, String> {
    let output = Command::new("id").args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
        format!(
            "there is no user for PostgreSQL: id {}",
            arguments.join(" ")
        )
    })
}
