"use strict";
// Shows the values under the pointer. The page is whole without it.
for (const svg of document.querySelectorAll(".plot svg")) {
  const { left, right, seconds, unit } = Object.fromEntries(
    Object.entries(svg.dataset).map(([name, value]) => [name, name === "unit" ? value : Number(value)]),
  );
  const frame = svg.viewBox.baseVal;
  const sources = Array.from(svg.querySelectorAll("[data-times]"), (group) => ({
    times: group.dataset.times.split(" ").map(Number),
    lines: Array.from(group.querySelectorAll("path"), (path) => ({
      name: path.dataset.name,
      values: path.dataset.values.split(","),
    })),
  }));
  // The browser would show the title over the values.
  const title = svg.querySelector("title");
  svg.setAttribute("aria-label", title.textContent);
  svg.setAttribute("aria-describedby", svg.querySelector("desc").id);
  svg.removeAttribute("aria-labelledby");
  title.remove();

  const cursor = document.createElementNS(svg.namespaceURI, "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y2", frame.height - 26);
  const band = svg.querySelector(".base");
  cursor.setAttribute("y1", band ? Number(band.getAttribute("y1")) - 168 : 0);
  const values = document.createElement("div");
  values.className = "values";

  const hide = () => {
    cursor.remove();
    values.remove();
  };
  const nearest = (times, at) =>
    times.reduce((best, time, i) => (Math.abs(times[best] - at) > Math.abs(time - at) ? i : best), 0);
  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * frame.width;
    if (left > x || x > right) {
      return hide();
    }
    const at = ((x - left) / (right - left)) * seconds;
    const shown = sources.flatMap(({ times, lines }) => {
      const i = nearest(times, at);
      return lines.map(({ name, values }) => ({ time: times[i], name, value: values[i] }));
    });
    if (shown.length === 0) {
      return hide();
    }
    const time = shown[0].time;
    const place = left + (time / seconds) * (right - left);
    const phase = Array.from(svg.querySelectorAll("[data-phase]")).find((band) => {
      const from = Number(band.getAttribute("x"));
      return place >= from && from + Number(band.getAttribute("width")) >= place;
    });
    const head = phase ? time + " s, " + phase.dataset.phase : time + " s";
    const lines = shown.map(({ name, value }) =>
      value ? name + "  " + Number(value).toLocaleString("en") + unit : name + "  –",
    );
    values.textContent = [head, ...lines].join("\n");
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    svg.append(cursor);
    svg.parentNode.append(values);
    const over = (place / frame.width) * box.width;
    const isRight = over > box.width / 2;
    values.style.left = isRight ? "auto" : over + 12 + "px";
    values.style.right = isRight ? box.width - over + 12 + "px" : "auto";
    values.style.top = box.top - svg.parentNode.getBoundingClientRect().top + 24 + "px";
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}
