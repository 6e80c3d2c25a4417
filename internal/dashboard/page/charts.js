"use strict";
// The charts: uPlot with the colours of this page, a legend that shows the last values or those under the cursor, and arrow
// keys that move the cursor.

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let palette = {};
function readPalette() {
  for (const name of ["blue", "blue-fill", "grey", "red", "red-fill", "amber", "violet", "teal", "muted", "line", "held"]) palette[name] = css("--" + name);
}
readPalette();

const axisFont = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const charts = [];
let shownSeconds = 180;

function axis(extra) {
  return Object.assign({
    stroke: () => palette.muted, font: axisFont, labelFont: axisFont,
    grid: { stroke: () => palette.line, width: 1 }, ticks: { show: false },
  }, extra);
}

// shadeHeld shades the time in which calls were held back.
function shadeHeld(u) {
  const times = u.data[0];
  let from = null;
  const shade = (a, b) => {
    const left = Math.max(u.valToPos(a, "x", true), u.bbox.left), right = Math.min(u.valToPos(b, "x", true), u.bbox.left + u.bbox.width);
    if (right <= left) return;
    u.ctx.fillStyle = palette.held;
    u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
  };
  for (let i = 0; i < samples.length; i++) {
    if (samples[i].held && from === null) from = times[i] - 1;
    if (!samples[i].held && from !== null) { shade(from, times[i] - 1); from = null; }
  }
  if (from !== null) shade(from, times[times.length - 1]);
}

// shownRange returns the chosen range of time, cut to the samples, but at least a minute.
function shownRange() {
  if (samples.length === 0) return [Date.now() / 1000 - 60, Date.now() / 1000];
  const end = samples[samples.length - 1].time;
  return [Math.min(end - 60, Math.max(end - shownSeconds, samples[0].time)), end];
}

// newChart adds a chart: each line has a name, a colour, a value of a sample, and a function that prints it.
function newChart(id, lines, options) {
  const box = document.getElementById("plot-" + id);
  const legend = document.getElementById("legend-" + id);
  const values = lines.map(line => {
    const entry = document.createElement("div"), key = document.createElement("i"), name = document.createElement("dt"), value = document.createElement("dd");
    key.style.color = `var(--${line.colour})`;
    key.className = line.kind || "";
    name.textContent = line.name;
    value.textContent = "–";
    name.prepend(key);
    entry.append(name, value);
    legend.append(entry);
    return value;
  });
  const chart = { lines, at: null };
  chart.showValues = () => {
    const s = samples[chart.at ?? samples.length - 1];
    lines.forEach((line, i) => {
      const v = s ? line.value(s) : null, text = v === null || v === undefined ? "–" : line.print(v);
      if (values[i].textContent !== text) values[i].textContent = text;
    });
  };
  const series = [{}].concat(lines.map(line => ({
    label: line.name, scale: line.right ? "right" : "y", spanGaps: false, points: { show: false }, width: line.kind === "bar" ? 0 : 1.5,
    stroke: () => palette[line.colour], dash: line.kind === "dash" ? [5, 3] : undefined,
    fill: line.fill ? () => palette[line.fill] : undefined,
    paths: line.kind === "bar" ? uPlot.paths.bars({ size: [0.8, 8, 3], align: -1 }) : line.kind === "dash" ? uPlot.paths.stepped({ align: 1 }) : undefined,
  })));
  const u = new uPlot({
    width: box.clientWidth, height: box.clientHeight, legend: { show: false }, padding: [8, lines.some(line => line.right) ? 0 : 24, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, sync: { key: "stage", setSeries: false } },
    scales: {
      x: { time: true, range: shownRange },
      y: { range: (_, min, max) => [0, Math.max(options.least, (max || 0) * 1.1)] },
      right: { range: (_, min, max) => [0, Math.max(options.least, (max || 0) * 1.1)] },
    },
    axes: [
      axis({ space: 70, size: 26, values: (_, splits) => splits.map(clock) }),
      axis({ space: 30, size: options.size || 40, values: (_, splits) => splits.map(options.axis) }),
    ].concat(lines.some(line => line.right) ? [axis({ scale: "right", side: 1, space: 30, size: 46, grid: { show: false }, values: (_, splits) => splits.map(options.axis) })] : []),
    series,
    hooks: {
      drawClear: [shadeHeld],
      setCursor: [self => { chart.at = self.cursor.left >= 0 && self.cursor.idx !== null ? self.cursor.idx : null; chart.showValues(); }],
    },
  }, [[]].concat(lines.map(() => [])), box);
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", options.about + ". The arrow keys move a cursor through time; the values are shown above.");
  box.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") { u.setCursor({ left: -10, top: -10 }); return; }
    if (step === undefined || samples.length === 0) return;
    event.preventDefault();
    const first = Math.max(0, samples.length - 1 - shownSeconds), last = samples.length - 1;
    const next = Math.min(last, Math.max(first, (chart.at ?? last) + step));
    u.setCursor({ left: u.valToPos(samples[next].time, "x"), top: 10 });
  });
  box.addEventListener("blur", () => u.setCursor({ left: -10, top: -10 }));
  new ResizeObserver(() => { if (box.clientWidth > 0) u.setSize({ width: box.clientWidth, height: box.clientHeight }); }).observe(box);
  chart.draw = () => { u.setData([samples.map(s => s.time)].concat(lines.map(line => samples.map(s => line.value(s) ?? null)))); chart.showValues(); };
  chart.redraw = () => u.redraw(false);
  charts.push(chart);
}

const drawCharts = () => charts.forEach(chart => chart.draw());
const clock = seconds => new Date(seconds * 1000).toLocaleTimeString("en-GB");

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readPalette(); charts.forEach(chart => chart.redraw()); });
