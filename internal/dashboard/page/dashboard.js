"use strict";
// Shows the status of /api/status, which /api/events streams. Text is set by textContent only; nothing is sent back.

const $ = id => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const count = n => n >= 1e7 ? one.format(n / 1e6) + " M" : whole.format(n);
const rate = n => n >= 100 ? whole.format(n) : one.format(n);
const some = (v, print) => v === null || v === undefined ? "–" : print(v);
const plural = (n, word, many = word + "s") => `${count(n)} ${n === 1 ? word : many}`;

function took(ms) {
  if (ms < 10) return one.format(ms) + " ms";
  if (ms < 1000) return whole.format(ms) + " ms";
  return ms < 100e3 ? (ms / 1000).toFixed(ms < 10e3 ? 2 : 1) + " s" : span(ms / 1000);
}
function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return s + " s";
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  const h = Math.floor(s / 3600);
  if (h < 48) return `${h} h ${String(Math.floor(s % 3600 / 60)).padStart(2, "0")} min`;
  return `${Math.floor(h / 24)} d ${h % 24} h`;
}
const bytes = n => n < 1024 ? n + " B" : n < 1 << 20 ? one.format(n / 1024) + " KiB" : one.format(n / (1 << 20)) + " MiB";
const usd = v => "$" + (v === 0 || v >= 100 ? v.toFixed(2) : v >= 0.01 ? v.toFixed(4) : v.toPrecision(2));
const timeOf = iso => new Date(iso).toLocaleTimeString("en-GB");

function set(id, text) {
  const node = $(id);
  if (node.textContent !== text) node.textContent = text;
}
function big(id, text, unit) {
  const node = $(id);
  if (node.dataset.text === text + "|" + unit) return;
  node.dataset.text = text + "|" + unit;
  node.textContent = text;
  if (!unit) return;
  const small = document.createElement("small");
  small.textContent = " " + unit;
  node.append(small);
}

// fill updates the rows of a table in place: the key identifies a row, a cell is a text, a class and a title.
function fill(id, items, key, cells, none) {
  const body = $(id), old = new Map(Array.from(body.rows, row => [row.dataset.key, row]));
  if (items.length === 0) items = [null];
  items.forEach((item, i) => {
    const name = item === null ? "none" : String(key(item)), want = item === null ? [[none, "none"]] : cells(item);
    let row = old.get(name);
    if (!row) {
      row = document.createElement("tr");
      row.dataset.key = name;
    }
    old.delete(name);
    if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] || null);
    want.forEach(([text, style, title], n) => {
      const cell = row.cells[n] || row.insertCell();
      if (cell.textContent !== text) cell.textContent = text;
      if (cell.className !== (style || "")) cell.className = style || "";
      if (cell.title !== (title || "")) cell.title = title || "";
      if (item === null) cell.colSpan = 9;
    });
  });
  for (const row of old.values()) row.remove();
}

const words = {
  working: "Working", idle: "Idle", waiting: "Asked to wait", starved: "No capacity", paused: "Paused", held: "Blocked",
  standby: "Standing by", starting: "Starting", stopping: "Stopping", ended: "Ended",
};

// sentence describes the state in figures.
function sentence(s) {
  const done = s.rows.succeeded + s.rows.failed, left = s.rows.pending + s.rows.open;
  const since = s.since ? `, for ${span((new Date(s.time) - new Date(s.since)) / 1000)}` : "";
  switch (s.state) {
  case "working":
    return `${left ? plural(left, "row") + " left" : "the last rows"}${s.rows.eta_seconds === null ? "" : ", about " + span(s.rows.eta_seconds)}`;
  case "idle": return done ? "All rows are answered." : "No rows are waiting.";
  case "waiting": return `Until ${timeOf(s.pool.law_paused_until)}, ${span((new Date(s.pool.law_paused_until) - new Date(s.time)) / 1000)}: ${s.why}.`;
  case "paused": {
    const wait = (new Date(s.pool.next_probe) - new Date(s.time)) / 1000;
    return `${s.pool.pause_reason}: ${s.why}${since}. ${wait > 0 ? "Next probe in " + span(wait) : "The next probe is due"}, ${count(s.pool.probes)} sent; ${s.pool.held}.`;
  }
  case "standby": return "Another replica owns the partitions; this one takes over when it ends.";
  case "starting": return "Reading the state of the last run.";
  case "ended": return `${plural(s.rows.succeeded, "row")} succeeded, ${count(s.rows.failed)} failed. The process has ended; this is its last state.`;
  default: return s.why + since + ".";
  }
}

function show(s) {
  document.documentElement.dataset.time = s.time;
  document.title = `${words[s.state] || s.state} · ${s.stage}`;
  set("stage", s.stage);
  set("run", "run " + s.run_id);
  set("version", s.version);
  set("uptime", "up " + span(s.uptime_seconds));
  $("state").dataset.state = s.state;
  set("state-word", words[s.state] || s.state);
  set("state-why", sentence(s));
  showProgress(s);
  showTiles(s);
  showPartitions(s);
  showOrder(s);
  showLane(s);
  showBudget(s);
  showErrors(s);
  fill("models", s.models, m => m.provider + " " + m.model, m => [
    [m.model, "wrap", m.provider], [count(m.calls), "r"], [some(m.prompt_tokens, count), "r"], [some(m.completion_tokens, count), "r"], [cost(m), "r"],
  ], "no calls yet");
  showEvents(s);
  showCalls(s);
  if (s.sample && (samples.length === 0 || s.sample.time > samples[samples.length - 1].time)) {
    samples.push(s.sample);
    samples = samples.slice(-600);
    drawCharts();
  }
}

function showProgress(s) {
  const done = s.rows.succeeded + s.rows.failed, left = s.rows.pending + s.rows.open;
  const percent = done + left === 0 ? 0 : Math.floor(100 * done / (done + left));
  $("progress-bar").style.width = (done + left === 0 ? 0 : 100 * done / (done + left)) + "%";
  $("progress").setAttribute("aria-valuenow", percent);
  $("progress").setAttribute("aria-valuetext", `${count(done)} of ${count(done + left)} rows`);
}

const cost = u => u.calls === 0 ? usd(0) : u.cost_usd !== null && u.unpriced_calls === 0 ? usd(u.cost_usd) : u.known_cost_usd > 0 ? "≥ " + usd(u.known_cost_usd) : "unknown";

function showTiles(s) {
  const done = s.rows.succeeded + s.rows.failed, left = s.rows.pending + s.rows.open, last = s.sample;
  big("rows-done", count(done), left ? "of " + count(done + left) : "");
  set("rows-sub", s.rows.eta_seconds === null ? `${rate(s.rows.per_second)}/s` : `${rate(s.rows.per_second)}/s, ${span(s.rows.eta_seconds)} left`);
  big("calls-rate", last ? rate(last.calls) : "–", "");
  set("calls-sub", s.pool.paused ? "paused" : s.pool.law_paused_until ? "asked to wait" : s.pool.allowed_per_second === null ? "no limit" : `${rate(s.pool.allowed_per_second)} allowed`);
  big("in-flight", count(s.pool.in_flight), "of " + count(s.pool.concurrency || s.pool.size));
  set("in-flight-sub", (s.pool.waiting ? `${count(s.pool.waiting)} waiting` : "none waiting") + (s.pool.concurrency ? `, pool ${count(s.pool.size)}` : ""));
  big("latency", some(s.latency.p50_ms, took), "");
  const short = ms => ms < 1000 ? took(ms) : ms < 100e3 ? one.format(ms / 1000) + " s" : span(ms / 1000);
  set("latency-sub", s.latency.p99_ms !== null && s.latency.p99_ms < 1000
    ? `p90 ${whole.format(s.latency.p90_ms)}, p99 ${whole.format(s.latency.p99_ms)} ms`
    : `p90 ${some(s.latency.p90_ms, short)}, p99 ${some(s.latency.p99_ms, short)}`);
  big("failed", count(s.rows.failed), "");
  $("failed-tile").classList.toggle("bad", s.rows.failed > 0);
  set("failed-sub", `${count(s.pool.capacity_retries)} calls rejected`);
  big("tokens", some(s.usage.total_tokens, count), "");
  set("cost", "cost " + cost(s.usage));
}

const inStreamOrder = s => s.order !== "key" && s.order !== "none";

function showPartitions(s) {
  fill("partitions", s.partitions, p => p.partition, p => [
    [String(p.partition), "r"],
    [p.problem || p.journal_problem ? `${p.role}: ${p.problem || "journal: " + p.journal_problem}` : p.role, p.problem ? "error wrap" : p.journal_problem ? "warn wrap" : p.role === "owner" ? "good" : "dim"],
    p.head_sequence ? [`row ${p.head_sequence} for ${took(1000 * p.head_of_line_seconds)}`, p.head_of_line_seconds > 60 && inStreamOrder(s) ? "warn" : ""] : ["none", "dim"],
    [count(p.window_rows), "r"], [`${count(p.reorder_rows)} · ${bytes(p.reorder_bytes)}`, "r"], [count(p.pending_rows), "r"],
    [count(p.emitted), "r"], [count(p.failed), p.failed ? "r error" : "r"], [p.owner || "–", "dim"],
  ], "none");
}

// showOrder shows, where results are not in stream order, how far they are and which keys wait.
function showOrder(s) {
  $("order").hidden = $("order-card").hidden = inStreamOrder(s);
  if (inStreamOrder(s)) return;
  set("order", s.order === "key" ? `order by key (${s.order_key})` : "no order");
  const key = p => p.waited_for_key === null ? "" : p.waited_for_key === "" ? ", no key" : `, key ${p.waited_for_key}`;
  fill("order-partitions", s.partitions.filter(p => p.role === "owner"), p => p.partition, p => [
    [String(p.partition), "r"], [String(p.high_water_mark), "r"], [count(p.ahead_rows), "r"],
    ...(s.order === "key" ? [[count(p.set_aside_rows), "r"], [count(p.keys_waiting), "r"]] : [["–", "r dim"], ["–", "r dim"]]),
    p.waited_for_sequence ? [`row ${p.waited_for_sequence} for ${took(1000 * p.key_wait_seconds)}${key(p)}`, p.key_wait_seconds > 60 ? "wrap warn" : "wrap"] : ["none", "dim"],
  ], "no partition is owned");
}

// showLane shows, where there is a batch lane, the batches that are not done, and where the rows of the lane are.
function showLane(s) {
  const lane = s.lane;
  $("lane-card").hidden = !lane;
  if (!lane) return;
  const rows = Object.entries(lane.rows).filter(([, n]) => n > 0).map(([state, n]) => `${count(n)} ${state}`);
  set("lane-sub", (lane.paused ? `Paused: ${lane.paused}. ` : "") + (lane.problem ? lane.problem + ". " : "") + `Rows: ${rows.join(", ") || "none"}.` +
    (lane.lapsed_rows ? ` ${count(lane.lapsed_rows)} expired or cancelled.` : "") + (lane.adopted ? ` ${plural(lane.adopted, "batch", "batches")} adopted.` : "") +
    (lane.open > lane.batches.length ? ` The oldest ${lane.batches.length} of ${count(lane.open)} batches:` : ""));
  $("lane-sub").classList.toggle("warn", Boolean(lane.paused));
  const styles = { looking: "warn", running: "good" };
  fill("lane", lane.batches, b => b.partition + " " + b.batch, b => [
    [b.batch, "", b.model ? `${b.provider} ${b.model}` : b.provider], [b.why ? `${b.state}: ${b.why}` : b.state, ("wrap " + (styles[b.state] || "")).trim()], [count(b.rows), "r"],
    b.answered >= 0 && b.state !== "intent" && b.state !== "looking" ? [count(b.answered), "r"] : ["–", "r dim"], [span(b.age_seconds), "r"], [b.batch_id || "–", "dim wrap"],
  ], "no open batches");
}

// showBudget shows, for each provider, what is known of the budget that this process shares.
function showBudget(s) {
  const budgets = s.budget || [];
  $("budget-head").hidden = budgets.length === 0;
  fill("budget", budgets, b => b.provider, b => [
    [b.name, ""], [b.provider, "wrap"], [b.mode, b.mode === "alone" ? "warn" : b.mode === "leader" ? "good" : ""], [count(b.members), "r"],
    [`${one.format(100 * b.share)}%`, "r"], [b.rate_per_second === null ? "–" : `${rate(b.rate_per_second)}/s`, "r"], [b.leader || "–", "dim"],
  ], "not shared: this process throttles by itself (STAGE_BUDGET)");
}

function showErrors(s) {
  const errors = s.row_errors.map(e => ({ of: "rows", key: e.reason, why: e.reason + (e.error ? `: ${e.error} (row ${e.sequence})` : ""), n: e.rows, style: "error" })).concat(s.call_errors.map(e => ({
    of: "calls", why: `${e.model}: ${e.class === "capacity" ? "no capacity" : e.class}${e.status_code ? ", status " + e.status_code : ""}`, n: e.calls, style: "",
  })));
  fill("errors", errors, e => e.of + (e.key || e.why), e => [[e.of, "dim"], [e.why, ("wrap " + e.style).trim()], [count(e.n), "r"]], "no errors so far");
}

function showEvents(s) {
  fill("events", s.events, e => e.id, e => [
    [timeOf(e.last), "dim"],
    [e.text, e.level === "info" ? "wrap" : "wrap " + e.level],
    [e.sequence ? (e.count > 1 ? "last " : "") + `row ${e.sequence}` : "", "r dim"], [e.count > 1 ? "× " + count(e.count) : "", "r dim"],
  ], "no events yet");
}

const outcomes = { success: "ok", failure: "failed", capacity_retry: "no capacity", unknown: "cut off" };
const styles = { success: "", failure: "error", capacity_retry: "warn", unknown: "warn" };

// rowOf names the row of a call, and the element of it that the call is for: 4711#3.
const rowOf = c => c.item === undefined ? String(c.sequence) : `${c.sequence}#${c.item}`;

function showCalls(s) {
  fill("calls", s.calls, c => c.id, c => [
    // The second call of a row is a retry, unless each of its elements is a call.
    [timeOf(c.time), "dim"], [c.sequence ? rowOf(c) : "–", "r"], [String(c.call), c.call > 1 && c.item === undefined ? "r warn" : "r dim"],
    [outcomes[c.status] + (c.status === "success" || !c.status_code ? "" : " " + c.status_code), styles[c.status], `${c.provider} ${c.model}`],
    [took(c.latency_ms), "r"], [some(c.total_tokens, count), "r"],
  ], "no calls yet");
  $("payloads").hidden = !s.payloads;
  if (s.payloads) showPayloads(s.calls);
}

// showPayloads lists the payloads; entries that the user has opened stay, and stay open.
function showPayloads(calls) {
  const list = $("payload-list"), old = new Map(Array.from(list.children, node => [node.dataset.key, node]));
  calls.forEach((c, i) => {
    let node = old.get(c.id);
    if (!node) {
      node = document.createElement("details");
      node.dataset.key = c.id;
      const head = document.createElement("summary");
      head.textContent = `${timeOf(c.time)}  ${c.sequence ? "row " + rowOf(c) : "batch"}, call ${c.call}: ${outcomes[c.status]}`;
      node.append(head);
      for (const text of [c.row, c.request, c.response]) {
        const part = document.createElement("pre");
        part.textContent = text || "–";
        node.append(part);
      }
    }
    old.delete(c.id);
    if (list.children[i] !== node) list.insertBefore(node, list.children[i] || null);
  });
  for (const node of old.values()) if (!node.open) node.remove();
}

// The connection. Browsers reconnect by themselves after an interruption; an error response ends the stream, and then the page
// polls until it can reconnect. A hidden page closes its stream.
let source = null, heard = 0, retry = 0, ended = false;

function link(state, text) {
  $("link").dataset.state = state;
  set("link-text", text);
}

function connect() {
  clearTimeout(retry);
  if (source) source.close();
  source = new EventSource("api/events");
  const on = (name, f) => source.addEventListener(name, event => { heard = Date.now(); f(JSON.parse(event.data)); });
  on("history", list => { samples = list; ended = false; drawCharts(); });
  on("status", s => { show(s); link("live", "live"); });
  on("end", () => { ended = true; link("off", "ended"); reconnectLater(); });
  source.onerror = () => {
    if (ended) return;
    link("late", "reconnecting");
    if (source.readyState === EventSource.CLOSED) reconnectLater();
  };
}

function reconnectLater() {
  source.close();
  clearTimeout(retry);
  retry = setTimeout(async () => {
    if (!ended) try {
      const answer = await fetch("api/status", { signal: AbortSignal.timeout(4000) });
      if (answer.ok) show(await answer.json());
    } catch { /* it is down; the next attempt follows */ }
    connect();
  }, ended ? 10000 : 3000);
}

setInterval(() => { if (!ended && source && heard && !document.hidden && Date.now() - heard > 5000) link("late", `no update for ${span((Date.now() - heard) / 1000)}`); }, 1000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) connect();
  else if (source) { source.close(); clearTimeout(retry); }
});
for (const input of document.querySelectorAll("input[name=range]")) {
  input.addEventListener("change", () => { shownSeconds = Number(input.value); drawCharts(); });
}

newChart("rate", [
  { name: "rejected", colour: "red", kind: "bar", fill: "red-fill", value: s => s.rejected, print: rate },
  { name: "sent", colour: "blue", fill: "blue-fill", value: s => s.calls, print: rate },
  { name: "allowed", colour: "grey", kind: "dash", value: s => s.allowed, print: rate },
], { least: 1, axis: v => v, about: "Calls sent and rejected per second, and the rate that the throttle allows" });
newChart("open", [
  { name: "in flight", colour: "teal", value: s => s.in_flight, print: count },
  { name: "reorder buffer", colour: "amber", value: s => s.reorder, print: count },
  { name: "window, right", colour: "grey", right: true, value: s => s.window, print: count },
], { least: 4, axis: v => Number.isInteger(v) ? count(v) : "", about: "Calls in flight, rows that wait for an earlier one, rows taken and not emitted" });
newChart("latency", [
  { name: "median", colour: "blue", value: s => s.p50_ms, print: took },
  { name: "p90", colour: "violet", value: s => s.p90_ms, print: took },
], { least: 10, size: 54, axis: v => v === 0 ? "0" : v >= 1000 ? v / 1000 + " s" : v + " ms", about: "Latency of the calls of the last minute, median and 90th percentile" });
connect();
