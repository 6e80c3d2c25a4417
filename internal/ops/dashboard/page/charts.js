"use strict";
// The charts: uPlot with the colours of this page, a legend with the last values or those under the cursor and their time,
// and arrow keys that move the cursor.

const paint = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const charts = [];
let shownSeconds = 0; // the chosen range; 0: the whole run
let cursorAt = null, hold = null; // the time under the cursor, and where the arrow keys have put it

// view is what the charts show: a time in steps, which are samples. A point is at the end of a step; one without a sample
// ends a gap, or begins the first step.
let view = { from: 0, to: 60, points: [] };

// lookAt sets the view: all of the range, also without samples, and of the whole run at least a minute. Steps are of one
// length, or what is recent would look rougher than what is old.
function lookAt() {
  const last = samples.at(-1), to = last ? last.time : Math.floor(Date.now() / 1000);
  const from = shownSeconds ? to - shownSeconds : Math.min(to - 60, last ? samples[0].time - samples[0].seconds : to);
  const longer = [10, 6];
  let step = 1;
  while (to - from > 600 * step) step *= longer.shift() || 2;
  const begin = Math.floor(from / step) * step; // the first step is whole, or its value would change as time passes
  const steps = thin(samples.filter(s => s.time > begin), () => step), points = [];
  for (const s of steps) {
    const start = s.time - s.seconds;
    if (points.length === 0 || start - points.at(-1).x > 2 + s.seconds / 100) points.push({ x: start, s: null }); // times are rounded
    points.push({ x: s.time, s });
  }
  view = { from, to, step, steps, points };
}

// pointAt returns the point of the step that a time is in; undefined: there is none.
const pointAt = time => view.points[0]?.x > time ? undefined : view.points.find(p => p.x >= time);

const dateOf = t => view.to - view.from > 86400 ? new Date(t * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + " " : "";
const clock = (t, unit) => new Date(t * 1000).toLocaleTimeString("en-GB", unit < 60 ? {} : { timeStyle: "short" });

// timesText names the time of a sample, or from when to when it goes.
function timesText(s) {
  const start = s.time - s.seconds;
  return dateOf(start) + (s.seconds < 1.5 ? "" : clock(start, view.step) + "–") + clock(s.time, view.step);
}

const axis = extra => ({ stroke: () => paint("muted"), font, grid: { stroke: () => paint("line"), width: 1 }, ticks: { show: false }, ...extra });

// eachStep calls f with the left and right end of each step, and its point.
function eachStep(u, f) {
  const place = i => Math.max(u.bbox.left, Math.round(u.valToPos(view.points[i].x, "x", true)));
  view.points.forEach(({ s }, i) => { if (s) f(place(i - 1), place(i), i, s); });
}

// shadeHeld shades the time in which calls were held back.
function shadeHeld(u) {
  u.ctx.fillStyle = paint("held");
  eachStep(u, (left, right, i, s) => { if (s.held) u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height); });
}

// drawSteps draws each value as a level over its step.
function drawSteps(u, series) {
  const stroke = new Path2D(), fill = new Path2D(), ground = u.valToPos(0, "y", true);
  let end;
  eachStep(u, (left, right, i) => {
    if (u.data[series][i] === null) return;
    const level = u.valToPos(u.data[series][i], "y", true);
    if (left === end) stroke.lineTo(left, level);
    else stroke.moveTo(left, level);
    stroke.lineTo(right, level);
    fill.rect(left, level, right - left, ground - level);
    end = right;
  });
  return { stroke, fill, flags: 1 };
}

// newChart adds a chart of one unit, which print and axisText add to a number. A line has a member of samples, a name, a
// colour, and what it is if that is not a line.
function newChart(id, about, least, lines, print, axisText = print) {
  const box = $("plot-" + id);
  const entry = (text, style, colour) => {
    const [div, dt, key, dd] = ["div", "dt", "i", "dd"].map(tag => document.createElement(tag));
    dt.textContent = text;
    (colour ? key : div).className = style || "";
    if (colour) dt.prepend(key);
    key.style.color = `var(--${colour})`;
    div.append(dt, dd);
    $("legend-" + id).append(div);
    return value => { if (dd.textContent !== value) dd.textContent = value; };
  };
  const putTime = entry("Time", "at"), put = lines.map(([, text, colour, kind]) => entry(text, kind, colour));
  const showValues = () => {
    const s = cursorAt === null ? samples.at(-1) : pointAt(cursorAt)?.s;
    putTime(s ? timesText(s) : cursorAt === null ? "–" : `${dateOf(cursorAt)}${clock(cursorAt, view.step)}, no data`);
    lines.forEach(([name], i) => put[i](some(s && s[name], print)));
  };
  const u = new uPlot({
    width: box.clientWidth, height: box.clientHeight, legend: { show: false }, padding: [8, 36, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false }, sync: { key: "stage", setSeries: false } },
    scales: { x: { time: true, range: () => [view.from, view.to] }, y: { range: (_, min, max) => [0, Math.max(least, (max || 0) * 1.1)] } },
    axes: [
      axis({ space: 90, size: 26, values: (_, splits, i, space, unit) => splits.map(t => dateOf(t) + (unit < 86400 ? clock(t, unit) : "")) }),
      axis({ space: 30, size: (_, texts) => 12 + Math.max(50, ...(texts || []).map(text => 6.5 * text.length)), values: (_, splits) => splits.map(axisText) }),
    ],
    series: [{}, ...lines.map(([, , colour, kind]) => ({
      points: { show: false }, width: kind === "bar" ? 0 : 1.5, paths: drawSteps,
      stroke: () => paint(colour), dash: kind === "dash" ? [5, 3] : [], fill: () => kind === "bar" || kind === "area" ? paint(colour + "-fill") : "transparent",
    }))],
    hooks: {
      drawClear: [shadeHeld],
      setCursor: [({ cursor }) => { cursorAt = cursor.left >= 0 ? u.posToVal(cursor.left, "x") : null; showValues(); }],
    },
  }, [[], ...lines.map(() => [])], box);
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", about + ". The arrow keys move a cursor through time; the values are shown above.");
  box.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    const steps = view.steps.filter(s => s.time > view.from), last = steps.length - 1;
    if (event.key === "Escape") leave();
    if (by === undefined || last < 0) return;
    event.preventDefault();
    const at = cursorAt === null ? last : steps.findIndex(s => s.time >= cursorAt);
    const s = steps[Math.min(last, Math.max(0, at + by))];
    hold = Math.max(view.from, s.time - s.seconds / 2);
    keep();
  });
  box.addEventListener("blur", leave);
  box.addEventListener("pointermove", () => { hold = null; });
  new ResizeObserver(() => { if (box.clientWidth > 0) u.setSize({ width: box.clientWidth, height: box.clientHeight }); }).observe(box);
  const draw = () => {
    u.setData([view.points.map(p => p.x), ...lines.map(([name]) => view.points.map(p => p.s && p.s[name]))]);
    showValues();
  };
  charts.push({ u, draw });
}

// moveCursor moves the cursor of all charts.
const moveCursor = left => charts[0].u.setCursor({ left, top: left < 0 ? left : 10 }, true, true);

function leave() {
  hold = null;
  moveCursor(-10);
}

// keep leaves the cursor at its time, not at its place, unless that has passed.
function keep() {
  if (hold < view.from) leave();
  else moveCursor(charts[0].u.valToPos(hold, "x"));
}

function drawCharts() {
  lookAt();
  charts.forEach(chart => chart.draw());
  queueMicrotask(() => { if (hold !== null) keep(); }); // charts draw in a microtask, and then this is their time
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(chart => chart.u.redraw(false)));

// startCharts adds the charts. Each has one unit and one scale, and every number has its unit.
function startCharts() {
  const amount = word => v => Number.isInteger(v) ? plural(v, word) : `${rate(v)} ${word}s`;
  newChart("rate", "Calls sent and rejected per second, and the rate that the throttle allows", 1,
    [["rejected", "rejected", "red", "bar"], ["calls", "sent", "blue", "area"], ["allowed", "allowed", "grey", "dash"]], v => rate(v) + " calls/s", v => v + " calls/s");
  newChart("flight", "Calls in flight", 4, [["in_flight", "sent, no reply yet", "teal"]], amount("call"));
  newChart("latency", "Latency of the calls of a minute, median and 90th percentile", 10,
    [["p50_ms", "median", "blue"], ["p90_ms", "p90", "violet"]], took, v => v < 1000 ? v + " ms" : v / 1000 + " s");
  newChart("reorder", "Rows in the reorder buffer, answered before an earlier one", 4, [["reorder", "answered, waiting", "amber"]], amount("row"));
  newChart("window", "Rows in the window, taken and not emitted", 4, [["window", "taken, not emitted", "grey"]], amount("row"));
  const choose = () => { shownSeconds = Number(document.querySelector("input[name=range]:checked").value); drawCharts(); };
  document.querySelector(".range").addEventListener("change", choose);
  choose(); // a browser may have restored another choice than the page's
}
