//! The outcomes of orders, also after a process was killed in the middle.

use crate::shop::{Member, Shop, wait_until, wait_until_or_say};

const REQUESTS: &str = "waybill.operation-requests.v1";

#[test]
fn an_order_is_completed_or_undone() {
    let Some(shop) = Shop::open() else { return };
    shop.order("1", &["--quantity", "2"]);
    shop.order("2", &["--token", "declined"]);
    shop.order("3", &["--city", "Nowhere"]);
    shop.order("4", &["--article", "chair", "--quantity", "9"]);
    shop.order("1", &["--quantity", "5"]);
    for (id, status, reason, state, ledger) in [
        (
            "1",
            "completed",
            "",
            "Processed",
            vec!["stock done", "payment done", "shipping done"],
        ),
        (
            "2",
            "cancelled",
            "card-declined",
            "Compensated",
            vec!["stock done", "stock undone"],
        ),
        (
            "3",
            "cancelled",
            "address-unknown",
            "Compensated",
            vec![
                "stock done",
                "payment done",
                "payment undone",
                "stock undone",
            ],
        ),
        ("4", "cancelled", "out-of-stock", "Compensated", vec![]),
    ] {
        shop.wait_for_status(id, status);
        let query = format!("SELECT split_part(reason, ':', 1) FROM orders WHERE id = '{id}'");
        wait_until(&format!("the reason of order {id} is stored"), || {
            shop.postgres.ask(&query) == reason
        });
        assert_eq!(shop.ledger(id), ledger, "order {id}");
        assert_eq!(shop.known_operation(id)["state"], state, "order {id}");
    }
    let shelf = "SELECT on_hand FROM services.shelf WHERE article = 'lamp'";
    assert_eq!(shop.postgres.number(shelf), 998);
    // The second order with the same number has no effect.
    assert_eq!(shop.records(REQUESTS), 4);
    let reasons = shop.postgres.ask(
        "SELECT sequence, state, step FROM news JOIN orders USING (operation)
         WHERE id = '2' AND sequence < 6 ORDER BY sequence",
    );
    assert_eq!(
        reasons.lines().collect::<Vec<_>>(),
        [
            "1|Processing|",
            "2|Processing|stock Completed",
            "3|Processing|payment Failed",
            "4|Compensating|payment Compensated",
            "5|Compensated|stock Compensated",
        ]
    );
}

#[test]
fn an_order_killed_before_its_commit_leaves_nothing() {
    let Some(shop) = Shop::open() else { return };
    let lock = shop.postgres.lock("outbox");
    let mut ordering = shop.ordering("1", &[]).spawn().unwrap();
    wait_until("the order is written and its request is not", || {
        shop.postgres.is_waited_in()
    });
    ordering.kill().unwrap();
    ordering.wait().unwrap();
    drop(lock);
    let orders = "SELECT count(*) FROM orders";
    wait_until("no step is running", || {
        shop.postgres
            .number("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO o%'")
            == 0
    });
    assert_eq!(shop.postgres.number(orders), 0);
    shop.order("1", &[]);
    shop.wait_for_status("1", "completed");
    assert_eq!(shop.postgres.number(orders), 1);
}

#[test]
fn a_relay_killed_before_its_mark_sends_the_same_request_again() {
    let Some(mut shop) = Shop::open() else { return };
    shop.kill(Member::Relay);
    shop.order("1", &[]);
    let unsent = "SELECT count(*) FROM outbox WHERE sent_at IS NULL";
    let lock = shop.postgres.lock("outbox");
    shop.start(Member::Relay);
    wait_until("the relay has sent and wants to mark", || {
        shop.postgres.is_waited_in()
    });
    shop.wait_for_status("1", "completed");
    assert_eq!(shop.postgres.number(unsent), 1);
    shop.kill(Member::Relay);
    drop(lock);
    shop.start(Member::Relay);
    wait_until("it is marked", || shop.postgres.number(unsent) == 0);
    assert_eq!(shop.records(REQUESTS), 2);

    // Requests after it on its partition were consumed by the time it completes.
    shop.order("2", &[]);
    shop.wait_for_status("2", "completed");
    assert_eq!(shop.status("1"), "completed");
    assert_eq!(
        shop.ledger("1"),
        ["stock done", "payment done", "shipping done"]
    );
}

#[test]
fn a_listener_killed_before_it_stores_an_event_receives_it_again() {
    let Some(mut shop) = Shop::open() else { return };
    let lock = shop.postgres.lock("news");
    shop.order("1", &[]);
    wait_until("the listener has news and wants to write", || {
        shop.postgres.is_waited_in()
    });
    wait_until("the operation has ended", || {
        shop.operation("1")
            .is_some_and(|operation| operation["state"] == "Processed")
    });
    shop.kill(Member::Listener);
    drop(lock);
    assert_eq!(shop.status("1"), "placed");
    shop.start(Member::Listener);
    shop.wait_for_status("1", "completed");
    // At least five: a retried step is reported too.
    let query = "SELECT count(*) >= 5 AND count(*) = max(sequence) FROM news";
    let by = "SELECT string_agg(sequence || ' by ' || topic, ', ' ORDER BY sequence) FROM news";
    wait_until_or_say(
        "all states are stored",
        || shop.postgres.ask(query) == "t",
        || format!("stored: {}\n{}", shop.postgres.ask(by), shop.logs()),
    );
}
