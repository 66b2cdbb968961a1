use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use clap::Parser;
use tempfile::TempDir;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: AgentCommand,
}

fn run(line: &[&str], files: &[PathBuf]) -> anyhow::Result<TryResult> {
    let line = ["agent", "try"].iter().chain(line);
    let Line { command } = Line::try_parse_from(line).unwrap();
    command.run(files, &Variables::default())
}

fn file(directory: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn agents(directory: &TempDir, base_url: &str) -> PathBuf {
    let token = file(directory, "token", "s3cr3t\n");
    let yaml = format!(
        "agents:\n  - name: stock\n    http:\n      baseUrl: {base_url}\n      auth: {{ bearer: {{ \
         tokenFile: {} }} }}\n      request:\n        method: PUT\n        path: \
         '/items/{{{{input.item}}}}'\n        body: {{ by: '{{{{results.order.by}}}}' }}\n        \
         keep: {{ shelf: /shelf }}\n",
        token.display()
    );
    file(directory, "agents.yaml", &yaml)
}

#[test]
fn the_request_is_shown_and_not_sent() {
    let directory = tempfile::tempdir().unwrap();
    let agents = agents(&directory, "http://stock.invalid");
    std::fs::remove_file(directory.path().join("token")).unwrap();
    let input = file(&directory, "input.json", r#"{"item": "a b"}"#);
    let input = input.to_str().unwrap();
    let operation = "0197a6b0-1234-7000-8000-000000000001";
    let line = [
        "stock",
        "reserve",
        "--input",
        input,
        "--result",
        "order.by=Ada",
        "--operation",
        operation,
    ];
    let tried = run(&line, &[agents]).unwrap();
    assert!(tried.is_success);
    for expected in [
        "PUT http://stock.invalid/items/a%20b\n",
        "idempotency-key: 0197a6b0-1234-7000-8000-000000000001/reserve\n",
        "authorization: (redacted)\n",
        "\n{\"by\":\"Ada\"}\n",
        "Not sent",
    ] {
        assert!(tried.text.contains(expected), "{}", tried.text);
    }
}

#[test]
fn the_answer_is_shown_with_its_meaning() {
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let agents = agents(
        &directory,
        &format!("http://{}", listener.local_addr().unwrap()),
    );
    let service = std::thread::spawn(move || {
        let mut heads = Vec::new();
        for (status, body) in [
            ("201 Created", r#"{"shelf":"A7"}"#),
            ("409 Conflict", r#"{"code":"sold-out"}"#),
        ] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap();
            heads.push(String::from_utf8_lossy(&request[..length]).into_owned());
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
        heads
    });
    let input = file(&directory, "input.json", r#"{"item": "a"}"#);
    let agents = agents.to_str().unwrap();
    let line = [
        "stock",
        "reserve",
        "--agents",
        agents,
        "--send",
        "--input",
        input.to_str().unwrap(),
        "--result",
        "order.by=Ada",
    ];
    let tried = run(&line, &[]).unwrap();
    assert!(tried.is_success, "{}", tried.text);
    for expected in [
        "201 Created (after",
        "{\"shelf\":\"A7\"}",
        "Success, keeps shelf=A7",
    ] {
        assert!(tried.text.contains(expected), "{}", tried.text);
    }
    assert!(!tried.text.contains("s3cr3t"));
    let refused = run(&line, &[]).unwrap();
    assert!(!refused.is_success);
    let expected = "Permanent, sold-out: ";
    assert!(refused.text.contains(expected), "{}", refused.text);
    let heads = service.join().unwrap();
    assert!(heads[0].contains("authorization: Bearer s3cr3t"));
}

#[test]
fn errors_name_the_file_its_line_or_the_known_agents() {
    let directory = tempfile::tempdir().unwrap();
    let agents = agents(&directory, "http://stock.invalid");
    let broken = "agents:\n  - name: broken\n    http:\n      baseUrl: http://h\n      request: { \
                  method: GET, path: / }\n      redirects: { max: 0 }\n";
    let broken = file(&directory, "broken.yaml", broken);
    let list = file(&directory, "list.json", "[]");
    let files = [agents, broken];
    for (line, expected) in [
        (&["stok", "reserve"][..], "known agents: stock, broken"),
        (&["broken", "reserve"][..], "broken.yaml:6"),
        (&["stock", "reserve"][..], "{{input.item}}"),
        (
            &["stock", "reserve", "--action", "undo"][..],
            "no request to undo step",
        ),
        (
            &["stock", "reserve", "--input", list.to_str().unwrap()][..],
            "is not a JSON object",
        ),
    ] {
        let message = format!("{:#}", run(line, &files).unwrap_err());
        assert!(message.contains(expected), "{line:?}: {message}");
    }
    let message = run(&["stock", "reserve"], &[]).unwrap_err().to_string();
    assert!(message.contains("--agents"), "{message}");
}
