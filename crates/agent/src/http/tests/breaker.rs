//! The circuit breaker.

use super::*;

const BREAKER: &str = "retries: { max: 0 }\nbreaker: { failureRate: 0.5, calls: 4, openFor: 200ms, halfOpenCalls: 2 }\n";

/// A breaker that stays open for longer than any test takes.
const LASTING_BREAKER: &str =
    "retries: { max: 0 }\nbreaker: { failureRate: 0.5, calls: 4, openFor: 1h }\n";

#[tokio::test]
async fn the_breaker_opens_and_closes_again() {
    let service = Service::start().await;
    let agent = agent(&service.url, &format!("{BREAKER}{PUT}"));
    // Refusals for good do not count against the service.
    service.answers(|_| json(404, ""));
    for _ in 0..20 {
        assert_eq!(kind_and_code(&outcome(&agent).await).0, "permanent");
    }
    service.answers(|_| json(500, ""));
    let refused = until(&agent, "not-attempted").await;
    let asked = service.asked().len();
    let Outcome::NotAttempted {
        error,
        retry_after_ms,
    } = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(error.code, "breaker-open");
    assert!((1..=200).contains(&retry_after_ms), "{retry_after_ms}");
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "not-attempted");
    assert_eq!(
        service.asked().len(),
        asked,
        "an open breaker sends nothing"
    );

    // A failed probe opens the breaker again; once the service has recovered, it closes.
    until(&agent, "unknown").await;
    until(&agent, "not-attempted").await;
    service.answers(|_| json(200, ""));
    until(&agent, "success").await;
    for _ in 0..20 {
        assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
    }
}

#[tokio::test]
async fn a_half_open_breaker_allows_few_concurrent_calls() {
    let service = Service::start().await;
    let agent = Arc::new(agent(&service.url, &format!("{BREAKER}{PUT}")));
    service.answers(|_| json(500, ""));
    until(&agent, "not-attempted").await;
    let before = service.asked().len();
    let release = service.hold();
    service.answers(|_| json(200, ""));

    let deadline = Instant::now() + PATIENCE;
    let mut probes = Vec::new();
    while service.asked().len() < before + 2 {
        assert!(Instant::now() < deadline, "the breaker never half-opened");
        let agent = Arc::clone(&agent);
        probes.push(tokio::spawn(async move { outcome(&agent).await }));
        tokio::task::yield_now().await;
        sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..10 {
        assert_eq!(kind_and_code(&outcome(&agent).await).0, "not-attempted");
    }
    assert_eq!(service.asked().len(), before + 2);
    *service.hold.lock().unwrap() = None;
    release.notify_waiters();
    let mut succeeded = 0;
    for probe in probes {
        succeeded += usize::from(kind_and_code(&probe.await.unwrap()).0 == "success");
    }
    assert_eq!(succeeded, 2);
    until(&agent, "success").await;
}

#[tokio::test]
async fn a_probe_that_fails_without_effect_costs_its_operation_no_failure() {
    let service = Service::start().await;
    let agent = agent(&service.url, &format!("{BREAKER}{PUT}"));
    service.answers(|_| json(503, r#"{"code": "closed-today"}"#));
    until(&agent, "not-attempted").await;
    // From here on the breaker is open or half-open: calls that it lets through are probes.
    let deadline = Instant::now() + PATIENCE;
    let mut probes = 0;
    while probes < 10 {
        assert!(Instant::now() < deadline, "only {probes} probes");
        let outcome = outcome(&agent).await;
        match kind_and_code(&outcome) {
            ("not-attempted", "breaker-open") => sleep(Duration::from_millis(1)).await,
            ("not-attempted", "closed-today") => probes += 1,
            _ => panic!("{outcome:?}"),
        }
    }
    service.answers(|_| json(200, ""));
    until(&agent, "success").await;
}

#[tokio::test]
async fn failures_of_undos_and_probes_open_the_breaker_and_absence_does_not() {
    for action in [Action::Compensate, Action::Probe] {
        let service = Service::start().await;
        let agent = agent(&service.url, &format!("{LASTING_BREAKER}{WITH_INVERSES}"));
        service.answers(|_| json(404, ""));
        for _ in 0..20 {
            let absent = outcome_of(&agent, action).await;
            assert!(
                matches!(absent, Outcome::Success { .. } | Outcome::NotPerformed),
                "{absent:?}"
            );
        }
        service.answers(|_| json(500, ""));
        until_of(&agent, action, "not-attempted").await;
        let asked = service.asked().len();
        for refused in ACTIONS {
            assert_eq!(
                kind_and_code(&outcome_of(&agent, refused).await),
                ("not-attempted", "breaker-open"),
                "{refused:?}"
            );
        }
        assert_eq!(service.asked().len(), asked);
    }
}

/// Calls until an outcome of this kind is returned.
async fn until(agent: &HttpAgent, kind: &str) -> Outcome {
    until_of(agent, Action::Run, kind).await
}

async fn until_of(agent: &HttpAgent, action: Action, kind: &str) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let outcome = outcome_of(agent, action).await;
        if kind_and_code(&outcome).0 == kind {
            return outcome;
        }
        assert!(Instant::now() < deadline, "no {kind}, last {outcome:?}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Makes six calls of 100 ms each to a service that does not answer them. Each has waited for
/// `waited` before. `answers_others` says whether the service answers other calls in the meantime.
/// Returns the outcome of the next call, which the service would answer.
async fn after_silence(waited: Duration, answers_others: bool) -> Outcome {
    const TIME: Duration = Duration::from_millis(100);
    let service = Service::start().await;
    let agent = agent(&service.url, &format!("{LASTING_BREAKER}{PUT}"));
    let release = service.hold();
    for _ in 0..6 {
        let others = async {
            if answers_others {
                agent.last_answer.note(Instant::now());
            }
        };
        let call = StepCall {
            request: request().build(),
            sent: Instant::now() - waited,
            deadline: Instant::now() + TIME,
        };
        // In this order: others are answered during the call.
        let (silent, ()) = tokio::join!(biased; agent.perform(&call), others);
        assert!(!matches!(silent, Outcome::Success { .. }), "{silent:?}");
    }
    *service.hold.lock().unwrap() = None;
    release.notify_waiters();
    service.answers(|_| json(200, ""));
    outcome(&agent).await
}

#[tokio::test]
async fn a_service_with_too_little_time_does_not_count_as_failing() {
    let waited = Duration::from_secs(5);
    let busy = after_silence(waited, true).await;
    assert_eq!(kind_and_code(&busy).0, "success");
    for (waited, answers_others) in [(waited, false), (Duration::ZERO, true)] {
        let failing = after_silence(waited, answers_others).await;
        assert_eq!(
            kind_and_code(&failing),
            ("not-attempted", "breaker-open"),
            "it waited for {waited:?}, others are answered: {answers_others}"
        );
    }
}
