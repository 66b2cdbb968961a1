"use strict";
// Elements of the page, and figures as text. Text of a report is only ever set as text, never as markup.

// The text in place of a missing figure.
const NONE = "–";
// A mark that is readable without colour.
const MARKS = { good: "✓ ", bad: "✗ ", neutral: "" };

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function none(text) {
  return make("p", { class: "none" }, text);
}

function quiet(text) {
  return make("span", { class: "quiet" }, text);
}

function list(items) {
  return items.length > 0 ? make("ul", {}, items.map((item) => make("li", {}, item))) : null;
}

function badge(tone, text) {
  return make("span", { class: `badge ${tone}` }, MARKS[tone] + text);
}

// A bar of this share of its width.
function bar(share, kind) {
  const filled = make("span", {});
  filled.style.width = `${(Math.min(Math.max(share, 0), 1) * 100).toFixed(1)}%`;
  return make("span", { class: `bar ${kind}`, "aria-hidden": "true" }, filled);
}

// A table in a frame that scrolls if it is too wide. A heading is a text, or a list of a text and the columns under it. The first
// `words` columns contain words, the others numbers. `bodies` are lists of rows; a row is a list of cells, or has `cells` and a `kind`.
function table(caption, words, headings, bodies) {
  const kind = (at) => (at < words ? "word" : "number");
  const isDeep = headings.some(Array.isArray);
  const top = headings.map((heading, at) =>
    Array.isArray(heading)
      ? make("th", { scope: "colgroup", class: "group", colspan: heading.length - 1 }, heading[0])
      : make("th", { scope: "col", class: kind(at), rowspan: isDeep ? 2 : 1 }, heading));
  const columns = headings.filter(Array.isArray).flatMap((heading) => heading.slice(1));
  const below = columns.map((column) => make("th", { scope: "col", class: "number" }, column));
  const row = ({ cells, kind: rowKind }) =>
    make("tr", rowKind ? { class: rowKind } : {}, cells.map((cell, at) =>
      make(at === 0 ? "th" : "td", at === 0 ? { scope: "row", class: kind(at) } : { class: kind(at) }, cell)));
  const body = (rows) => make("tbody", {}, rows.map((of) => row(Array.isArray(of) ? { cells: of } : of)));
  return make("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    make("table", {},
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, top), isDeep ? make("tr", {}, below) : null),
      bodies.map(body)));
}

// A count, in groups of three digits.
function count(value) {
  return Math.round(value).toLocaleString("en-US");
}

// A measure with three significant digits, and with all digits before the point.
function measure(value) {
  if (!Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.01) return value.toFixed(4);
  if (size < 9.995) return value.toFixed(2);
  if (size < 99.95) return value.toFixed(1);
  return count(value);
}

// A number without superfluous digits: `130`, `2.5`.
function plain(value) {
  return String(Number(value.toFixed(3)));
}

// The rate per second; null if no time passed.
function perSecond(count, seconds) {
  return seconds > 0 ? count / seconds : null;
}

// Some of the percentiles.
function percentiles(times, names) {
  return names.map((name) => measure(times?.[name]));
}
