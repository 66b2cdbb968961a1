//! A plot over time, as SVG: lines with their names beside them, and phases in the background.
//!
//! On a narrow screen the plot is scaled down and its type is larger. The layout has space for both
//! sizes.

use std::fmt::{self, Display};

use super::axis::{Axis, Scale, Unit};
use super::markup::Markup;
use super::number::{measure, plain};
use super::thin;

const WIDTH: f64 = 548.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 436.0;
/// The height of the area with the lines.
const HEIGHT: f64 = 168.0;
/// The height of a row of phase names.
const ROW_HEIGHT: f64 = 16.0;
/// The height of the area below the lines, for the times.
const FOOT: f64 = 26.0;
/// The distance between names of lines.
const NAME_HEIGHT: f64 = 16.0;
/// The width of a character in the large type.
const CHARACTER_WIDTH: f64 = 7.6;
/// The maximum length of a line's name, in characters.
const NAME_CHARACTERS: usize = 10;
/// The maximum length of a phase's name.
const PHASE_CHARACTERS: usize = 18;

/// Values over the time of one or several runs.
pub struct Plot {
    /// The title, without the unit.
    pub title: &'static str,
    pub scale: Scale,
    pub unit: Unit,
    /// The length of the time axis.
    pub seconds: f64,
    /// The phases in the background.
    pub phases: Vec<Band>,
    /// The runs with their lines.
    pub sources: Vec<Source>,
    /// The number of lines that were left out for lack of space.
    pub omitted: usize,
}

/// A period of time.
#[derive(Clone)]
pub struct Band {
    pub name: String,
    pub from_seconds: f64,
    pub to_seconds: f64,
}

/// Lines with values at the same times.
pub struct Source {
    /// In seconds.
    pub times: Vec<f64>,
    pub lines: Vec<Line>,
}

/// A sequence of values with gaps.
pub struct Line {
    pub name: String,
    pub style: LineStyle,
    pub values: Vec<Option<f64>>,
}

/// The style of a line. Lines of a plot should have different strokes, for readers who cannot
/// distinguish colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineStyle {
    pub colour: Colour,
    pub stroke: Stroke,
}

/// A colour, with variants for light and dark pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colour {
    Blue,
    Ochre,
    Green,
    Plum,
    Grey,
}

/// The dashes of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stroke {
    Solid,
    Dashed,
    Dotted,
    DashDotted,
    LongDashed,
}

impl Plot {
    /// Whether there is no value to show.
    pub fn is_empty(&self) -> bool {
        self.values().next().is_none()
    }

    /// Writes the plot with its title. `id` must be unique on the page.
    pub fn write(&self, page: &mut Markup, id: impl Display) {
        page.element("figure", &[("class", &"plot")], |figure| {
            figure.element("figcaption", &[], |caption| {
                caption.text(self.title);
                caption.leaf("span", &[("class", &"unit")], self.unit_text());
                if self.omitted > 0 {
                    let omitted = format_args!("; {} more are not drawn", self.omitted);
                    caption.leaf("span", &[("class", &"unit")], omitted);
                }
            });
            if self.is_empty() {
                figure.leaf("p", &[("class", &"none")], "No data.");
            } else {
                self.svg(figure, &id);
            }
        });
    }

    fn svg(&self, page: &mut Markup, id: &dyn Display) {
        let frame = Frame::of(self);
        let view = format!("0 0 {} {}", Px(WIDTH), Px(frame.bottom + FOOT));
        let title = format!("{id}-title");
        let about = format!("{id}-about");
        let by = format!("{title} {about}");
        page.element(
            "svg",
            &[
                ("xmlns", &"http://www.w3.org/2000/svg"),
                ("viewBox", &view),
                ("role", &"img"),
                ("aria-labelledby", &by),
                ("data-seconds", &plain(self.seconds)),
                ("data-left", &Px(LEFT)),
                ("data-right", &Px(RIGHT)),
                ("data-unit", &self.unit.suffix()),
            ],
            |svg| {
                svg.leaf("title", &[("id", &title)], self.title);
                svg.leaf("desc", &[("id", &about)], self.about());
                frame.phases(svg, &self.phases);
                frame.axes(svg);
                for source in &self.sources {
                    frame.source(svg, source, self.seconds);
                }
                frame.names(svg, self);
            },
        );
    }

    /// A description of the plot for screen readers.
    fn about(&self) -> String {
        let lines = self.sources.iter().flat_map(|source| &source.lines);
        let highest = lines.filter_map(|line| {
            let most = line.values.iter().flatten().copied().reduce(f64::max)?;
            let unit = self.unit.suffix();
            Some(format!("{} up to {}{unit}", line.name, measure(most)))
        });
        let highest: Vec<String> = highest.collect();
        format!(
            "{} over {} s: {}.",
            self.title,
            plain(self.seconds),
            highest.join("; ")
        )
    }

    const fn unit_text(&self) -> &'static str {
        match (self.unit, self.scale) {
            (Unit::PerSecond, _) => " a second",
            (Unit::Count, _) => "",
            (Unit::Ms, Scale::Log) => " logarithmic",
            (Unit::Ms, Scale::Linear) => " ms",
            (Unit::Cores, _) => " cores",
            (Unit::Mib, _) => " MiB",
        }
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let lines = self.sources.iter().flat_map(|source| &source.lines);
        lines.flat_map(|line| line.values.iter().flatten().copied())
    }
}

/// The positions of all parts.
struct Frame {
    time: Axis,
    value: Axis,
    top: f64,
    bottom: f64,
    /// Name, centre and row of each phase whose name has space.
    phase_names: Vec<(String, f64, usize)>,
}

impl Frame {
    fn of(plot: &Plot) -> Self {
        let time = Axis::of_time(plot.seconds);
        let phase_names = phase_names(&plot.phases, &time);
        let rows = phase_names.iter().map(|(_, _, row)| row + 1).max();
        let top = 10.0 + rows.unwrap_or(0) as f64 * ROW_HEIGHT;
        Self {
            time,
            value: Axis::of(plot.scale, plot.unit, plot.values()),
            top,
            bottom: top + HEIGHT,
            phase_names,
        }
    }

    fn x(&self, seconds: f64) -> f64 {
        across(&self.time, seconds)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.value.position(value) * HEIGHT
    }

    fn phases(&self, svg: &mut Markup, phases: &[Band]) {
        for (at, phase) in phases.iter().enumerate() {
            let (from, to) = (self.x(phase.from_seconds), self.x(phase.to_seconds));
            let class = if at % 2 == 0 { "band" } else { "band other" };
            svg.void(
                "rect",
                &[
                    ("class", &class),
                    ("x", &Px(from)),
                    ("y", &Px(self.top)),
                    ("width", &Px((to - from).max(0.5))),
                    ("height", &Px(HEIGHT)),
                    ("data-phase", &phase.name),
                ],
            );
        }
        for (name, middle, row) in &self.phase_names {
            let y = ROW_HEIGHT * (*row as f64 + 1.0);
            let place: [(_, &dyn Display); 3] =
                [("class", &"phase"), ("x", &Px(*middle)), ("y", &Px(y))];
            svg.leaf("text", &place, name);
        }
    }

    fn axes(&self, svg: &mut Markup) {
        for (at, (value, text)) in self.value.ticks.iter().enumerate() {
            let y = self.y(*value);
            let class = if at == 0 { "base" } else { "grid" };
            line(svg, class, [LEFT, y, RIGHT, y]);
            let place: [(_, &dyn Display); 3] = [
                ("class", &"value"),
                ("x", &Px(LEFT - 8.0)),
                ("y", &Px(y + 4.0)),
            ];
            svg.leaf("text", &place, text);
        }
        for (seconds, text) in &self.time.ticks {
            let x = self.x(*seconds);
            line(svg, "base", [x, self.bottom, x, self.bottom + 4.0]);
            let place: [(_, &dyn Display); 3] = [
                ("class", &"time"),
                ("x", &Px(x)),
                ("y", &Px(self.bottom + 19.0)),
            ];
            svg.leaf("text", &place, text);
        }
    }

    fn source(&self, svg: &mut Markup, source: &Source, seconds: f64) {
        // A long plot cannot show more than tenths of a second.
        let digits = if seconds > 20.0 { 10.0 } else { 1_000.0 };
        let pieces = thin::pieces(source.times.len(), thin::POINTS_MAX / 2);
        let times = pieces.map(|piece| {
            let middle = (piece.start + piece.end - 1) / 2;
            plain((source.times[middle] * digits).round() / digits)
        });
        let times: Vec<String> = times.collect();
        svg.element("g", &[("data-times", &times.join(" "))], |group| {
            for line in &source.lines {
                self.line(group, &source.times, line);
            }
        });
    }

    fn line(&self, svg: &mut Markup, times: &[f64], line: &Line) {
        let (path, alone) = self.path(times, line);
        let values = thin::greatest_each(&line.values);
        let values: Vec<String> = values.into_iter().map(brief).collect();
        svg.void(
            "path",
            &[
                ("class", &line.style),
                ("d", &path),
                ("data-name", &line.name),
                ("data-values", &values.join(",")),
            ],
        );
        for (x, y) in alone {
            svg.void(
                "circle",
                &[
                    ("class", &line.style),
                    ("cx", &Px(x)),
                    ("cy", &Px(y)),
                    ("r", &"2.5"),
                ],
            );
        }
    }

    /// The path of a line, and its isolated points.
    fn path(&self, times: &[f64], line: &Line) -> (String, Vec<(f64, f64)>) {
        let mut path = String::new();
        let mut alone = Vec::new();
        let mut piece: Vec<(f64, f64)> = Vec::new();
        let mut end = |piece: &mut Vec<(f64, f64)>| {
            if let [point] = piece[..] {
                alone.push(point);
            } else {
                for (at, (x, y)) in piece.iter().enumerate() {
                    let command = if at == 0 { "M" } else { "L" };
                    path += &format!("{command}{} {}", Px(*x), Px(*y));
                }
            }
            piece.clear();
        };
        for at in thin::kept(&line.values) {
            match line.values[at] {
                Some(value) => piece.push((self.x(times[at]), self.y(value))),
                None => end(&mut piece),
            }
        }
        end(&mut piece);
        (path, alone)
    }

    /// Writes the name of each line beside its end, with a sample of the line.
    fn names(&self, svg: &mut Markup, plot: &Plot) {
        let lines = plot.sources.iter().flat_map(|source| &source.lines);
        let ends = lines.filter_map(|line| {
            let last = line.values.iter().flatten().last()?;
            Some((self.y(*last), line))
        });
        let mut ends: Vec<(f64, &Line)> = ends.collect();
        ends.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let wanted: Vec<f64> = ends.iter().map(|(y, _)| *y).collect();
        let places = apart(&wanted, self.top + 4.0, self.bottom - 2.0);
        for ((_, of), y) in ends.iter().zip(places) {
            let swatch: [(_, &dyn Display); 5] = [
                ("class", &of.style),
                ("x1", &Px(RIGHT + 8.0)),
                ("x2", &Px(RIGHT + 30.0)),
                ("y1", &Px(y)),
                ("y2", &Px(y)),
            ];
            svg.void("line", &swatch);
            let place: [(_, &dyn Display); 3] = [
                ("class", &"name"),
                ("x", &Px(RIGHT + 34.0)),
                ("y", &Px(y + 4.0)),
            ];
            svg.leaf("text", &place, cut(&of.name, NAME_CHARACTERS));
        }
    }
}

/// Arranges phase names in rows without overlaps. A name without space is left out: the table has
/// it.
fn phase_names(phases: &[Band], time: &Axis) -> Vec<(String, f64, usize)> {
    let mut row_ends = [f64::NEG_INFINITY; 2];
    let mut placed = Vec::new();
    for phase in phases {
        let name = cut(&phase.name, PHASE_CHARACTERS);
        let half = name.chars().count() as f64 * CHARACTER_WIDTH / 2.0;
        let middle = across(time, phase.from_seconds.midpoint(phase.to_seconds));
        let middle = middle.clamp(LEFT + half, (WIDTH - half).max(LEFT + half));
        let free = row_ends.iter().position(|end| *end + 6.0 <= middle - half);
        if let Some(row) = free {
            row_ends[row] = middle + half;
            placed.push((name, middle, row));
        }
    }
    placed
}

fn across(time: &Axis, seconds: f64) -> f64 {
    LEFT + time.position(seconds) * (RIGHT - LEFT)
}

/// Moves labels at these heights (in ascending order) apart so that they do not overlap, and keeps
/// them between `top` and `bottom` while there is space.
fn apart(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::with_capacity(wanted.len());
    for y in wanted {
        let least = places.last().map_or(top, |last| last + NAME_HEIGHT);
        places.push(y.max(least));
    }
    let mut most = bottom;
    for y in places.iter_mut().rev() {
        *y = y.min(most);
        most = *y - NAME_HEIGHT;
    }
    places
}

fn line(svg: &mut Markup, class: &'static str, [x1, y1, x2, y2]: [f64; 4]) {
    let ends: [(_, &dyn Display); 5] = [
        ("class", &class),
        ("x1", &Px(x1)),
        ("y1", &Px(y1)),
        ("x2", &Px(x2)),
        ("y2", &Px(y2)),
    ];
    svg.void("line", &ends);
}

/// A name, cut to a maximum length.
fn cut(name: &str, characters: usize) -> String {
    if name.chars().count() <= characters {
        return name.to_owned();
    }
    let first: String = name.chars().take(characters - 1).collect();
    format!("{}…", first.trim_end())
}

/// A value with four significant digits; empty if there is none.
fn brief(value: Option<f64>) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else {
        return String::new();
    };
    let before_point = value.abs().max(1.0).log10().floor();
    let unit = 10f64.powf(3.0 - before_point).max(1.0);
    plain((value * unit).round() / unit)
}

impl Display for LineStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colour = match self.colour {
            Colour::Blue => "blue",
            Colour::Ochre => "ochre",
            Colour::Green => "green",
            Colour::Plum => "plum",
            Colour::Grey => "grey",
        };
        let stroke = match self.stroke {
            Stroke::Solid => "solid",
            Stroke::Dashed => "dashed",
            Stroke::Dotted => "dotted",
            Stroke::DashDotted => "dashdotted",
            Stroke::LongDashed => "longdashed",
        };
        write!(f, "line {colour} {stroke}")
    }
}

/// A length or position, rounded to a tenth.
struct Px(f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain((self.0 * 10.0).round() / 10.0))
    }
}

#[cfg(test)]
mod tests;
