"use strict";
// Shows the report, or the comparison of two, that is in the page as JSON.

// The maximum number of tenants in the table.
const TENANTS_MAX = 50;
// Groups of threads with a smaller share of their process's CPU are shown together.
const SHARE_MIN = 0.01;
// The mark of a goal is at two thirds of its bar, so that there is space for more than 100 %.
const GOAL_BAR_MAX = 1.5;

const PARTS = { subject: "subject", server: "servers", services: "services", load: "load" };
const TWO = ["p50", "p99"];
const THREE = ["p50", "p99", "max"];
const ALL = ["p50", "p90", "p99", "p999", "max"];
const UNTIL_ACCEPTANCE = "until acceptance, ms";
const END_TO_END = "end to end, ms";

function showReport({ begun, machine, goals, runs }) {
  return [
    make("header", {},
      make("h1", {}, "Load test"),
      make("p", { class: "about" }, make("time", { datetime: begun }, moment(begun)), make("span", {}, machineText(machine)))),
    goals.length > 0 ? [make("h2", {}, "Goals"), goalTable(goals)] : null,
    make("h2", {}, "Runs"),
    runs.length === 0 ? none("No runs.") : [
      runTable(runs),
      make("p", { class: "note" }, "CPU is per delivery, memory is the peak, both of the measured system."),
      runs.map(runSection),
    ],
  ];
}

// A time for people, if it is RFC 3339 in UTC.
function moment(text) {
  const [, day, time] = /^([^T]*)T([^.]*).*Z$/.exec(text) ?? [];
  return day ? `${day} ${time.replace(/Z$/, "")} UTC` : text;
}

function machineText({ cpu, cores, memoryMib, system }) {
  return `${cpu}, ${cores} ${cores === 1 ? "core" : "cores"}, ${count(memoryMib)} MiB of memory, ${system}`;
}

function goalTable(goals) {
  const rows = goals.map(({ work, goal, measured, ratio }) => [work, goal, measured, reached(ratio)]);
  return table("Goals, and how far they were reached", 4, ["work", "goal", "measured", "reached"], [rows]);
}

// The share of a goal that was reached: a bar with a mark at 100 %, and a word.
function reached(ratio) {
  if (ratio === null) return badge("neutral", "not measured");
  return make("span", { class: "reached" },
    bar(ratio / GOAL_BAR_MAX, "goal"),
    make("span", { class: "ratio" }, `${measure(ratio)}×`),
    ratio >= 1 ? badge("good", "met") : badge("bad", "missed"));
}

function runTable(runs) {
  const headings = ["scenario", "system", "outcome", "offered", "accepted", "refused", "completed, /s",
    [UNTIL_ACCEPTANCE, ...TWO], [END_TO_END, ...TWO], ["subject", "CPU, µs", "MiB"]];
  const rows = runs.map((run, at) => [
    make("a", { href: `#run-${at + 1}` }, run.scenario),
    run.system,
    badges(run),
    count(run.offered),
    count(run.accepted),
    count(refusedOf(run)),
    measure(perSecond(completedOf(run), run.endingSeconds)),
    ...percentiles(run.acceptanceMs, TWO),
    ...percentiles(run.endToEndMs, TWO),
    measure(sumOf(run, "subject", "cpuUsPerDelivery")),
    measure(sumOf(run, "subject", "residentMibMax")),
  ]);
  return table("All runs", 3, headings, [rows]);
}

// The number of requests that were not accepted.
function refusedOf(run) {
  return Object.values(run.refused).reduce((one, other) => one + other, 0);
}

// Successful operations; NaN if none was followed to its end.
function completedOf(run) {
  return Object.keys(run.states).length > 0 ? run.states.Processed ?? 0 : NaN;
}

// A figure of all processes of a part; null if there are none.
function sumOf(run, part, field) {
  const processes = run.processes.filter((process) => process.part === part);
  return processes.length > 0 ? processes.reduce((sum, process) => sum + process[field], 0) : null;
}

// The result of a run in a few words.
function badges({ failures, verdict }) {
  const found = verdict ? findingsOf(verdict) : [];
  return [
    failures.length > 0 ? badge("bad", "FAILED") : null,
    verdict ? null : badge("neutral", "not judged"),
    verdict && found.every(({ tone }) => tone !== "bad") ? badge("good", "BALANCED") : null,
    ...found.map(({ tone, name, findings }) => badge(tone, `${name} ${count(findings.count)}`)),
  ];
}

function findingsOf(verdict) {
  return [
    { tone: "bad", name: "LOST", findings: verdict.lost },
    { tone: "bad", name: "DOUBLE", findings: verdict.double },
    { tone: "bad", name: "HALF-UNDONE", findings: verdict.halfUndone },
    { tone: "neutral", name: "parked", findings: verdict.parked },
  ].filter(({ findings }) => findings.count > 0);
}

function runSection(run, at) {
  const id = `run-${at + 1}`;
  return make("section", { id, class: "run" },
    make("h2", {}, run.scenario, quiet(" on "), run.system),
    make("p", { class: "about" }, badges(run), make("span", {}, `sent as ${run.transport}, seed ${run.seed}`),
      run.notJudged ? make("span", {}, `not judged: ${run.notJudged}`) : null),
    failures(run),
    figures(run),
    latencyTable(run),
    make("h3", {}, "Over time"),
    run.samples.length > 0 ? plotGrid(plotsOfRun(run), id) : none("No samples were taken, so there is nothing to plot."),
    make("h3", {}, "Phases"),
    run.phases.length > 0 ? phaseTable(run.phases) : none("The scenario has no phases."),
    run.breakingPoint ? make("p", {}, breakingPointText(run.breakingPoint)) : null,
    run.kinds.length > 0 ? [make("h3", {}, "Kinds of requests"), kindTable(run.kinds)] : null,
    run.tenants.length > 0 ? [make("h3", {}, "Tenants"), tenantTable(run.tenants)] : null,
    make("h3", {}, "CPU and memory"),
    run.processes.length > 0 ? processTable(run) : none("No process was watched."));
}

// The failures, and the findings with examples.
function failures(run) {
  const findings = run.verdict ? findingsOf(run.verdict) : [];
  return [
    run.failures.length > 0 ? warning("Failures", run.failures) : null,
    ...findings.map(({ tone, name, findings: { count: all, examples } }) =>
      make("div", { class: `finding ${tone}` },
        make("h3", {}, `${name}: ${count(all)}`, examples.length < all ? quiet(`, of which ${examples.length}:`) : null),
        make("div", { class: "examples" }, list(examples)))),
  ];
}

function warning(title, texts) {
  return make("div", { class: "finding bad" }, make("h3", {}, title), list(texts));
}

// The counts.
function figures(run) {
  const rateText = (of, seconds) => {
    const rate = perSecond(of, seconds);
    return rate === null ? NONE : `${measure(rate)}/s over ${plain(Math.round(seconds * 10) / 10)} s`;
  };
  const refused = Object.entries(run.refused)
    .map(([status, times]) => `${status === "none" ? "no answer" : status}: ${count(times)}`);
  const figure = (name, value, note = "") =>
    make("div", {}, make("dt", {}, name), make("dd", {}, make("b", {}, count(value)), make("span", {}, note)));
  return make("dl", { class: "figures" },
    figure("offered", run.offered),
    figure("accepted", run.accepted, rateText(run.accepted, run.acceptingSeconds)),
    figure("refused", refusedOf(run), refused.join(", ")),
    Object.entries(run.states).map(([state, times]) => figure(state, times, rateText(times, run.endingSeconds))),
    figure("still open", run.open),
    run.verdict ? figure("judged", run.verdict.judged, "by the services' ledger") : null);
}

function latencyTable(run) {
  return table("Latency from the intended send time, in ms", 1, ["", "p50", "p90", "p99", "p99.9", "max"], [[
    ["until acceptance", ...percentiles(run.acceptanceMs, ALL)],
    ["end to end", ...percentiles(run.endToEndMs, ALL)],
  ]]);
}

function plotGrid(plots, id) {
  return make("div", { class: "plots" }, plots.map((plot, at) => figure(plot, `${id}-plot-${at}`)));
}

function phaseTable(phases) {
  const headings = ["phase", "from, s", "for, s", "rate, /s", "offered", "accepted",
    [UNTIL_ACCEPTANCE, ...THREE], [END_TO_END, ...THREE]];
  const rows = phases.map((phase) => [
    phase.name,
    plain(phase.fromSeconds),
    plain(phase.seconds),
    phase.rate === phase.rateEnd ? measure(phase.rate) : `${measure(phase.rate)} → ${measure(phase.rateEnd)}`,
    count(phase.offered),
    count(phase.accepted),
    ...percentiles(phase.acceptanceMs, THREE),
    ...percentiles(phase.endToEndMs, THREE),
  ]);
  return table("Offered requests by phase, and their results", 1, headings, [rows]);
}

function breakingPointText({ rate, brokeAt, because }) {
  const held = `${measure(rate)}/s held`;
  if (brokeAt === null) return `No breaking point was reached: ${held}.`;
  return `Breaking point: ${held}, ${measure(brokeAt)}/s did not${because === null ? "" : `: ${because}`}.`;
}

function kindTable(kinds) {
  const headings = ["kind", "with a required end", "ended as required", "otherwise", [END_TO_END, ...THREE]];
  const rows = kinds.map((kind) => [
    kind.isBad ? `${kind.name} (bad input)` : kind.name,
    count(kind.heldTo),
    count(kind.asMeant),
    count(Math.max(kind.heldTo - kind.asMeant, 0)),
    ...percentiles(kind.endToEndMs, THREE),
  ]);
  return table("Required and actual outcomes, by kind of request", 1, headings, [rows]);
}

function tenantTable(tenants) {
  const headings = ["tenant", "offered", "accepted", [UNTIL_ACCEPTANCE, ...THREE], [END_TO_END, ...THREE]];
  const rows = tenants.slice(0, TENANTS_MAX).map((tenant) => [
    tenant.name,
    count(tenant.offered),
    count(tenant.accepted),
    ...percentiles(tenant.acceptanceMs, THREE),
    ...percentiles(tenant.endToEndMs, THREE),
  ]);
  const more = tenants.length - TENANTS_MAX;
  return [
    table("Results by tenant", 1, headings, [rows]),
    more > 0 ? none(`${count(more)} more tenants are in the report's JSON.`) : null,
  ];
}

// The CPU per delivery, by part, process and group of threads.
function processTable(run) {
  const most = greatest(run.processes.map((process) => process.cpuUsPerDelivery));
  const share = (micros) => bar(most > 0 ? micros / most : 0, "");
  const mib = (value) => (value >= 0 ? count(value) : NONE);
  const bodies = Object.entries(PARTS).map(([part, name]) => {
    const ofPart = run.processes.filter((process) => process.part === part);
    const rows = ofPart.flatMap((process) => {
      const { name, cpuUsPerDelivery: micros, residentMibBefore, residentMibMax } = process;
      return [
        { kind: "process", cells: [name, share(micros), measure(micros), mib(residentMibBefore), mib(residentMibMax)] },
        ...threadsOf(process).map(([threads, of]) => ({ kind: "thread", cells: [threads, share(of), measure(of), "", ""] })),
      ];
    });
    const all = { kind: "part", cells: [name, "", measure(sumOf(run, part, "cpuUsPerDelivery")), "", ""] };
    return ofPart.length > 0 ? [all, ...rows] : [];
  });
  return table("CPU for each delivery, and resident memory", 2, ["process", "CPU", "µs", "MiB before", "MiB at most"],
    bodies.filter((rows) => rows.length > 0));
}

// The groups of threads with the highest usage first, and the small ones together.
function threadsOf({ cpuUsPerDelivery, cpuUsByThreads }) {
  const all = Object.entries(cpuUsByThreads);
  const isShown = ([, micros]) => micros > 0 && micros >= cpuUsPerDelivery * SHARE_MIN;
  const small = all.filter((group) => !isShown(group));
  const rest = small.reduce((sum, [, micros]) => sum + micros, 0);
  return [
    ...all.filter(isShown).sort(([, one], [, other]) => other - one),
    ...(rest > 0 ? [[`${small.length} others`, rest]] : []),
  ];
}

function showComparison({ reports, warnings, pairs }) {
  const sources = reports.map(({ name, begun, machine }, at) => ["AB"[at], name, moment(begun), machineText(machine)]);
  return [
    make("header", {},
      make("h1", {}, "Comparison of load tests"),
      table("The reports", 4, ["", "report", "begun", "machine"], [sources])),
    warnings.length > 0 ? warning("Warnings", warnings) : null,
    make("h2", {}, "Runs"),
    pairTable(pairs),
    make("p", { class: "note" }, "B/A is the ratio of B's figure to A's. Differences of up to 2% count as the same. " +
      "One run of each does not show how much of a difference is chance."),
    pairs.map(pairSection),
  ];
}

// The number of better and worse figures of each pair.
function pairTable(pairs) {
  const rows = pairs.map(({ a, b, groups }, at) => {
    const outcomes = groups.flatMap((group) => group.figures.map((figure) => figure.outcome));
    const times = (outcome) => count(outcomes.filter((of) => of === outcome).length);
    const link = make("a", { href: `#pair-${at + 1}` }, a.scenario);
    return [link, a.system, badges(a), badges(b), times("better"), times("same"), times("worse")];
  });
  return table("How many figures of B are better or worse than those of A", 4,
    ["scenario", "system", "A", "B", "better", "same", "worse"], [rows]);
}

function pairSection({ a, b, groups, warnings }, at) {
  const id = `pair-${at + 1}`;
  const hasSamples = a.samples.length > 0 || b.samples.length > 0;
  return make("section", { id, class: "run" },
    make("h2", {}, a.scenario, quiet(" on "), a.system),
    warnings.length > 0 ? warning("Warnings", warnings) : null,
    make("h3", {}, "Over time"),
    hasSamples
      ? [none("The phases behind the lines are those of A."), plotGrid(plotsOfPair(a, b), id)]
      : none("No samples were taken, so there is nothing to plot."),
    make("h3", {}, "Figures"),
    figureTable(groups));
}

function figureTable(groups) {
  const bodies = groups.map(({ name, figures }) => [
    { kind: "part", cells: [name, "", "", "", ""] },
    ...figures.map((figure) => [figure.name, figure.a, figure.b, figure.ratio, outcomeOf(figure)]),
  ]);
  return table("Every figure of both", 1, ["figure", "A", "B", "B/A", "B is"], bodies);
}

function outcomeOf({ outcome }) {
  const tone = { better: "good", worse: "bad" }[outcome];
  return tone ? badge(tone, outcome) : outcome === "same" ? quiet(outcome) : null;
}

// A seed may be too large for a number; it is shown as it is written.
function exact(_, value, context) {
  return Number.isSafeInteger(value) || !/^\d+$/.test(context?.source ?? "") ? value : context.source;
}

const { report, comparison } = JSON.parse(document.getElementById("data").textContent, exact);
document.getElementById("page").replaceChildren(...[report ? showReport(report) : showComparison(comparison)].flat(Infinity)
  .filter((part) => part !== null));
