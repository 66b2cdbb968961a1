"""Panels as SVG: each kind that the dashboards use, drawn from the panel's definition. A feature of a panel that nothing
here can draw is an error, so that no picture shows less than its dashboard."""

import dataclasses
import datetime
import html
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from units import UNITS, ticks, write

Json = dict[str, Any]
Points = list[tuple[float, float]]

INK, FAINT, LINE, PAPER = "#24292e", "#6b737c", "#e3e6e8", "#ffffff"
COLOURS = {"green": "#37872d", "orange": "#e0752d", "red": "#c4162a"}
PALETTE = [
    "#56a64b", "#e0a400", "#3274d9", "#e0752d", "#d6455d", "#8f3bb8",
    "#1f9e99", "#b0702a", "#5c6b9a", "#c15c9d", "#7a8b2a", "#2b4f81",
]
PAD, TITLE = 10, 30
TITLE_SIZE, SMALL_SIZE, ROW = 13, 11, 15
LEGEND_ROWS = 7


@dataclasses.dataclass
class Series:
    """The result of a query: a legend's name, the labels, and values by time."""

    name: str
    labels: dict[str, str]
    points: Points


@dataclasses.dataclass
class Box:
    """A place on the page, in pixels."""

    x: float
    y: float
    w: float
    h: float


@dataclasses.dataclass
class Span:
    """The displayed time, in seconds since 1970, and the distance between two points."""

    start: float
    end: float
    step: float


def draw(panel: Json, box: Box, series: list[Series], span: Span) -> str:
    """One panel with its frame and title."""
    if panel["type"] == "row":
        return text(box.x, box.y + box.h / 2 + 5, f"▾ {panel['title']}", size=15, weight=600)
    frame = f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.w:g}" height="{box.h:g}" rx="3" fill="{PAPER}" stroke="{LINE}"/>'
    room = box.w - 2 * PAD
    size = min(TITLE_SIZE, TITLE_SIZE * room / width(panel["title"], TITLE_SIZE, bold=True))
    title = text(box.x + PAD, box.y + 20, panel["title"], size=size, weight=600)
    within = Box(box.x + PAD, box.y + TITLE, room, box.h - TITLE - PAD)
    if not any(one.points for one in series):
        said = text(within.x + within.w / 2, within.y + within.h / 2, defaults(panel)["noValue"], size=14, fill=FAINT, anchor="middle")
        return frame + title + said
    return frame + title + KINDS[panel["type"]](panel, within, series, span)


def unknown(panel: Json) -> Iterator[str]:
    """The features of a panel that nothing here can draw."""
    kind = panel["type"]
    if kind == "row":
        return
    if kind not in KINDS:
        yield f"the kind {kind}"
        return
    field = defaults(panel)
    custom, legend = field.get("custom", {}), panel.get("options", {}).get("legend", {})
    steps = [step["color"] for step in field["thresholds"]["steps"]]
    mapped = [one["color"] for mapping in field["mappings"] for one in mapping["options"].values()]
    asked: list[tuple[str, Any, list[Any]]] = [
        ("the unit", field["unit"], list(UNITS)),
        ("drawStyle", custom.get("drawStyle"), [None, "line"]),
        ("the scale", custom.get("scaleDistribution", {}).get("type"), [None, "linear"]),
        ("stacking", custom.get("stacking", {}).get("mode"), [None, "none", "normal"]),
        ("showPoints", custom.get("showPoints"), [None, "never"]),
        ("thresholds that are", field["thresholds"]["mode"], ["absolute"]),
        ("colours by", field.get("color", {}).get("mode"), [None, "palette-classic", "thresholds"]),
        ("a legend of", legend.get("calcs"), [None, ["lastNotNull", "max"]]),
        ("a value that is", panel.get("options", {}).get("reduceOptions", {}).get("calcs"), [None, ["lastNotNull"]]),
        ("overrides", panel["fieldConfig"]["overrides"], [[]]),
        *[("the colour", colour, list(COLOURS)) for colour in steps + mapped],
        *[("a mapping of", mapping["type"], ["value"]) for mapping in field["mappings"]],
        *[("the transformation", one["id"], ["organize"]) for one in panel.get("transformations", [])],
    ]
    for what, value, known in asked:
        if value not in known:
            yield f"{what} {value}"


def time_series(panel: Json, box: Box, series: list[Series], span: Span) -> str:
    """Lines over time, or stacked areas, and a legend with the last and the highest value of each."""
    field = defaults(panel)
    unit, custom = field["unit"], field["custom"]
    legend, legend_height = legend_table(box, series, unit)
    plot = Box(box.x + 62, box.y + 6, box.w - 66, box.h - legend_height - 30)
    stacked = custom["stacking"]["mode"] == "normal"
    lines = [(one.points, {at: 0.0 for at, _ in one.points}) for one in series]
    if stacked:
        lines = list(stack(series))
    highest = field.get("max", max(value for points, _ in lines for _, value in points))
    marks = ticks(field.get("min", 0), highest, unit, 4 if plot.h > 80 else 2)
    scale = plot.h / (marks[-1] - marks[0])

    def place(at: float, value: float) -> tuple[float, float]:
        x = plot.x + (at - span.start) / (span.end - span.start) * plot.w
        return x, plot.y + plot.h - (min(value, marks[-1]) - marks[0]) * scale

    areas, strokes = [], []
    for index, (points, below) in enumerate(lines):
        colour = PALETTE[index % len(PALETTE)]
        for piece in pieces(points, span):
            top = [place(at, value) for at, value in piece]
            floor = [place(at, below[at]) for at, _ in reversed(piece)]
            fill = custom["fillOpacity"] / 100
            areas.append(f'<path d="{path(top + floor)}Z" fill="{colour}" fill-opacity="{fill:g}"/>')
            strokes.append(f'<path d="{path(top)}" fill="none" stroke="{colour}" stroke-width="1.4" stroke-linejoin="round"/>')
    lines_across = axis(plot, marks, unit, plot.x, lambda value: place(span.start, value)[1])
    return lines_across + clock(plot, span) + "".join(areas + strokes) + legend


def stat(panel: Json, box: Box, series: list[Series], span: Span) -> str:
    """The last value, large, in the colour of its threshold, above its history."""
    field, points = defaults(panel), series[0].points
    value = points[-1][1]
    colour = of_threshold(field, value)
    said = write(value, field["unit"], field.get("decimals"))
    size = min(44.0, 44.0 * box.w / width(said, 44, bold=True), box.h * 0.42)
    number = text(box.x + box.w / 2, box.y + box.h * 0.42, said, size=size, weight=600, fill=colour, anchor="middle")
    if panel["options"]["graphMode"] != "area":
        return number
    band = Box(box.x, box.y + box.h * 0.62, box.w, box.h * 0.38)
    low, high = min(value for _, value in points), max(value for _, value in points)
    scale = band.h / (high - low) if high > low else 0
    places = [
        (band.x + (at - span.start) / (span.end - span.start) * band.w, band.y + band.h - (value - low) * scale)
        for at, value in points
    ]
    ground = [(places[-1][0], band.y + band.h), (places[0][0], band.y + band.h)]
    area = f'<path d="{path(places + ground)}Z" fill="{colour}" fill-opacity="0.15"/>'
    return area + f'<path d="{path(places)}" fill="none" stroke="{colour}" stroke-width="1.2"/>' + number


def state_timeline(panel: Json, box: Box, series: list[Series], span: Span) -> str:
    """A band for each series, coloured by the meaning of its value."""
    field = defaults(panel)
    left = max(width(one.name, SMALL_SIZE + 1) for one in series) + 10
    plot = Box(box.x + left, box.y + 4, box.w - left - 4, box.h - 46)
    height = plot.h / len(series)
    drawn = [clock(plot, span)]
    for index, one in enumerate(series):
        y = plot.y + index * height + height * 0.05
        drawn.append(text(plot.x - 8, y + height * 0.45 + 4, one.name, size=SMALL_SIZE + 1, anchor="end"))
        for value, run in itertools.groupby(one.points, key=lambda point: point[1]):
            times = [at for at, _ in run]
            since, until = times[0], min(times[-1] + span.step, span.end)
            x, end = (plot.x + (at - span.start) / (span.end - span.start) * plot.w for at in (since, until))
            colour = of_threshold(field, value)
            drawn.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{end - x:.1f}" height="{height * 0.9:.1f}" '
                f'fill="{colour}" fill-opacity="{field["custom"]["fillOpacity"] / 100:g}"/>'
            )
    x = box.x
    for mapping in field["mappings"]:
        for meaning in mapping["options"].values():
            drawn.append(swatch(x, box.y + box.h - 2, COLOURS[meaning["color"]]))
            drawn.append(text(x + 18, box.y + box.h - 2, meaning["text"], size=SMALL_SIZE))
            x += 34 + width(meaning["text"], SMALL_SIZE)
    return "".join(drawn)


def table(panel: Json, box: Box, series: list[Series], span: Span) -> str:
    """A row for each series, a column for each displayed label."""
    del span
    options = panel["transformations"][0]["options"]
    order = options["indexByName"]
    names = sorted({name for one in series for name in one.labels} - set(options["excludeByName"]), key=lambda name: order.get(name, 99))
    column = box.w / len(names)
    rows = [dict.fromkeys(names, ""), *[one.labels for one in series]]
    drawn = []
    for index, row in enumerate(rows[: int(box.h // 26)]):
        y = box.y + 18 + index * 26
        drawn.append(f'<path d="M{box.x:g} {y + 8:g}h{box.w:g}" stroke="{LINE}"/>')
        for place, name in enumerate(names):
            said, weight = (row.get(name, ""), 400) if index else (name, 600)
            drawn.append(text(box.x + place * column + 4, y, said, size=SMALL_SIZE + 1, weight=weight))
    return "".join(drawn)


KINDS: dict[str, Callable[[Json, Box, list[Series], Span], str]] = {
    "timeseries": time_series,
    "stat": stat,
    "state-timeline": state_timeline,
    "table": table,
}


def legend_table(box: Box, series: list[Series], unit: str) -> tuple[str, float]:
    """Names with their last and highest values, and the height of the legend. If not all fit, the series with the
    highest values are shown."""
    shown = [(index, one, max(value for _, value in one.points)) for index, one in enumerate(series) if one.points]
    room = min(LEGEND_ROWS, int(box.h / 2 / ROW) - 1)
    left_out = len(shown) - room + 1 if len(shown) > room else 0
    if left_out:
        highest = sorted(shown, key=lambda it: -it[2])[: room - 1]
        shown = sorted(highest, key=lambda it: it[0])
    height = (len(shown) + 1 + bool(left_out)) * ROW
    y, end = box.y + box.h - height + ROW - 4, box.x + box.w
    drawn = [
        text(end - 72, y, "Last", size=SMALL_SIZE - 1, fill=FAINT, anchor="end"),
        text(end, y, "Max", size=SMALL_SIZE - 1, fill=FAINT, anchor="end"),
    ]
    for index, one, most in shown:
        y += ROW
        drawn.append(swatch(box.x, y, PALETTE[index % len(PALETTE)]))
        drawn.append(text(box.x + 18, y, shortened(one.name, box.w - 160, SMALL_SIZE), size=SMALL_SIZE))
        drawn.append(text(end - 72, y, write(one.points[-1][1], unit), size=SMALL_SIZE, anchor="end"))
        drawn.append(text(end, y, write(most, unit), size=SMALL_SIZE, anchor="end"))
    if left_out:
        drawn.append(text(box.x + 18, y + ROW, f"and {left_out} more, none of them higher", size=SMALL_SIZE, fill=FAINT))
    return "".join(drawn), height + 4


def axis(plot: Box, marks: list[float], unit: str, x: float, y_of: Callable[[float], float]) -> str:
    """Lines across with their values."""
    lines = "".join(f"M{x:g} {y_of(mark):.1f}h{plot.w:g}" for mark in marks)
    said = [text(x - 6, y_of(mark) + 4, write(mark, unit), size=SMALL_SIZE, fill=FAINT, anchor="end") for mark in marks]
    return f'<path d="{lines}" stroke="{LINE}"/>' + "".join(said)


def clock(plot: Box, span: Span) -> str:
    """The time below a plot."""
    every = next(width for width in (60, 120, 300, 600, 1800, 3600, 21600) if (span.end - span.start) / width <= max(plot.w / 45, 2))
    drawn = []
    for at in range(int(-(-span.start // every) * every), int(span.end) + 1, every):
        x = plot.x + (at - span.start) / (span.end - span.start) * plot.w
        said = datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%H:%M")
        if plot.x + 10 < x < plot.x + plot.w - 10:
            drawn.append(text(x, plot.y + plot.h + 15, said, size=SMALL_SIZE, fill=FAINT, anchor="middle"))
    return "".join(drawn)


def stack(series: list[Series]) -> Iterator[tuple[Points, dict[float, float]]]:
    """Each series stacked on those before it, and its base line."""
    ground: dict[float, float] = {}
    for one in series:
        below = {at: ground.get(at, 0.0) for at, _ in one.points}
        yield [(at, below[at] + value) for at, value in one.points], below
        ground |= {at: below[at] + value for at, value in one.points}


def pieces(points: Points, span: Span) -> Iterator[Points]:
    """A line has a gap where there is no data."""
    piece: Points = []
    for at, value in points:
        if piece and at - piece[-1][0] > 1.5 * span.step:
            yield piece
            piece = []
        piece.append((at, value))
    if piece:
        yield piece


def path(places: list[tuple[float, float]]) -> str:
    """Straight lines; consecutive level ones are joined."""
    tenths = [(round(x * 10), round(y * 10)) for x, y in places]
    kept = [
        here for index, here in enumerate(tenths)
        if not 0 < index < len(tenths) - 1 or not tenths[index - 1][1] == here[1] == tenths[index + 1][1]
    ]
    moves = [f"{(x - a) / 10:g} {(y - b) / 10:g}" for (a, b), (x, y) in itertools.pairwise(kept)]
    return f"M{kept[0][0] / 10:g} {kept[0][1] / 10:g}" + ("l" + " ".join(moves) if moves else "h.1")


def defaults(panel: Json) -> Json:
    found: Json = panel["fieldConfig"]["defaults"]
    return found


def of_threshold(field: Json, value: float) -> str:
    steps = [step for step in field["thresholds"]["steps"] if step["value"] is None or step["value"] <= value]
    return COLOURS[steps[-1]["color"]]


def swatch(x: float, y: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y - 5:g}" width="12" height="3" rx="1" fill="{colour}"/>'


def text(x: float, y: float, said: str, *, size: float, weight: int = 400, fill: str = INK, anchor: str = "start") -> str:
    more = (f' font-weight="{weight}"' if weight != 400 else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    more += f' fill="{fill}"' if fill != INK else ""
    return f'<text x="{x:.4g}" y="{y:.5g}" font-size="{size:.3g}"{more}>{html.escape(said)}</text>'


def width(said: str, size: float, *, bold: bool = False) -> float:
    """The approximate width of a text: the viewer's font may differ."""
    wide = sum(0.32 if letter in "iljtf.,:;|' " else 0.88 if letter in "mwMW%" else 0.66 if letter.isupper() else 0.56 for letter in said)
    return wide * size * (1.06 if bold else 1)


def shortened(said: str, room: float, size: float) -> str:
    while width(said, size) > room and len(said) > 2:
        said = said.rstrip("…")[:-1] + "…"
    return said
