"use strict";
// What the stage does, in a word, a sentence, and what to do about it: of this process, or of all replicas where there are others.

const words = {
  working: "Working", idle: "Idle", waiting: "Asked to wait", starved: "No capacity", paused: "Paused", held: "Blocked", drained: "Drained",
  standby: "Standing by", starting: "Starting", stopping: "Stopping", ended: "Ended",
};
const runbook = "https://github.com/llm-stage/stage/blob/main/docs/operations.md#";

// viewOf returns what the head of the page shows: of the status of this process, or of the whole stage.
function viewOf(s, w) {
  if (w) return { of: w, several: true, throttled: w.replicas.some(r => r.law_paused_until), pauses: w.pauses, rows: w.rows, pool: w.pool, usage: w.usage, stop: null };
  const p = s.pool;
  const pauses = p.pause_reason ? [{ reason: p.pause_reason, error: p.paused, since: p.paused_since, next_probe: p.next_probe, probes: p.probes, held: p.held, advice: p.advice, replicas: 1 }] : [];
  return { of: s, several: false, throttled: Boolean(p.law_paused_until), pauses, rows: s.rows, pool: p, usage: s.usage, stop: s.stop };
}

// wordOf is the state in a word. An outage is called by its name, and one row that others wait for is not the provider's wish.
function wordOf(v) {
  if (v.of.state === "paused" && v.pauses.length > 0 && v.pauses.every(p => p.reason === "outage")) return "Outage";
  if (v.of.state === "waiting" && v.of.row) return "Waiting for a row";
  return words[v.of.state] || v.of.state || "Unknown";
}

function nextProbe(p, now) {
  if (!p.next_probe) return "No probes";
  const wait = (new Date(p.next_probe) - now) / 1000;
  return wait > 0 ? "Next probe in " + span(wait) : "The next probe is due";
}

// sentence describes the state in figures.
function sentence(v) {
  const now = new Date(v.of.time), done = v.rows.succeeded + v.rows.failed, left = v.rows.pending + v.rows.open;
  const since = at => at ? `, for ${span((now - new Date(at)) / 1000)}` : "";
  switch (v.of.state) {
  case "working":
    return `${left ? plural(left, "row") + " left" : "the last rows"}${v.rows.eta_seconds == null ? "" : ", about " + span(v.rows.eta_seconds)}`;
  case "idle": return done ? `All rows are answered${v.rows.failed ? "," : "."}` : "No rows are waiting.";
  case "waiting": {
    if (v.of.row) return v.of.why + since(v.of.since) + ".";
    const until = v.several ? null : v.of.pool.law_paused_until;
    return until ? `Until ${timeOf(until)}, ${span((new Date(until) - now) / 1000)}: ${v.of.why}.` : v.of.why + ".";
  }
  case "paused": return v.pauses.map(p => {
    const some = v.several && p.replicas < v.of.replicas.filter(r => r.status === "answers").length ? ` (${plural(p.replicas, "replica")})` : "";
    const probed = p.probes ? `, ${count(p.probes)} sent` : "";
    return `${wordOf(v) === "Outage" ? "" : p.reason.replace("_", " ") + some + ": "}${p.error}${since(p.since)}. ${nextProbe(p, now)}${probed}.`;
  }).join(" ");
  case "starting": return "Reading the state of the last run.";
  case "ended": return `${plural(v.rows.succeeded, "row")} succeeded, ${count(v.rows.failed)} failed. ${v.of.ended ? "It has ended: " + v.of.ended : "The process has ended; this is its last state"}.`;
  default: return v.of.why ? v.of.why + since(v.of.since) + "." : "";
  }
}

// advice is what to do, and the runbook that says more.
function advice(v) {
  switch (v.of.state) {
  case "paused": {
    const held = v.pauses.map(p => p.held).find(Boolean) || "no row is lost";
    return [`${held[0].toUpperCase()}${held.slice(1)}. To do: ${v.pauses.map(p => p.advice).filter(Boolean).join("; ")}.`, "llmstagepaused"];
  }
  case "held": return [`No row is lost: results are kept until they can be stored. To do: ${v.of.do || "read the reason above, and the log"}.`, "llmstagepaused"];
  case "waiting": if (v.of.row) return [`To do: ${v.of.do}.`, "llmstageheadofline"]; // falls through
  case "starved": {
    const f = v.of.last_refusal;
    return ["No row fails of it. " + (f ? `${f.provider} said at ${timeOf(f.time)}: ${f.error}. ` : "") + (v.of.do ? `To do: ${v.of.do}.` : ""), "llmstagethrottled"];
  }
  case "stopping": return [v.stop ? "Nothing to do: calls in flight end, and their results are stored. Rows that have not begun stay in the input stream." : "Nothing to do.", ""];
  case "drained": return ["Its partitions are with other replicas. stage resume ends it.", ""];
  default: return ["", ""];
  }
}

// waitsOf are why rows wait, but for what the state says already, and for partitions that are simply with another replica.
const waitsOf = v => (v.several ? v.of.replicas.flatMap(r => r.holds || []) : v.of.holds || [])
  .filter(h => !["ended", "stopping", "standby"].includes(h.kind) && !(h.why && v.of.why.includes(h.why)));

// showHolds shows the first of them, with what to do.
function showHolds(v) {
  const texts = waitsOf(v).slice(0, 20).map(h => (h.scope === "stage" ? "" : `${h.scope} ${h.name || ""}: `) + holdText(h));
  const list = $("holds");
  if (list.dataset.text === texts.join("|")) return;
  list.dataset.text = texts.join("|");
  list.replaceChildren(...texts.map(text => el("li", "", text)));
}

function showState(v) {
  showHolds(v);
  document.title = `${wordOf(v)} · ${v.of.stage}`;
  $("state").dataset.state = v.of.state || "unknown";
  set("state-word", wordOf(v));
  set("state-why", sentence(v));
  const failed = $("state-failed");
  failed.hidden = !(v.of.state === "idle" && v.rows.failed);
  failed.textContent = `${count(v.rows.failed)} failed.`;
  const [text, at] = advice(v);
  set("state-do", text);
  $("state-runbook").hidden = !at;
  if (at) $("state-runbook").href = runbook + at;
  const done = v.rows.succeeded + v.rows.failed, left = v.rows.pending + v.rows.open, part = done + left === 0 ? 0 : 100 * done / (done + left);
  $("progress-bar").style.width = part + "%";
  $("progress").setAttribute("aria-valuenow", Math.floor(part));
  $("progress").setAttribute("aria-valuetext", `${count(done)} of ${count(done + left)} rows`);
}

const cost = u => u.calls === 0 ? usd(0) : u.cost_usd !== null && u.unpriced_calls === 0 ? usd(u.cost_usd) : u.known_cost_usd > 0 ? "≥ " + usd(u.known_cost_usd) : "unknown";

// showPace shows what parallel calls gained; all five numbers are in the tooltip.
function showPace(p) {
  const known = p.elapsed_s >= 1 && p.calls_s >= 1;
  big("pace", known ? one.format(p.speedup) + "×" : "–", "");
  set("pace-sub", known ? `${whole.format(100 * p.utilisation)}% of the slots in use` : "no calls yet");
  $("pace-tile").title = known ? `Calls of ${span(p.calls_s)} in ${span(p.elapsed_s)}; throttled for ${span(p.throttled_s)}` : "";
}

// showTiles shows what can be added up of all replicas, and the latency of this one.
function showTiles(v, s) {
  const done = v.rows.succeeded + v.rows.failed, left = v.rows.pending + v.rows.open, last = s.sample;
  big("rows-done", count(done), left ? "of " + count(done + left) : "");
  set("rows-sub", `${rate(v.rows.per_second)} rows/s`);
  set("calls-title", v.several ? "Calls sent" : "Calls per second");
  if (v.several) {
    big("calls-rate", count(v.pool.dispatched), "");
    set("calls-sub", `by ${plural(v.of.replicas.filter(r => r.status === "answers").length, "replica")}`);
  } else {
    big("calls-rate", last ? rate(last.calls) : "–", "");
    set("calls-sub", v.pauses.length ? "paused" : v.throttled ? "asked to wait" : v.pool.allowed_per_second === null ? "no limit" : `${rate(v.pool.allowed_per_second)} allowed`);
  }
  // What the throttle of this process believes belongs to the chart of its calls.
  set("belief", s.pool.belief ? `The throttle believes: ${s.pool.belief.text}.` : "This throttle measures nothing.");
  big("in-flight", count(v.pool.in_flight), "of " + count(v.pool.concurrency || v.pool.size));
  set("in-flight-sub", (v.pool.waiting ? `${count(v.pool.waiting)} waiting` : "none waiting") + (v.pool.concurrency ? `, pool ${count(v.pool.size)}` : ""));
  set("latency-title", v.several ? "Latency here, median" : "Latency, median");
  const oldest = s.latency.oldest_in_flight_s;
  big("latency", some(s.latency.p50_ms, took), oldest > 10 ? `oldest call ${span(oldest)}` : "");
  const short = ms => ms < 1000 ? took(ms) : ms < 100e3 ? one.format(ms / 1000) + " s" : span(ms / 1000);
  set("latency-sub", s.latency.p99_ms !== null && s.latency.p99_ms < 1000
    ? `p90 ${whole.format(s.latency.p90_ms)}, p99 ${whole.format(s.latency.p99_ms)} ms`
    : `p90 ${some(s.latency.p90_ms, short)}, p99 ${some(s.latency.p99_ms, short)}`);
  showPace(v.of);
  big("failed", count(v.rows.failed), "");
  $("failed-tile").classList.toggle("bad", v.rows.failed > 0);
  set("failed-sub", `${count(v.pool.capacity_retries)} calls rejected`);
  big("tokens", some(v.usage.total_tokens, count), "");
  set("cost", "cost " + cost(v.usage));
}
