"use strict";
// All replicas of the stage, of /api/stage, and the buttons that steer them, of POST api/control.

let wholeStage = null; // as last heard

// severalOf returns the whole stage if there is more to show of it than this process.
const severalOf = w => w && (w.replicas.length > 1 || w.left_out > 0) ? w : null;

function showWhole() {
  const w = severalOf(wholeStage), control = Boolean(wholeStage && wholeStage.control);
  for (const id of ["replicas-card", "all-partitions-card", "own"]) $(id).hidden = !w;
  $("steer").hidden = !control;
  set("whole-problem", wholeStage && wholeStage.problem ? `Other replicas are unknown: ${wholeStage.problem}.` : "");
  if (control) {
    const paused = wholeStage.pauses.map(p => p.reason), byHand = paused.includes("operator") || wholeStage.partitions.some(p => p.paused) || wholeStage.replicas.some(r => r.drained);
    $("steer-pause").hidden = paused.includes("operator");
    $("steer-resume").hidden = !byHand;
    $("steer-probe").hidden = !paused.some(reason => reason !== "operator");
  }
  if (!w) return;
  const missing = w.replicas.filter(r => r.status === "missing").length, answers = w.replicas.filter(r => r.status === "answers").length;
  set("replicas-sub", plural(answers, "replica") + (missing ? `, ${missing} missing` : "") + (w.left_out ? `, ${count(w.left_out)} more` : "") + "." +
    (w.budget || []).map(b => ` Budget ${b.name} for ${b.provider}: ${one.format(100 * b.share)}% is this stage's, ${plural(b.members, "member")} share it.`).join("") +
    (w.lane ? ` Batch lane: ${laneRows(w.lane)}, ${plural(w.lane.open, "open batch", "open batches")}${w.lane.open ? ", the oldest for " + span(w.lane.oldest_batch_seconds) : ""}${w.lane.paused ? ", paused: " + w.lane.paused : w.lane.partly_paused ? ", paused in part: " + w.lane.partly_paused : ""}.` : ""));
  const self = w.replicas.find(r => r.self);
  set("own", `This replica: ${self ? self.host + ", " : ""}run ${self ? self.replica : "unknown"}`);
  const now = new Date(w.time);
  fill("replicas", w.replicas, r => r.replica, r => replicaCells(r, now, control), "none");
  fill("all-partitions", w.partitions, p => p.partition, p => partitionCells(p, control), "none");
}

// laneRows counts the rows of a batch lane by their state.
const laneRows = lane => Object.entries(lane.rows).filter(([, n]) => n > 0).map(([state, n]) => `${count(n)} ${state}`).join(", ") || "no rows";

// ranges writes 0, 1, 2, 5 as "0–2, 5".
function ranges(list) {
  const parts = [];
  for (let i = 0, first = 0; i < list.length; i++) {
    if (i + 1 < list.length && list[i + 1] === list[i] + 1) continue;
    parts.push(first === i ? String(list[i]) : `${list[first]}–${list[i]}`);
    first = i + 1;
  }
  return parts.join(", ");
}

function replicaCells(r, now, control) {
  if (r.status !== "answers") {
    const what = r.status === "missing" ? `missing for ${span((now - new Date(r.last_seen)) / 1000)}` : "unreadable";
    return [[r.replica || "–", "two dim"], [r.host || "–", "dim"], [what, "warn wrap", r.note], ...Array.from({ length: 7 }, () => ["–", "r dim"]), ["", ""]];
  }
  const bad = { paused: "error", held: "error", waiting: "warn", starved: "warn", stopping: "warn", drained: "warn", working: "good" };
  const state = r.pause ? `${r.state} (${r.pause.reason.replace("_", " ")})` : r.state;
  const wait = r.pause && r.pause.next_probe ? (new Date(r.pause.next_probe) - now) / 1000 : null;
  const share = r.budget && r.budget.length ? r.budget.map(b => `${one.format(100 * b.share)}%`).join(", ") : "–";
  return [
    [r.replica + (r.self ? " (this)" : ""), "two"], [r.host, "", `pid ${r.pid}, version ${r.version}`],
    [state, bad[r.state] || "dim", r.why], [ranges(r.partitions) + (r.left_out ? " …" : "") || "–", ""],
    [`${rate(r.rows.per_second)} rows/s`, "r"], [`${count(r.pool.in_flight)} of ${count(r.pool.size)}`, "r"], [count(r.pool.capacity_retries), "r"],
    [cost(r.usage), "r"], [share, "r"], [wait === null ? "–" : wait > 0 ? "in " + span(wait) : "due", "r"],
    control ? ["", "act", "", r.drained ? [["Resume", { verb: "resume", replica: r.replica }, `Resume ${r.host}`]] : [
      r.pause && r.pause.reason === "operator" ? ["Resume", { verb: "resume", replica: r.replica }, `Resume ${r.host}`] : ["Pause", { verb: "pause", replica: r.replica }, `Pause ${r.host}`],
      ["Drain", { verb: "drain", replica: r.replica }, `Drain ${r.host}`]]] : ["", ""],
  ];
}

function partitionCells(p, control) {
  const owner = p.replica ? `${p.host || p.replica}` : p.vacant ? "idle" : "nobody";
  const note = p.paused || p.problem || (p.rivals.length ? `moves: ${p.rivals.join(", ")} owned it, too` : "");
  return [
    [String(p.partition), "r"], [owner, p.replica ? "" : p.vacant ? "dim" : "warn", p.replica],
    [count(p.pending_rows), "r"], [count(p.open_rows), "r"],
    p.head_sequence ? ["", p.head_of_line_seconds > 60 ? "warn" : "", "", toRow(p.head_sequence, `row ${p.head_sequence} for ${took(1000 * p.head_of_line_seconds)}`)] : ["none", "dim"],
    [note || "–", note ? "wrap " + (p.problem ? "error" : "warn") : "dim"],
    control ? ["", "act", "", [
      p.paused ? ["Resume", { verb: "resume", partition: p.partition }, `Resume partition ${p.partition}`] : ["Pause", { verb: "pause", partition: p.partition }, `Pause partition ${p.partition}`],
      ["Drain", { verb: "drain", partition: p.partition }, `Drain partition ${p.partition}`]]] : ["", ""],
  ];
}

// What steers is loaded when a button is pressed.
document.addEventListener("click", event => {
  const button = event.target.closest("button[data-verb]");
  if (button) import("./steer.js").then(m => m.steer(button), e => set("steer-said", `Nothing was done: ${e.message}.`));
});
