use super::*;

#[test]
fn a_rate_is_a_number_of_dead_letters_a_second() {
    for good in ["50", "50/s"] {
        assert_eq!(good.parse(), Ok(Rate(NonZeroU32::new(50).unwrap())));
    }
    for bad in ["", "0/s", "/s", "-1", "5/m", "1.5/s"] {
        assert!(bad.parse::<Rate>().is_err(), "{bad}");
    }
}

#[test]
fn at_most_one_second_of_dead_letters_is_unacknowledged() {
    let batch = |rate: &str| batch_max(Some(rate.parse().unwrap()));
    assert_eq!(batch("3/s"), 3);
    assert_eq!(batch("5000/s"), BATCH_MAX);
    assert_eq!(batch_max(None), BATCH_MAX);
}

#[test]
fn the_replay_header_replaces_an_older_one() {
    let own = [
        ("a", Some(&b"\xff"[..])),
        (REPLAYED_FROM, Some(b"t.dlq/0/1")),
        ("a", None),
    ];
    let dead_letter = DeadLetter::of(waybill_kafka::RawRecord {
        topic: "t.dlq".to_owned(),
        partition: PartitionId(0),
        offset: Offset(9),
        timestamp_ms: None,
        key: None,
        value: None,
        headers: own
            .map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
            .into(),
    });
    let sent: Vec<(&str, Option<&[u8]>)> = headers(&dead_letter, "t.dlq/0/9")
        .iter()
        .map(|header| (header.key, header.value))
        .collect();
    let expected: [(&str, Option<&[u8]>); 3] = [
        ("a", Some(b"\xff")),
        ("a", None),
        (REPLAYED_FROM, Some(b"t.dlq/0/9")),
    ];
    assert_eq!(sent, expected);
}
