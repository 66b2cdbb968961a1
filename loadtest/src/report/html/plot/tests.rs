//! The contents of a plot, which must not overlap.

use super::*;

fn plot(phases: &[(&str, f64, f64)], values: Vec<Option<f64>>) -> Plot {
    let phases = phases.iter().map(|(name, from, to)| Band {
        name: (*name).to_owned(),
        from_seconds: *from,
        to_seconds: *to,
    });
    let style = LineStyle {
        colour: Colour::Blue,
        stroke: Stroke::Solid,
    };
    Plot {
        title: "Things",
        scale: Scale::Linear,
        unit: Unit::Count,
        seconds: 100.0,
        phases: phases.collect(),
        omitted: 0,
        sources: vec![Source {
            times: (0..values.len()).map(|at| at as f64).collect(),
            lines: vec![Line {
                name: "a \"line\"".to_owned(),
                style,
                values,
            }],
        }],
    }
}

fn written(plot: &Plot) -> String {
    let mut page = Markup::default();
    plot.write(&mut page, "p");
    page.into_string()
}

#[test]
fn names_of_lines_do_not_overlap_and_stay_inside() {
    let far = apart(&[10.0, 100.0], 0.0, 170.0);
    assert_eq!(far, [10.0, 100.0]);
    assert_eq!(apart(&[50.0, 51.0], 0.0, 170.0), [50.0, 66.0]);
    assert_eq!(
        apart(&[168.0, 169.0, 170.0], 0.0, 170.0),
        [138.0, 154.0, 170.0]
    );
}

#[test]
fn names_of_phases_go_to_a_second_row_and_then_are_left_out() {
    let close = [
        ("before it", 0.0, 10.0),
        ("the spike", 10.0, 12.0),
        ("after it", 12.0, 14.0),
    ];
    let plot = plot(&close, vec![Some(1.0)]);
    let rows: Vec<usize> = Frame::of(&plot)
        .phase_names
        .iter()
        .map(|(_, _, row)| *row)
        .collect();
    assert_eq!(rows, [0, 1]);
    let page = written(&plot);
    assert_eq!(page.matches("data-phase=").count(), 3);
}

#[test]
fn isolated_values_are_dots_and_others_a_path() {
    let page = written(&plot(
        &[],
        vec![Some(1.0), Some(2.0), None, Some(1.0), None],
    ));
    assert_eq!(page.matches("<circle").count(), 1, "{page}");
    assert_eq!(page.matches("d=\"M56 94L").count(), 1, "{page}");
    assert!(page.contains("data-values=\"1,2,,1,\""), "{page}");
    assert!(page.contains("data-name=\"a &quot;line&quot;\""), "{page}");
}

#[test]
fn an_empty_plot_says_so() {
    let page = written(&plot(&[("all", 0.0, 100.0)], vec![None, None]));
    assert!(
        page.contains("No data.") && !page.contains("<svg"),
        "{page}"
    );
}

#[test]
fn the_description_contains_the_greatest_values() {
    let page = written(&plot(&[], vec![Some(1.0), Some(1_500.0)]));
    assert!(page.contains("over 100 s: a &quot;line&quot; up to 1,500."));
}

#[test]
fn values_are_brief_and_long_names_are_cut() {
    let values = [0.12345, 1.23456, 123.456, 123_456.7].map(|value| brief(Some(value)));
    assert_eq!(values, ["0.123", "1.235", "123.5", "123457"]);
    assert_eq!(cut("a long name", 6), "a lon…");
    assert_eq!(cut("short", 6), "short");
}
