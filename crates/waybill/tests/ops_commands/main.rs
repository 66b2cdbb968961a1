//! `waybill ops` as a process, against `waybill up` in another process with faulty services.

mod setup;

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use setup::{Setup, names, run, standing};
use waybill_test_support::ports::free_address;

#[tokio::test]
async fn a_parked_operation_is_resubmitted_until_it_succeeds() {
    let setup = Setup::new().await;
    setup.faults("drone", Some(json!({"refuseRate": 1}))).await;
    let id = &setup.bring_to("Error", "parcel", &names("one", 1)).await[0];

    let item = &setup.listed("")[0];
    assert_eq!((&item["id"], &item["step"]), (&json!(id), &json!("drone")));
    let (code, fingerprint) = (&item["error"]["code"], &item["fingerprint"]);
    for flags in [
        "--state error".to_owned(),
        "--workflow parcel --step drone".to_owned(),
        format!("--error {}", code.as_str().unwrap()),
        format!("--error {} --limit 1", fingerprint.as_str().unwrap()),
        "--all --newest".to_owned(),
    ] {
        assert_eq!(setup.listed(&flags).len(), 1, "{flags}");
    }
    for flags in [
        "--workflow other",
        "--step package",
        "--older-than 1h",
        "--tenant t",
    ] {
        assert_eq!(setup.listed(flags).len(), 0, "{flags}");
    }
    let table = setup.ops("list").out;
    assert!(
        [id, code.as_str().unwrap(), "one-0"]
            .iter()
            .all(|text| table.contains(text)),
        "{table}"
    );
    assert!(
        table.lines().all(|line| line.chars().count() <= 136),
        "{table}"
    );

    // Also by the caller's ID. The page names the possible verbs.
    let page = setup.ops("show one-0").out;
    for text in [
        id,
        "verbs           ",
        "resubmit",
        "drone            Failed",
        "package          Completed",
    ] {
        assert!(page.contains(text), "{text} in\n{page}");
    }

    let vain = setup.ops(&format!("resubmit {id} --reason again --wait"));
    assert_eq!(vain.code, Some(1), "{vain:?}");
    assert!(
        vain.out.is_empty() && vain.err.contains("Error"),
        "{vain:?}"
    );

    setup.faults("drone", None).await;
    let done = setup.ops("resubmit one-0 --by lee --wait 30s --output json");
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.column("outcome"), ["done"]);
    assert_eq!(done.column("state"), ["Processed"]);
    assert_eq!(setup.standing(id).await, standing(&["drone", "package"]));
    let history = &setup.show(id)["history"];
    let asked: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["verb"] == "resubmit")
        .collect();
    assert_eq!(asked.len(), 2, "{history}");
    assert_eq!(
        (&asked[0]["by"], &asked[0]["reason"]),
        (&json!("kim"), &json!("again"))
    );
    assert_eq!(asked[1]["by"], "lee");
    assert!(setup.listed("").is_empty());

    let late = setup.ops(&format!("resubmit {id}"));
    assert_eq!(late.code, Some(1), "{late:?}");
    assert!(
        late.err
            .contains("Only an operation in Error can be resubmitted"),
        "{late:?}"
    );
}

#[tokio::test]
async fn a_failed_undo_is_retried_recorded_or_abandoned() {
    let setup = Setup::new().await;
    setup.faults("drone", Some(json!({"refuseRate": 1}))).await;
    setup
        .faults("package", Some(json!({"undoRefuseRate": 1})))
        .await;
    let ids = setup
        .bring_to("CompensationFailed", "drone-delivery", &names("undo", 3))
        .await;
    assert_eq!(setup.listed("--state compensationfailed").len(), 3);

    let no_reason = setup.ops(&format!("abandon {}", ids[0]));
    assert_eq!(no_reason.code, Some(2), "{no_reason:?}");
    let abandon = format!("abandon {} --reason lost --wait", ids[0]);
    for _ in 0..2 {
        let abandoned = setup.ops(&abandon);
        assert_eq!(abandoned.code, Some(0), "{abandoned:?}");
    }
    assert_eq!(setup.listed("").len(), 2);
    assert_eq!(setup.listed("--abandoned").len(), 3);

    let by_hand = setup.ops(&format!(
        "undone {} package --reason by-hand --wait",
        ids[1]
    ));
    assert_eq!(by_hand.code, Some(0), "{by_hand:?}");
    assert!(by_hand.out.contains("Compensated"), "{by_hand:?}");
    let again = setup.ops(&format!("undone {} nonsense --reason x", ids[2]));
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.err.contains("unknown-step"), "{again:?}");

    setup.faults("package", None).await;
    let retried = setup.ops("retry-compensation --workflow drone-delivery --output json");
    assert_eq!(retried.code, Some(0), "{retried:?}");
    assert_eq!(retried.column("id"), [ids[2].clone()]);
    assert_eq!(retried.column("state"), ["Compensated"]);
    assert_eq!(setup.standing(&ids[2]).await, standing(&[]));
}

#[tokio::test]
async fn a_redrive_halts_after_a_failed_canary() {
    const PARKED: usize = 12;
    let setup = Setup::new().await;
    setup.faults("drone", Some(json!({"refuseRate": 1}))).await;
    let ids = setup
        .bring_to("Error", "parcel", &names("many", PARKED))
        .await;
    let asked = |ids: &[String]| {
        let has_history = |id: &&String| setup.show(id)["history"].to_string().contains("resubmit");
        ids.iter().filter(has_history).count()
    };

    let dry = setup.ops("resubmit --step drone --canary 3 --dry-run --output json");
    assert_eq!(dry.code, Some(0), "{dry:?}");
    let plan = &dry.json()[0];
    assert_eq!(
        (&plan["matching"], &plan["canaries"]),
        (&json!(PARKED), &json!(3))
    );
    assert_eq!(plan["first"].as_array().unwrap().len(), 10);
    assert_eq!(asked(&ids), 0);

    let halted = setup.ops("resubmit --step drone --output json");
    assert_eq!(halted.code, Some(1), "{halted:?}");
    assert_eq!(halted.column("outcome"), ["failed"]);
    assert!(
        halted.err.contains("halted")
            && halted.err.contains("no request was sent for 11 operations"),
        "{halted:?}"
    );
    assert_eq!(asked(&ids), 1);

    // Tolerated canary failures do not halt it, but the share of failures does.
    let shared = setup.ops("resubmit --step drone --canary 2 --canary-failures 2 --rate 2/s");
    assert_eq!(shared.code, Some(1), "{shared:?}");
    assert!(shared.err.contains("more than 20 %"), "{shared:?}");
    assert!(asked(&ids) < PARKED, "{shared:?}");

    setup.faults("drone", None).await;
    let done = setup.ops("resubmit --step drone --rate 100 --output json");
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.column("outcome"), vec!["done"; PARKED]);
    for id in &ids {
        assert_eq!(setup.standing(id).await, standing(&["drone", "package"]));
    }
    // Completed operations no longer match.
    let nothing = setup.ops("resubmit --all --output json");
    assert_eq!(
        (nothing.code, nothing.out.as_str()),
        (Some(0), ""),
        "{nothing:?}"
    );
}

#[tokio::test]
async fn a_verb_for_many_asks_on_a_terminal() {
    let setup = Setup::new().await;
    setup.faults("drone", Some(json!({"refuseRate": 1}))).await;
    let ids = setup.bring_to("Error", "parcel", &names("asked", 2)).await;

    let declined = setup.ops_on_a_terminal("abandon --all --reason test", "n\n");
    assert_eq!(declined.code, Some(1), "{declined:?}");
    for text in [
        "matching  2",
        "abandon 2 operations? [y/N]",
        "no request was sent",
    ] {
        assert!(declined.out.contains(text), "{text}: {declined:?}");
    }
    let confirmed = setup.ops_on_a_terminal("abandon --all --limit 1 --reason test", "y\n");
    assert_eq!(confirmed.code, Some(0), "{confirmed:?}");
    let unasked = setup.ops_on_a_terminal("abandon --all --yes --reason test", "");
    assert_eq!(unasked.code, Some(0), "{unasked:?}");
    assert!(!unasked.out.contains("[y/N]"), "{unasked:?}");
    for id in &ids {
        assert_eq!(setup.show(id)["abandoned"], true);
    }
}

#[tokio::test]
async fn states_have_colors_on_a_terminal_unless_they_are_turned_off() {
    const RED: &str = "\u{1b}[31mError\u{1b}[0m";
    let setup = Setup::new().await;
    setup.faults("drone", Some(json!({"refuseRate": 1}))).await;
    let ids = setup.bring_to("Error", "parcel", &names("red", 1)).await;
    let show = format!("show {}", ids[0]);
    for command in ["list", &show] {
        let on_a_terminal = |flag: &str| setup.ops_on_a_terminal(&format!("{command} {flag}"), "");
        for (ran, is_colored) in [
            (on_a_terminal(""), true),
            (on_a_terminal("--color never"), false),
            (setup.ops_without_colors(command), false),
            (
                setup.ops_without_colors(&format!("{command} --color always")),
                true,
            ),
            (setup.ops(command), false),
            (setup.ops(&format!("{command} --color always")), true),
        ] {
            assert_eq!(ran.code, Some(0), "{ran:?}");
            assert_eq!(ran.out.contains(RED), is_colored, "{ran:?}");
            assert!(is_colored || !ran.out.contains('\u{1b}'), "{ran:?}");
        }
    }
    let json = setup.ops("list --output json --color always");
    assert!(!json.out.contains('\u{1b}'), "{json:?}");
}

#[tokio::test]
async fn a_redrive_survives_a_short_api_outage() {
    const PARKED: usize = 12;
    let setup = Setup::new().await;
    setup.faults("drone", Some(json!({"refuseRate": 1}))).await;
    let ids = setup
        .bring_to("Error", "parcel", &names("away", PARKED))
        .await;
    setup.faults("drone", None).await;
    let relay = Relay::to(setup.addresses["http"]);
    let redrive = |flags: &'static str| {
        let api = format!("http://{}", relay.address);
        std::thread::spawn(move || {
            let line = format!("resubmit --step drone --rate 1/s --output json {flags}");
            let arguments: Vec<&str> = line.split_whitespace().collect();
            run(&[&arguments[..], &["--api", &api]].concat())
        })
    };
    // Sent to the API directly, because a command for each would take longer than the redrive.
    let has_asked = async |count: usize| {
        let mut asked = 0;
        for id in &ids {
            let url = setup.url("http", &format!("/v1/operations/{id}"));
            let answer = setup.client.get(url).send().await.unwrap();
            let operation: Value = answer.json().await.unwrap();
            asked += usize::from(operation["history"].to_string().contains("resubmit"));
        }
        asked >= count
    };

    let broken_off = redrive("--unreachable-max 1s");
    setup
        .eventually("one was sent", async || has_asked(1).await)
        .await;
    relay.set_away(true);
    let broken_off = broken_off.join().unwrap();
    assert_eq!(broken_off.code, Some(2), "{broken_off:?}");
    let reported = broken_off.json().len();
    let left_out = format!("no request was sent for {} operations", PARKED - reported);
    assert!(0 < reported && reported < PARKED, "{broken_off:?}");
    assert!(broken_off.err.contains(&left_out), "{broken_off:?}");

    relay.set_away(false);
    let patient = redrive("");
    let asked = reported + 1;
    setup
        .eventually("more are sent", async || has_asked(asked).await)
        .await;
    let turned_away = relay.turned_away();
    relay.set_away(true);
    setup
        .eventually("it keeps trying", async || {
            relay.turned_away() >= turned_away + 6
        })
        .await;
    relay.set_away(false);
    let patient = patient.join().unwrap();
    assert_eq!(patient.code, Some(0), "{patient:?}");
    for id in &ids {
        assert_eq!(setup.standing(id).await, standing(&["drone", "package"]));
    }
}

/// A relay in front of a server, which can refuse all connections.
struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_away: AtomicBool,
    turned_away: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

impl Relay {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let relay = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(server).unwrap();
                let mut open = relay.open.lock().unwrap();
                if relay.is_away.load(Ordering::SeqCst) {
                    relay.turned_away.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        // Ends when either side closes the connection.
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                open.extend([client, server]);
            }
        });
        Self { address, shared }
    }

    fn set_away(&self, away: bool) {
        let mut open = self.shared.open.lock().unwrap();
        self.shared.is_away.store(away, Ordering::SeqCst);
        for connection in open.drain(..) {
            // The connection may already have ended.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn turned_away(&self) -> usize {
        self.shared.turned_away.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn an_undone_operation_is_resubmitted_as_new_once() {
    let setup = Setup::new().await;
    setup.faults("drone", Some(json!({"refuseRate": 1}))).await;
    let ids = setup.bring_to("Error", "parcel", &names("gone", 1)).await;
    let undone = setup.ops(&format!("compensate {} --wait", ids[0]));
    assert_eq!(undone.code, Some(0), "{undone:?}");
    assert_eq!(setup.standing(&ids[0]).await, standing(&[]));

    setup.faults("drone", None).await;
    let again = setup.ops(&format!(
        "resubmit {} --as-new --wait --output json",
        ids[0]
    ));
    assert_eq!(again.code, Some(0), "{again:?}");
    let new = again.column("resubmittedAs").remove(0);
    assert_eq!(again.column("state"), ["Processed"]);
    assert_eq!(setup.show(&new)["resubmissionOf"], json!(ids[0]));
    assert_eq!(setup.standing(&new).await, standing(&["drone", "package"]));
    setup
        .eventually("the old operation links the new one", async || {
            setup.show(&ids[0])["resubmittedAs"] == json!(new)
        })
        .await;
    let twice = setup.ops(&format!("resubmit {} --as-new", ids[0]));
    assert_eq!(twice.code, Some(1), "{twice:?}");
    assert!(twice.err.contains(&new), "{twice:?}");
}

#[tokio::test]
async fn a_cancel_undoes_completed_steps_and_a_late_one_is_refused() {
    let setup = Setup::new().await;
    setup.faults("drone", Some(json!({"hangRate": 1}))).await;
    let id = setup.request("parcel", "slow").await;
    setup
        .eventually("the drone is requested", async || {
            setup.show(&id)["steps"][1]["state"] == "Running"
        })
        .await;
    // The drone service answers only after this, so that the operation cannot complete first.
    let asked = setup.ops("cancel slow --by kim --reason changed");
    assert_eq!(asked.code, Some(0), "{asked:?}");
    setup.faults("drone", None).await;
    let cancelled = setup.ops("cancel slow --wait 50s");
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");
    assert!(cancelled.out.contains("Cancelled"), "{cancelled:?}");
    let noted = &setup.show(&id)["history"][0];
    assert_eq!(
        (&noted["verb"], &noted["by"], &noted["reason"]),
        (&json!("cancel"), &json!("kim"), &json!("changed"))
    );
    assert_eq!(setup.standing(&id).await, standing(&[]));
    assert_eq!(setup.ops("cancel slow").code, Some(0));

    let ids = setup
        .bring_to("Processed", "parcel", &names("fast", 1))
        .await;
    let late = setup.ops(&format!("cancel {}", ids[0]));
    assert_eq!(late.code, Some(1), "{late:?}");
}

#[tokio::test]
async fn a_cancel_of_an_unknown_id_is_kept() {
    let setup = Setup::new().await;
    let kept = "the id is unknown: the cancel is kept, and a later request with this id will end Cancelled";
    let asked = setup.ops("cancel ghost-1");
    assert_eq!(asked.code, Some(0), "{asked:?}");
    assert!(asked.out.starts_with("asked "), "{asked:?}");
    assert!(asked.out.contains(kept), "{asked:?}");
    let done = setup.ops("cancel ghost-2 --wait 50s --output json");
    let [done] = &done.json()[..] else {
        panic!("{done:?}")
    };
    assert_eq!(
        (&done["outcome"], &done["note"]),
        (&json!("done"), &json!(kept))
    );
    for line in ["resubmit ghost-2", "abandon ghost-2 --reason x"] {
        let refused = setup.ops(line);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let why = "never-created: The operation was cancelled before its request arrived.";
        assert!(refused.err.contains(why), "{refused:?}");
    }
    let shown = setup.show("ghost-2");
    let next = shown["whatNext"].as_str().unwrap();
    assert!(
        next.ends_with("A request with this id will end Cancelled."),
        "{next}"
    );
    let again = setup.ops("cancel ghost-2");
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(
        again.out.contains("already in the requested state"),
        "{again:?}"
    );
}

#[tokio::test]
async fn exit_codes_distinguish_refusals_usage_errors_and_an_unreachable_api() {
    let setup = Setup::new().await;
    for (line, code, expected) in [
        ("show missing", 1, "No request with this id was accepted"),
        (
            "resubmit missing",
            1,
            "No request with this id was accepted",
        ),
        ("resubmit", 2, "select operations: give an id"),
        ("resubmit x --step drone", 2, "--tenant is the only flag"),
        ("resubmit --as-new --all", 2, "--state"),
        ("list --state Strange", 2, "Strange"),
        (
            "list --state Processed",
            2,
            "[possible values: Processing, Error, Compensating, Compensated, CompensationFailed, Unreadable]",
        ),
        ("list --limit 0", 2, "--limit"),
        ("undone x drone", 2, "--reason"),
    ] {
        let ran = setup.ops(line);
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        assert!(ran.err.contains(expected), "{line}: {ran:?}");
    }
    let address = free_address().to_string();
    let away = run(&["list", "--http", &address]);
    assert_eq!(away.code, Some(2), "{away:?}");
    assert!(away.err.contains(&address), "{away:?}");
    let elsewhere = run(&["list", "--api", "http://kim:secret@localhost:1"]);
    assert_eq!(elsewhere.code, Some(2), "{elsewhere:?}");
    // Another server is distinguished from the API.
    let services = setup.url("services", "");
    let other = run(&["list", "--api", &services]);
    assert_eq!(other.code, Some(2), "{other:?}");
    assert!(
        other.err.contains("/v1/operations does not exist"),
        "{other:?}"
    );
    assert!(other.out.is_empty(), "{other:?}");
}
