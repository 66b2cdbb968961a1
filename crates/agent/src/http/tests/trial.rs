//! One request for the author of an agent.

use std::collections::BTreeMap;

use super::*;

const SECRET: &str = "s3cr3t";

fn config(service: &Service, secret: &std::path::Path, more: &str) -> AgentConfig {
    let settings = format!(
        "baseUrl: {}\nauth: {{ bearer: {{ tokenFile: {} }} }}\nrequest: {{ method: PUT, path: \
         '/packages/{{{{input.id}}}}', headers: {{ X-Api-Key: '{{{{input.key?}}}}' }}, body: {{ size: \
         '{{{{input.size}}}}' }}, keep: {{ shelf: /shelf }} }}\n{more}",
        service.url,
        secret.display()
    );
    let yaml = format!(
        "agents:\n  - name: package\n    http:\n{}",
        indent(&settings)
    );
    AgentsFile::from_yaml(&yaml).unwrap().agents.remove(0)
}

#[test]
fn the_request_is_shown_without_credentials_and_without_their_files() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let service = runtime.block_on(Service::start());
    let config = config(&service, std::path::Path::new("/nowhere/token"), "");
    let request = request().input(r#"{"id": "p 1", "size": 2, "key": "k-1"}"#);
    let shown = config
        .preview(&request.build(), &Variables::default())
        .unwrap();
    assert_eq!(shown.method, "PUT");
    assert_eq!(shown.url, format!("{}/packages/p%201", service.url));
    assert_eq!(shown.body, r#"{"size":2}"#);
    let headers: BTreeMap<_, _> = shown.headers.into_iter().collect();
    assert_eq!(headers["authorization"], "(redacted)");
    assert_eq!(headers["x-api-key"], "(redacted)");
    assert!(headers["idempotency-key"].ends_with("/create"));
    assert!(service.asked().is_empty());
}

#[tokio::test]
async fn the_answer_is_shown_with_its_meaning() {
    let service = Service::start().await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), SECRET).unwrap();
    let config = config(&service, secret.path(), "retries: { max: 3 }");
    let within = Duration::from_secs(20);
    let variables = variables("http://h");
    let send = || config.send_once(request().build(), &variables, within);

    service.answers(|_| json(201, r#"{"shelf": "A7", "echo": "s3cr3t"}"#));
    let trial = send().await.unwrap();
    let answer = trial.answer.unwrap();
    assert_eq!(answer.status, "201 Created");
    assert_eq!(answer.body, r#"{"shelf": "A7", "echo": "(redacted)"}"#);
    let outputs = vec![("shelf".to_owned(), "A7".to_owned())];
    assert_eq!(trial.outcome, Outcome::Success { outputs });
    let sent = service.asked()[0].headers["authorization"].clone();
    assert_eq!(sent, format!("Bearer {SECRET}"));

    service.answers(|_| json(503, "busy"));
    let trial = send().await.unwrap();
    assert_eq!(kind_and_code(&trial.outcome), ("transient", "http-503"));
    assert_eq!(service.asked().len(), 2, "it is sent once");

    let undo = request().action(Action::Compensate).build();
    let error = config.preview(&undo, &Variables::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "agent \"package\" has no request to undo step \"create\""
    );
    let incomplete = request().input("{}").build();
    let error = config.preview(&incomplete, &Variables::default());
    let message = chain(&error.unwrap_err());
    assert!(message.contains("template-value-missing"), "{message}");
    assert!(message.contains("{{input.id}}"), "{message}");
}
