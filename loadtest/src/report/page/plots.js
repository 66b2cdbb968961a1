"use strict";
// Plots over time, drawn by uPlot: lines with their names beside them, and phases in the background. A plot is drawn when it comes
// near the window, because a suite has more plots than a browser should keep in memory at once.

const HEIGHT = 232;
// The widths and heights of the parts around the lines.
const LEFT = 58;
const BOTTOM = 26;
// Plots with the same width of names have their times below each other; a narrow plot has no space for that.
const RIGHT = 112;
const NARROW = 460;
const SWATCH = 22;
const ROW = 16;
const PHASE_ROWS_MAX = 2;
const NAME_CHARACTERS = 10;
const PHASE_CHARACTERS = 18;
const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif";
// The maximum number of processes that have their own line.
const PROCESSES_MAX = 8;

const COLOURS = ["blue", "ochre", "green", "plum", "grey"];
// Lines of a plot have different dashes, for readers who cannot distinguish colours.
const DASHES = {
  solid: [],
  dashed: [5, 2.5],
  dashdotted: [7, 2.5, 1.5, 2.5],
  longdashed: [11, 3],
  dotted: [1.5, 2.5],
};
const STROKES = Object.keys(DASHES);

const decades = (digits, from, to) =>
  Array.from({ length: to - from }, (_, at) => digits.map((digit) => Number(`${digit}e${from + at}`))).flat();
const WHOLE_STEPS = decades([1, 2, 5], 0, 15);
const STEPS = decades([1, 2, 5], -6, 15);
const POWERS = decades([1], -6, 15);
const TIME_STEPS = [...decades([1, 2, 5], -3, 1), 10, 20, 30, 60, 120, 300, 600, 1200, 1800, ...decades([3.6], 3, 9)];

const thousands = (value) =>
  value >= 1e6 ? `${plain(value / 1e6)}M` : value >= 1e3 ? `${plain(value / 1e3)}k` : plain(value);
const milliseconds = (value) =>
  value >= 1e3 ? `${plain(value / 1e3)} s` : value >= 1e-2 ? `${plain(value)} ms` : `${plain(value * 1e3)} µs`;

const PER_SECOND = { title: " a second", suffix: "/s", tick: thousands, steps: WHOLE_STEPS };
const ITEMS = { title: "", suffix: "", tick: thousands, steps: WHOLE_STEPS };
const MILLISECONDS = { title: " logarithmic", suffix: " ms", tick: milliseconds, isLogarithmic: true };
const CORES = { title: " cores", suffix: " cores", tick: plain, steps: STEPS };
const MIB = { title: " MiB", suffix: " MiB", tick: (value) => (value >= 1e3 ? count(value) : plain(value)), steps: STEPS };

const LAG = "Lag: accepted, but not ended";
const DISTRIBUTIONS = [["Time until acceptance", "acceptanceMs"], ["Time end to end", "endToEndMs"]];

// The plots of one run.
function plotsOfRun(run) {
  const plot = (title, unit, lines) => overlay([run], title, unit, () => lines);
  const omitted = Math.max(run.processes.length - PROCESSES_MAX, 0);
  return [
    plot("Throughput", PER_SECOND, [
      line("accepted", "blue", "solid", run, rate("accepted")),
      line("ended", "green", "longdashed", run, rate("ended")),
      // Drawn over the accepted ones, which hide it if both are equal.
      line("offered", "grey", "dashed", run, rate("offered")),
    ]),
    plot(LAG, ITEMS, [line("open", "blue", "solid", run, (sample) => sample.open)]),
    ...DISTRIBUTIONS.map(([title, field]) => plot(title, MILLISECONDS, [
      line("p50", "blue", "solid", run, time(field, "p50")),
      line("p99", "ochre", "dashed", run, time(field, "p99")),
      line("max", "grey", "dotted", run, time(field, "max")),
    ])),
    { ...plot("CPU by process", CORES, linesByProcess(run, "cpuCores")), omitted },
    { ...plot("Resident memory by process", MIB, linesByProcess(run, "residentMib")), omitted },
  ];
}

// The overlaid plots of two runs, with lines named A and B.
function plotsOfPair(a, b) {
  const sides = [
    { name: "A", colour: "ochre", stroke: "dashed", other: "dashdotted" },
    { name: "B", colour: "blue", stroke: "solid", other: "dotted" },
  ];
  const plot = (title, unit, lines) => overlay([a, b], title, unit, (run, at) => lines(run, sides[at]));
  const single = (title, unit, valueOf) =>
    plot(title, unit, (run, { name, colour, stroke }) => [line(name, colour, stroke, run, valueOf(run))]);
  return [
    single("Offered", PER_SECOND, () => rate("offered")),
    single("Accepted", PER_SECOND, () => rate("accepted")),
    single("Ended", PER_SECOND, () => rate("ended")),
    single(LAG, ITEMS, () => (sample) => sample.open),
    ...DISTRIBUTIONS.map(([title, field]) => plot(title, MILLISECONDS, (run, { name, colour, stroke, other }) => [
      line(`${name} p50`, colour, other, run, time(field, "p50")),
      line(`${name} p99`, colour, stroke, run, time(field, "p99")),
    ])),
    single("CPU of the subject", CORES, (run) => sum(run, true, "cpuCores")),
    single("CPU of everything else", CORES, (run) => sum(run, false, "cpuCores")),
    single("Resident memory of the subject", MIB, (run) => sum(run, true, "residentMib")),
    single("Resident memory of everything else", MIB, (run) => sum(run, false, "residentMib")),
  ];
}

function overlay(runs, title, unit, linesOf) {
  const ends = runs.flatMap((run) =>
    [...run.phases.map((phase) => phase.fromSeconds + phase.seconds), ...run.samples.map((sample) => sample.atSeconds)]);
  return {
    title,
    unit,
    seconds: greatest(ends) || 1,
    // Different phases are not overlaid: only those of the first run are drawn.
    phases: runs[0].phases.map(({ name, fromSeconds, seconds }) => ({ name, from: fromSeconds, to: fromSeconds + seconds })),
    sources: runs.map((run, at) => ({ times: run.samples.map((sample) => sample.atSeconds), lines: linesOf(run, at) })),
    omitted: 0,
  };
}

function line(name, colour, stroke, run, valueOf) {
  return { name, colour, stroke, values: run.samples.map(valueOf) };
}

function rate(field) {
  return (sample) => perSecond(sample[field], sample.seconds);
}

function time(field, percentile) {
  return (sample) => sample[field]?.[percentile] ?? null;
}

function sum(run, isSubject, field) {
  const isOfIt = (_, at) => run.processes[at] && (run.processes[at].part === "subject") === isSubject;
  return (sample) => {
    const values = sample[field].filter(isOfIt);
    return values.length > 0 ? values.reduce((one, other) => one + other) : null;
  };
}

// The lines of the processes with the highest peaks, in order of the processes.
function linesByProcess(run, field) {
  const lines = run.processes.map(({ name }, at) =>
    // After the last colour, strokes are combined with colours differently, so that no two lines look alike.
    line(name, COLOURS[at % COLOURS.length], STROKES[(at + Math.floor(at / COLOURS.length)) % STROKES.length], run,
      (sample) => sample[field][at] ?? null));
  const peaks = new Map(lines.map((of) => [of, greatest(of.values)]));
  const shown = new Set([...lines].sort((one, other) => peaks.get(other) - peaks.get(one)).slice(0, PROCESSES_MAX));
  return lines.filter((of) => shown.has(of));
}

function greatest(values) {
  return values.reduce((most, value) => Math.max(most, value ?? 0), 0);
}

// The plot as an element. `id` must be unique on the page.
function figure(plot, id) {
  const { title, unit, omitted } = plot;
  const caption = make("figcaption", {}, title, make("span", { class: "unit" }, unit.title),
    omitted > 0 ? make("span", { class: "unit" }, `; ${omitted} more are not drawn`) : null);
  const lines = plot.sources.flatMap((source) => source.lines);
  if (lines.every(({ values }) => values.every((value) => value === null))) {
    return make("figure", { class: "plot" }, caption, none("No data."));
  }
  const canvas = make("div", { class: "canvas", role: "img", "aria-label": title, "aria-describedby": id });
  canvas.style.height = `${HEIGHT}px`;
  const element = make("figure", { class: "plot" }, caption, canvas, make("p", { id, class: "hidden" }, description(plot, lines)));
  undrawn.set(canvas, () => draw(plot, lines, element, canvas));
  nearWindow.observe(canvas);
  return element;
}

// A description of the plot for screen readers.
function description({ title, unit, seconds }, lines) {
  const peaks = lines.filter(({ values }) => values.some((value) => value !== null))
    .map(({ name, values }) => `${name} up to ${measure(greatest(values))}${unit.suffix}`);
  return `${title} over ${plain(Math.round(seconds * 10) / 10)} s: ${peaks.join("; ")}.`;
}

const undrawn = new Map();
const drawn = new Map();
const nearWindow = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) drawNow(target);
}, { rootMargin: "1000px" });
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = drawn.get(target);
    if (target.clientWidth > 0 && chart.width !== target.clientWidth) chart.setSize({ width: target.clientWidth, height: HEIGHT });
  }
});

function drawNow(canvas) {
  const start = undrawn.get(canvas);
  if (!start) return;
  undrawn.delete(canvas);
  nearWindow.unobserve(canvas);
  drawn.set(canvas, start());
  resized.observe(canvas);
}

function redraw() {
  for (const chart of drawn.values()) chart.redraw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
// Paper is light, and has every plot.
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("paper");
  redraw();
  for (const canvas of [...undrawn.keys()]) drawNow(canvas);
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("paper");
  redraw();
});

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function draw(plot, lines, element, canvas) {
  const { unit, seconds, phases, sources } = plot;
  const data = uPlot.join(sources.filter(({ times }) => times.length > 0)
    .map(({ times, lines: of }) => [times, ...of.map(({ values }) => values)]));
  const shown = sources.filter(({ times }) => times.length > 0).flatMap((source) => source.lines);
  const times = data[0];
  const nameWidth = SWATCH + 14 + Math.max(...shown.map(({ name }) => textWidth(cut(name, NAME_CHARACTERS))));
  const right = (chart) => (chart.width < NARROW ? nameWidth : Math.max(RIGHT, nameWidth));
  const rows = (chart) => {
    const width = chart.width - LEFT;
    const names = phaseNames(phases, (at) => (at / seconds) * (width - right(chart)), width, PHASE_ROWS_MAX);
    return Math.max(0, ...names.map(({ row }) => row + 1));
  };
  const ink = { font: FONT, stroke: () => colour("quiet") };
  const box = make("div", { class: "values" });
  const options = {
    width: canvas.clientWidth,
    height: HEIGHT,
    padding: [(chart) => 10 + rows(chart) * ROW, right, 0, 0],
    legend: { show: false },
    cursor: { y: false },
    scales: {
      // All of the time, unless the reader has selected a part of it.
      x: { time: false, range: (_, from, to) => (from <= times[0] && to >= times.at(-1) ? [0, seconds] : [from, to]) },
      y: unit.isLogarithmic
        ? { distr: 3, range: (_, low, high) => logarithmicRange(low, high), clamp: (_chart, _value, low) => low }
        : { range: (_, _low, high) => uPlot.rangeNum(0, high > 0 ? high : 1, 0.05, true) },
    },
    axes: [
      {
        ...ink, size: BOTTOM, gap: 4, space: 64, incrs: TIME_STEPS, values: timeTicks,
        grid: { show: false }, ticks: { stroke: () => colour("grey"), width: 1, size: 4 },
        border: { show: true, stroke: () => colour("grey"), width: 1 },
      },
      {
        ...ink, size: LEFT, gap: 8, space: 28,
        ...(unit.isLogarithmic
          ? { splits: (_chart, _axis, low, high) => logarithmicTicks(low, high), filter: (_, ticks) => ticks }
          : { incrs: unit.steps }),
        values: (_, ticks) => ticks.map(unit.tick),
        // The lowest line is the time axis.
        grid: { stroke: () => colour("rule"), width: 1, filter: (_, ticks) => ticks.map((tick, at) => (at > 0 ? tick : null)) },
        ticks: { show: false },
      },
    ],
    series: [{}, ...shown.map((of) => ({
      label: of.name,
      stroke: () => colour(of.colour),
      width: 1.6,
      dash: DASHES[of.stroke],
      points: { show: false, filter: alone, size: 5, fill: () => colour(of.colour) },
    }))],
    hooks: {
      drawClear: [(chart) => drawPhases(chart, phases, rows(chart))],
      draw: [(chart) => drawNames(chart, shown)],
      setCursor: [(chart) => showValues(chart, plot, element, box)],
    },
  };
  return new uPlot(options, data, canvas);
}

// The round values around a range; values that are not above 0 are at its lower end.
function logarithmicRange(low, high) {
  if (!(low > 0 && high < Infinity)) return [1, 10];
  const [from, to] = [STEPS.findLast((step) => step <= low * (1 + 1e-6)), STEPS.find((step) => step >= high * (1 - 1e-6))];
  return [from, to > from ? to : STEPS[STEPS.indexOf(from) + 1]];
}

function logarithmicTicks(low, high) {
  // From two decades on, ticks at powers of ten are enough.
  const steps = high / low >= 100 ? POWERS : STEPS;
  return steps.filter((step) => step >= low && step <= high);
}

function timeTicks(_chart, ticks, _axis, _space, step) {
  return ticks.map((tick) => (tick === 0 ? "0" : step >= 60 ? `${plain(tick / 60)} min` : `${plain(tick)} s`));
}

// The points of a line that have no neighbours: a path does not show them.
function alone(chart, at) {
  const values = chart.data[at];
  const neighbour = (from, step) => {
    let next = from + step;
    // In between are samples of the other run.
    while (values[next] === undefined && next >= 0 && next < values.length) next += step;
    return values[next] ?? null;
  };
  return [...values.keys()].filter((of) =>
    values[of] !== undefined && values[of] !== null && neighbour(of, -1) === null && neighbour(of, 1) === null);
}

// Draws with CSS pixels as units. `area` is the area with the lines.
function onCanvas(chart, drawing) {
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio;
  const [left, top] = [bbox.left / ratio, bbox.top / ratio];
  const area = { left, top, right: left + bbox.width / ratio, bottom: top + bbox.height / ratio };
  ctx.save();
  ctx.scale(ratio, ratio);
  ctx.font = FONT;
  drawing(ctx, area);
  ctx.restore();
}

function drawPhases(chart, phases, rows) {
  onCanvas(chart, (ctx, { left, top, right, bottom }) => {
    const x = (at) => Math.min(Math.max(left + chart.valToPos(at, "x"), left), right);
    for (const [at, { from, to }] of phases.entries()) {
      const [begin, end] = [x(from), x(to)];
      ctx.fillStyle = colour(at % 2 === 0 ? "band" : "band-other");
      if (end > left && begin < right) ctx.fillRect(begin, top, Math.max(end - begin, 0.5), bottom - top);
    }
    ctx.fillStyle = colour("quiet");
    ctx.textAlign = "center";
    const visible = phases.filter(({ from, to }) => x(to) > left && x(from) < right);
    for (const { name, middle, row } of phaseNames(visible, (at) => x(at) - left, chart.width - left, rows)) {
      ctx.fillText(name, left + middle, ROW * (row + 1));
    }
  });
}

// Arranges phase names in rows without overlaps. A name without space is left out: the table has it.
function phaseNames(phases, x, width, rows) {
  const rowEnds = Array(rows).fill(-Infinity);
  const placed = [];
  for (const phase of phases) {
    const name = cut(phase.name, PHASE_CHARACTERS);
    const half = textWidth(name) / 2;
    const middle = Math.max(Math.min((x(phase.from) + x(phase.to)) / 2, width - half), half);
    const row = rowEnds.findIndex((end) => end + 6 <= middle - half);
    if (row >= 0) {
      rowEnds[row] = middle + half;
      placed.push({ name, middle, row });
    }
  }
  return placed;
}

// Writes the name of each line beside its end, with a sample of the line.
function drawNames(chart, lines) {
  onCanvas(chart, (ctx, { top, right, bottom }) => {
    const [first, last] = chart.series[0].idxs;
    const ends = lines.flatMap((of, at) => {
      const values = chart.data[at + 1].slice(first, last + 1).filter((value) => value !== undefined && value !== null);
      return values.length > 0 ? [{ of, y: top + chart.valToPos(values.at(-1), "y") }] : [];
    });
    ends.sort((one, other) => one.y - other.y);
    const places = apart(ends.map(({ y }) => y), top + 4, bottom - 2);
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.lineWidth = 1.6;
    for (const [at, { of }] of ends.entries()) {
      const y = places[at];
      ctx.strokeStyle = colour(of.colour);
      ctx.setLineDash(DASHES[of.stroke]);
      ctx.beginPath();
      ctx.moveTo(right + 8, y);
      ctx.lineTo(right + 8 + SWATCH, y);
      ctx.stroke();
      ctx.fillStyle = colour("ink");
      ctx.fillText(cut(of.name, NAME_CHARACTERS), right + 12 + SWATCH, y);
    }
  });
}

// Moves labels at these heights (in ascending order) apart so that they do not overlap, and keeps them between `top` and `bottom`
// while there is space.
function apart(wanted, top, bottom) {
  const places = [];
  for (const y of wanted) places.push(Math.max(y, places.length > 0 ? places.at(-1) + ROW : top));
  let most = bottom;
  for (let at = places.length - 1; at >= 0; at -= 1) {
    places[at] = Math.min(places[at], most);
    most = places[at] - ROW;
  }
  return places;
}

// Shows the values under the pointer, of each run at the time of its nearest sample.
function showValues(chart, { unit, seconds, phases, sources }, element, box) {
  const { left } = chart.cursor;
  if (!(left >= 0)) {
    box.remove();
    return;
  }
  const at = chart.posToVal(left, "x");
  const rows = sources.filter(({ times }) => times.length > 0).flatMap(({ times, lines }) => {
    const nearest = times.reduce((best, other, i) => (Math.abs(times[best] - at) > Math.abs(other - at) ? i : best), 0);
    return lines.map(({ name, values }) => ({ time: times[nearest], name, value: values[nearest] }));
  });
  const { time } = rows[0];
  // A long plot cannot show more than tenths of a second.
  const heading = `${seconds > 20 ? plain(Math.round(time * 10) / 10) : plain(time)} s`;
  const phase = phases.find(({ from, to }) => time >= from && to >= time);
  const texts = rows.map(({ name, value }) => `${name}  ${value === null ? NONE : brief(value) + unit.suffix}`);
  box.textContent = [phase ? `${heading}, ${phase.name}` : heading, ...texts].join("\n");
  element.append(box);
  const [over, width] = [chart.over.offsetLeft + left, element.clientWidth];
  const isRight = over > width / 2;
  box.style.left = isRight ? "auto" : `${over + 12}px`;
  box.style.right = isRight ? `${width - over + 12}px` : "auto";
  box.style.top = "48px";
}

// A value with four significant digits, and with all digits before the point.
function brief(value) {
  const beforePoint = Math.floor(Math.log10(Math.max(Math.abs(value), 1)));
  const unit = Math.max(10 ** (3 - beforePoint), 1);
  return (Math.round(value * unit) / unit).toLocaleString("en-US");
}

const measuring = document.createElement("canvas").getContext("2d");
measuring.font = FONT;

function textWidth(text) {
  return measuring.measureText(text).width;
}

// A name, cut to a maximum length.
function cut(name, characters) {
  const all = [...name];
  return all.length > characters ? `${all.slice(0, characters - 1).join("").trimEnd()}…` : name;
}
