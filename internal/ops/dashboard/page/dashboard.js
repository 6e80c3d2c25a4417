"use strict";
// Shows what /api/events streams: the status of this process (/api/status), and the whole stage (/api/stage).

let latest = null; // status of this process, as last heard

function show(s) {
  latest = s;
  document.documentElement.dataset.time = s.time;
  set("stage", s.stage);
  set("run", "run " + s.run_id);
  set("version", s.version);
  set("uptime", "up " + span(s.uptime_seconds));
  showHead();
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
  if (s.sample) {
    takeSample(s.sample);
    drawCharts();
  }
}

// showHead shows the state and the sums, of all replicas where there are others. What this process says at its end is the last.
function showHead() {
  const v = viewOf(latest, latest.state === "ended" ? null : severalOf(wholeStage));
  showState(v);
  showTiles(v, latest);
}

// toRow is the button of a cell that opens the story of a row.
const toRow = (row, text, name) => [[text, { row: String(row) }, name]];

const inStreamOrder = s => s.order !== "key" && s.order !== "none";

// showPartitions shows those of this process; where there are others, only what it owns: the rest is shown for the whole stage.
function showPartitions(s) {
  const several = Boolean(severalOf(wholeStage));
  set("h-partitions", several ? "Partitions of this replica" : "Partitions");
  fill("partitions", several ? s.partitions.filter(p => p.role === "owner" || p.problem) : s.partitions, p => p.partition, p => [
    [String(p.partition), "r"],
    [p.problem || p.journal_problem ? `${p.role}: ${p.problem || "journal: " + p.journal_problem}` : p.vacant ? "idle" : p.role, p.problem ? "error wrap" : p.journal_problem ? "warn wrap" : p.role === "owner" ? "good" : "dim"],
    p.head_sequence ? ["", p.head_of_line_seconds > 60 && inStreamOrder(s) ? "warn" : "", "", toRow(p.head_sequence, `row ${p.head_sequence} for ${took(1000 * p.head_of_line_seconds)}`)] : ["none", "dim"],
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
    p.waited_for_sequence ? ["", p.key_wait_seconds > 60 ? "wrap warn" : "wrap", "", toRow(p.waited_for_sequence, `row ${p.waited_for_sequence} for ${took(1000 * p.key_wait_seconds)}${key(p)}`)] : ["none", "dim"],
  ], "no partition is owned");
}

// showLane shows, where there is a batch lane, the batches that are not done, and where the rows of the lane are.
function showLane(s) {
  const lane = s.lane;
  $("lane-card").hidden = !lane;
  if (!lane) return;
  set("lane-sub", (lane.paused ? `Paused: ${lane.paused}. ` : lane.partly_paused ? `Paused in part: ${lane.partly_paused}. ` : "") + (lane.problem ? lane.problem + ". " : "") + `Rows: ${laneRows(lane)}.` +
    (lane.lapsed_rows ? ` ${count(lane.lapsed_rows)} expired or cancelled.` : "") + (lane.adopted ? ` ${plural(lane.adopted, "batch", "batches")} adopted.` : "") +
    (lane.open > lane.batches.length ? ` The oldest ${lane.batches.length} of ${count(lane.open)} batches:` : ""));
  $("lane-sub").classList.toggle("warn", Boolean(lane.paused || lane.partly_paused));
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
  // The replicas tell each other how many rows failed for a reason, and not what the last of them was.
  const w = severalOf(wholeStage), rows = w ? w.row_errors.map(e => ({ ...s.row_errors.find(own => own.reason === e.reason), ...e })) : s.row_errors;
  const errors = rows.map(e => ({ of: "rows", key: e.reason, why: e.reason + (e.error ? `: ${e.error} (row ${e.sequence})` : ""), n: e.rows, style: "error" })).concat(s.call_errors.map(e => ({
    of: "calls", why: `${e.model}: ${e.class === "capacity" ? "no capacity" : e.class}${e.status_code ? ", status " + e.status_code : ""}`, n: e.calls, style: "",
  })));
  fill("errors", errors, e => e.of + (e.key || e.why), e => [
    [e.of, "dim"], e.key ? ["", ("wrap " + e.style).trim(), "", [[e.why, { reason: e.key }]]] : [e.why, ("wrap " + e.style).trim()], [count(e.n), "r"],
  ], "no errors so far");
}

function showEvents(s) {
  fill("events", s.events, e => e.id, e => [
    [timeOf(e.last), "dim"],
    [e.text, e.level === "info" ? "wrap" : "wrap " + e.level],
    e.sequence ? ["", "r dim", "", toRow(e.sequence, (e.count > 1 ? "last " : "") + `row ${e.sequence}`)] : ["", "r dim"], [e.count > 1 ? "× " + count(e.count) : "", "r dim"],
  ], "no events yet");
}

const outcomes = { success: "ok", failure: "failed", capacity_retry: "no capacity", unknown: "cut off" };
const styles = { success: "", failure: "error", capacity_retry: "warn", unknown: "warn" };

// rowOf names the row of a call, and the element of it that the call is for: 4711#3.
const rowOf = c => c.item === undefined ? String(c.sequence) : `${c.sequence}#${c.item}`;

// rowsOf names the rows of a call: the first, and how many others it served: 4711 +63.
const rowsOf = c => rowOf(c) + (c.rows > 1 ? ` +${c.rows - 1}` : "");

function showCalls(s) {
  fill("calls", s.calls, c => c.id, c => [
    // The second call of a row is a retry, unless each of its elements is a call.
    [timeOf(c.time), "dim"], c.sequence ? ["", "r", "", toRow(rowOf(c), rowsOf(c), "Row " + rowOf(c))] : ["–", "r"], [String(c.call), c.call > 1 && c.item === undefined ? "r warn" : "r dim"],
    [outcomes[c.status] + (c.status === "success" || !c.status_code ? "" : " " + c.status_code), styles[c.status], `${c.provider} ${c.model}`],
    [took(c.latency_ms), "r"], [some(c.total_tokens, count), "r"],
  ], "no calls yet");
  $("payloads").hidden = !s.payloads;
  if (s.payloads) import("./payloads.js").then(m => m.showPayloads(s.calls), () => {}); // the next status tries again
}

// The connection. Browsers reconnect by themselves after an interruption; an error response ends the stream, and then the page
// polls until it can reconnect. A hidden page closes its stream.
let source = null, heard = 0, retry = 0, ended = false;

// link shows how the connection is. What is shown without one is old: the whole page is grey then.
function link(state, text) {
  $("link").dataset.state = document.documentElement.dataset.link = state;
  set("link-text", text);
  if (state === "late" && latest) document.title = `No connection · ${latest.stage}`;
}

function connect() {
  clearTimeout(retry);
  if (source) source.close();
  source = new EventSource("api/events");
  const on = (name, f) => source.addEventListener(name, event => { heard = Date.now(); f(JSON.parse(event.data)); });
  on("history", columns => { takeHistory(columns); ended = false; drawCharts(); });
  on("status", s => { show(s); link("live", "live"); });
  on("stage", w => { wholeStage = w; showWhole(); if (latest) showHead(); });
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
startCharts();
connect();

// The story of a row, or a list of those that failed, is what the address names; what shows them is loaded then.
function loadRow() {
  if (/^#(row|failures)/.test(location.hash)) import("./row.js");
}
document.addEventListener("click", event => {
  const { row, reason } = (event.target.closest("[data-row], [data-reason]") || document.body).dataset;
  if (row || reason) location.hash = row ? "row=" + encodeURIComponent(row) : "failures=" + encodeURIComponent(reason);
});
$("find").addEventListener("submit", event => {
  event.preventDefault();
  location.hash = "row=" + encodeURIComponent($("find-row").value.trim());
});
addEventListener("hashchange", loadRow);
loadRow();
