use super::*;

#[test]
fn a_rate_is_a_number_a_second_within_bounds() {
    let rate = |text: &str| text.parse().map(|Rate(rate)| rate.get());
    assert_eq!(rate("5"), Ok(5));
    assert_eq!(rate("1000/s"), Ok(1_000));
    for bad in ["0", "1001", "-1", "5/m", "", "fast"] {
        assert!(rate(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_dry_run_says_how_many_match_and_shows_the_first_of_them() {
    let many = many("--error e --dry-run --canary 2");
    let item = Item {
        id: Uuid::from_u128(7),
        state: "Error".to_owned(),
        ..Item::default()
    };
    let json = RawValue::from_string(r#"{"id":"x"}"#.to_owned()).unwrap();
    let plan = Plan {
        ids: (0..5).map(Uuid::from_u128).collect(),
        first: vec![(json, item)],
        has_more: true,
    };
    let shown = |output| {
        let mut out = Vec::new();
        plan.show(&many, output, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        shown(Output::Json),
        "{\"matching\":5,\"canaries\":2,\"hasMore\":true,\"first\":[{\"id\":\"x\"}]}\n"
    );
    let table = shown(Output::Table);
    assert!(
        table.starts_with("matching  5\ncanaries  2\n\nOPERATION"),
        "{table}"
    );
    assert!(
        table.contains("\n00000000-0000-0000-0000-000000000007 Error "),
        "{table}"
    );
}

fn many(line: &str) -> Many {
    use clap::FromArgMatches as _;
    let command = clap::Command::new("verb")
        .no_binary_name(true)
        .arg(clap::Arg::new("id"));
    let command = Filter::augment_args(Many::augment_args(command));
    let matches = command.try_get_matches_from(line.split_whitespace());
    Many::from_arg_matches(&matches.unwrap()).unwrap()
}
