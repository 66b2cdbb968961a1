use std::sync::Arc;

use anyhow::anyhow;

use super::*;

/// A generous limit: only a failing test reaches it.
const LIMIT: Duration = Duration::from_secs(20);

type Log = Arc<Mutex<Vec<&'static str>>>;

/// A part that notes when it is stopped.
fn orderly(running: &Running, stage: Stage, name: &'static str, log: &Log) {
    let log = Arc::clone(log);
    running.spawn(stage, name, move |stop| async move {
        stop.cancelled().await;
        log.lock().unwrap().push(name);
        Ok(())
    });
}

fn stubborn(running: &Running, stage: Stage, name: &'static str) {
    running.spawn(stage, name, |_| std::future::pending());
}

async fn started() -> anyhow::Result<()> {
    Ok(())
}

#[tokio::test]
async fn a_signal_stops_the_stages_in_order_whatever_the_order_of_their_start() {
    let (running, log) = (Running::new(), Log::default());
    let (signal, mut signals) = Signals::made_up();
    for (stage, name) in [
        (Stage::Broker, "broker"),
        (Stage::Admin, "admin"),
        (Stage::Ingestion, "http"),
        (Stage::Agents, "agents"),
        (Stage::Services, "services"),
        (Stage::Scheduler, "scheduler"),
    ] {
        orderly(&running, stage, name, &log);
    }
    signal.send("SIGTERM").await.unwrap();
    running.run(started(), &mut signals, LIMIT).await.unwrap();
    let order = ["http", "scheduler", "agents", "services", "broker", "admin"];
    assert_eq!(*log.lock().unwrap(), order);
}

#[tokio::test]
async fn a_stage_stops_only_after_all_of_the_one_before_it_ended() {
    let (running, log) = (Running::new(), Log::default());
    let (signal, mut signals) = Signals::made_up();
    orderly(&running, Stage::Broker, "broker", &log);
    let slow = Arc::clone(&log);
    running.spawn(Stage::Scheduler, "scheduler", move |stop| async move {
        stop.cancelled().await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        slow.lock().unwrap().push("scheduler");
        Ok(())
    });
    signal.send("SIGINT").await.unwrap();
    running.run(started(), &mut signals, LIMIT).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["scheduler", "broker"]);
}

#[tokio::test]
async fn the_first_failure_stops_everything_in_order_and_is_the_result() {
    let (running, log) = (Running::new(), Log::default());
    let (_signal, mut signals) = Signals::made_up();
    orderly(&running, Stage::Broker, "broker", &log);
    orderly(&running, Stage::Ingestion, "http", &log);
    running.spawn(Stage::Agents, "agents", |_| async {
        Err(anyhow!("no room"))
    });
    let error = running
        .run(started(), &mut signals, LIMIT)
        .await
        .unwrap_err();
    assert!(matches!(&error, RunError::Failed { part, source }
        if part == "agents" && source.to_string() == "no room"));
    assert_eq!(*log.lock().unwrap(), ["http", "broker"]);
}

#[tokio::test]
async fn an_unexpected_end_or_a_panic_of_a_part_ends_the_process() {
    let (_signal, mut signals) = Signals::made_up();
    let running = Running::new();
    running.spawn(Stage::Agents, "agents", |_| async { Ok(()) });
    let error = running
        .run(started(), &mut signals, LIMIT)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "agents ended unexpectedly");

    let running = Running::new();
    running.spawn(Stage::Agents, "agents", |_| async {
        panic!("a test failure")
    });
    let error = running
        .run(started(), &mut signals, LIMIT)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "agents panicked");
}

#[tokio::test]
async fn a_job_may_end() {
    let (running, log) = (Running::new(), Log::default());
    let (signal, mut signals) = Signals::made_up();
    orderly(&running, Stage::Broker, "broker", &log);
    running.spawn_job(Stage::Samples, "samples", move |_| async move {
        signal.send("SIGTERM").await?;
        Ok(())
    });
    running.run(started(), &mut signals, LIMIT).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["broker"]);
}

#[tokio::test]
async fn parts_that_do_not_stop_in_time_are_aborted_and_named() {
    let running = Running::new();
    let (signal, mut signals) = Signals::made_up();
    stubborn(&running, Stage::Scheduler, "scheduler");
    stubborn(&running, Stage::Broker, "broker");
    signal.send("SIGTERM").await.unwrap();
    let limit = Duration::from_millis(10);
    let error = running
        .run(started(), &mut signals, limit)
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::TooSlow { parts } if parts == ["scheduler", "broker"]));
}

#[tokio::test]
async fn a_second_signal_ends_the_shutdown_immediately() {
    let running = Running::new();
    let (signal, mut signals) = Signals::made_up();
    stubborn(&running, Stage::Scheduler, "scheduler");
    signal.send("SIGINT").await.unwrap();
    signal.send("SIGINT").await.unwrap();
    let error = running
        .run(started(), &mut signals, LIMIT)
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::CutShort { parts } if parts == ["scheduler"]));
}

#[tokio::test]
async fn a_failed_start_stops_what_has_started_already() {
    let (running, log) = (Running::new(), Log::default());
    let (_signal, mut signals) = Signals::made_up();
    let start = async {
        orderly(&running, Stage::Broker, "broker", &log);
        Err(anyhow!("the port is taken"))
    };
    let error = running.run(start, &mut signals, LIMIT).await.unwrap_err();
    assert!(matches!(error, RunError::Start(source) if source.to_string() == "the port is taken"));
    assert_eq!(*log.lock().unwrap(), ["broker"]);
}

#[tokio::test]
async fn a_signal_ends_a_start_that_hangs() {
    let (running, log) = (Running::new(), Log::default());
    let (signal, mut signals) = Signals::made_up();
    let start = async {
        orderly(&running, Stage::Broker, "broker", &log);
        signal.send("SIGTERM").await?;
        std::future::pending().await
    };
    running.run(start, &mut signals, LIMIT).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["broker"]);
}

#[tokio::test]
async fn a_registered_part_is_stopped_by_its_own_function() {
    let running = Running::new();
    let (signal, mut signals) = Signals::made_up();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move { Ok(stopped.await?) });
    running.push(
        Stage::Broker,
        "broker",
        move || stop.send(()).unwrap(),
        task,
    );
    signal.send("SIGTERM").await.unwrap();
    running.run(started(), &mut signals, LIMIT).await.unwrap();
}
