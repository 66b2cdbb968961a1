//! The circuit breaker.

use super::*;

const BREAKER: &str = "retries: { max: 0 }\nbreaker: { failureRate: 0.5, calls: 4, openFor: 200ms, halfOpenCalls: 2 }\n";

/// One that stays open for longer than any test takes.
const LASTING_BREAKER: &str =
    "retries: { max: 0 }\nbreaker: { failureRate: 0.5, calls: 4, openFor: 1h }\n";

#[tokio::test]
async fn the_breaker_opens_and_closes_again() {
    let service = Service::start().await;
    let agent = agent(&service.url, &format!("{BREAKER}{PUT}"));
    // What the service refuses for good says nothing against it.
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

    // A failed probe opens it again; once the service is well, it closes.
    until(&agent, "unknown").await;
    until(&agent, "not-attempted").await;
    service.answers(|_| json(200, ""));
    until(&agent, "success").await;
    for _ in 0..20 {
        assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
    }
}

#[tokio::test]
async fn a_half_open_breaker_lets_few_calls_through_at_once() {
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
    // From here on the breaker is open or half-open: whoever is let through only looks.
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

/// Calls until an outcome of this kind comes.
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

/// A service that does not answer, of which it is known how long it takes otherwise; each call has 20 ms.
async fn hurried(usual: Option<Duration>) -> (Arc<Service>, HttpAgent) {
    let service = Service::start().await;
    let agent = agent(&service.url, &format!("{LASTING_BREAKER}{PUT}"));
    if let Some(usual) = usual {
        agent.pace.took(usual, Instant::now());
    }
    let release = service.hold();
    for _ in 0..20 {
        let request = request().complete_within(Duration::from_millis(20)).build();
        let hurried = attempt(&agent, request).await;
        assert!(!matches!(hurried, Some(Outcome::Success { .. })));
    }
    *service.hold.lock().unwrap() = None;
    release.notify_waiters();
    service.answers(|_| json(200, ""));
    (service, agent)
}

#[tokio::test]
async fn a_service_that_is_given_too_little_time_is_not_taken_for_one_that_fails() {
    let (_service, agent) = hurried(Some(Duration::from_secs(60))).await;
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");

    // Nor does one that hangs pass for busy for ever, where steps have little more time than it takes.
    for usual in [None, Some(1), Some(12)] {
        let usual = usual.map(Duration::from_millis);
        let (_service, agent) = hurried(usual).await;
        let refused = outcome(&agent).await;
        assert_eq!(kind_and_code(&refused), ("not-attempted", "breaker-open"));
    }
}

#[test]
fn the_pace_follows_what_answers_take() {
    let millis = Duration::from_millis;
    let pace = Pace::new();
    let now = Instant::now();
    assert!(
        !pace.is_too_little(Duration::ZERO, now),
        "nothing is known yet"
    );
    pace.took(millis(100), now);
    assert!(pace.is_too_little(millis(199), now));
    assert!(!pace.is_too_little(millis(200), now));
    for _ in 0..200 {
        pace.took(millis(10), now);
    }
    assert!(!pace.is_too_little(millis(30), now));
}

#[test]
fn however_many_calls_have_too_little_time_none_counts_while_others_are_answered() {
    let millis = Duration::from_millis;
    let pace = Pace::new();
    let now = Instant::now();
    pace.took(millis(100), now);
    for _ in 0..1_000 {
        assert!(pace.is_too_little(millis(150), now + millis(199)));
    }
    assert!(
        !pace.is_too_little(millis(150), now + millis(200)),
        "it answers nobody"
    );
}
