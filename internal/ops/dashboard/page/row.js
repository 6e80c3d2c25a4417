// The story of a row, and the rows that failed for a reason, in a dialog: #row=4711, #row=4711#3, #failures, #failures=reason.
// A module, which the page loads when it is asked for one of them.

let asked = null; // aborts the question that is being answered
let listHash = ""; // of the list that was shown last, while the dialog is open
let shownHash = ""; // of what the dialog shows
let failed = [];

const reasonHash = reason => "#failures" + (reason ? "=" + encodeURIComponent(reason) : "");
const dayAndTime = iso => new Date(iso).toLocaleString("sv-SE");
const exactTime = iso => timeOf(iso) + "." + String(new Date(iso).getMilliseconds()).padStart(3, "0");
const modelOf = c => c.provider === c.model ? c.model : c.provider + " " + c.model;

function withID(id, node, attributes = {}) {
  node.id = id;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const hidden = { hidden: "" }, plain = { type: "button" };
const table = el("table", "", el("thead", "", el("tr", "", ...["Time", "Row", "Calls", "Reason", "Error"].map((text, i) => {
  const head = el("th", i === 1 || i === 2 ? "r" : "", text);
  head.scope = "col";
  return head;
}))), withID("failures", el("tbody")));
table.setAttribute("role", "table");
const storyDialog = withID("story", el("dialog", "",
  el("div", "story-head", withID("story-title", el("h2")), withID("story-back", el("button", "", "Back to the list"), plain), withID("story-close", el("button", "", "Close"), plain)),
  withID("story-note", el("p"), { role: "status" }), withID("story-body", el("div")),
  withID("failures-part", el("div", "",
    el("label", "", "Reason ", withID("failures-reason", el("select"))),
    withID("failures-scroll", el("div", "scroll", table), { tabindex: "0", role: "region", "aria-labelledby": "story-title" }),
    withID("failures-older", el("button", "", "Older"), { ...plain, ...hidden }),
  ), hidden),
), { "aria-labelledby": "story-title" });
document.body.append(storyDialog);

// ask returns the answer to the last question: null where another one has been asked meanwhile, or the dialog was closed.
async function ask(path) {
  if (asked) asked.abort();
  const mine = asked = new AbortController();
  try {
    const answer = await fetch(path, { signal: AbortSignal.any([mine.signal, AbortSignal.timeout(20000)]) });
    const body = answer.ok ? await answer.json() : (await answer.text()).trim();
    if (mine !== asked) return null;
    if (answer.ok) return body;
    note(body, "error");
  } catch (e) {
    if (mine === asked) note(`No answer: ${e.message}. Is the stage running?`, "error");
  }
  return null;
}

function note(text, style = "") {
  set("story-note", text);
  $("story-note").className = style;
}

// route shows what the address names.
function route() {
  shownHash = location.hash;
  const [, what, value] = location.hash.match(/^#(row|failures)=?(.*)$/) || [];
  if (!what) {
    if (storyDialog.open) storyDialog.close();
    return;
  }
  let name = value;
  try { name = decodeURIComponent(value); } catch { /* it is what it is */ }
  $("story-body").replaceChildren();
  $("failures-part").hidden = what !== "failures";
  $("story-back").hidden = what !== "row" || !listHash;
  note("Looking …");
  if (!storyDialog.open) storyDialog.showModal();
  storyDialog.scrollTop = 0;
  if (what === "row") showRow(name);
  else showFailures(name);
}

async function showRow(row) {
  set("story-title", "Row " + row);
  const story = await ask("api/row?sequence=" + encodeURIComponent(row));
  if (!story) return;
  const failure = story.status === "error";
  note(`${story.status === "success" ? "Succeeded" : failure ? "Failed" : "Not finished"}${story.reason ? `: ${story.reason}` : ""}${story.status && story.hold ? ", and its result is not stored yet" : ""}. Partition ${story.partition} of stream ${story.stream}` +
    `${story.key === undefined ? "" : story.key === "" ? ", no key" : `, key ${story.key}`}${story.steps.length ? ", " + dayAndTime(story.steps[0].time).slice(0, 10) : ""}.`, failure ? "error" : "");
  const calls = story.steps.filter(s => s.call).length;
  $("story-body").replaceChildren(
    ...content("Row", story.body, calls < 3),
    ...(story.hold ? [el("p", "warn", "Waits: " + holdText(story.hold))] : []),
    el("ol", "steps", ...story.steps.map(s => stepNode(s, story, calls < 3))),
    ...(story.left_out ? [el("p", "dim", `${plural(story.left_out, "more call")}: stage tail --row ${row} has all.`)] : []),
    ...content("Result", story.result, false),
    ...(story.payloads ? [] : [el("p", "dim", "Rows, prompts and replies are shown with STAGE_DASHBOARD_PAYLOADS=true.")]),
  );
}

function stepNode(s, story, open) {
  const text = s.call ? callNodes(s.call, s.level, story, open) : [s.row ? rowButton(String(s.row), s.text) : s.text];
  const time = el("time", "", exactTime(s.time));
  time.dateTime = s.time;
  time.title = dayAndTime(s.time);
  const after = s.after_ms === null || s.kind === "queued" ? "" : "+" + took(s.after_ms);
  return el("li", s.kind, time, el("span", "after", after), el("div", s.call ? "" : s.level, ...text));
}

function callNodes(c, level, story, open) {
  const facts = [
    modelOf(c), took(c.latency_ms), c.batch ? `batch ${c.batch}` : `delay ${took(c.dispatch_delay_ms)}`,
    c.prompt_tokens === null ? "no usage reported" : `${count(c.prompt_tokens)} + ${count(c.completion_tokens)} tokens`,
    c.cost_usd === null ? "cost unknown" : usd(c.cost_usd), c.retry_after_ms ? `asked to wait ${took(c.retry_after_ms)}` : "", c.belief || "",
  ].filter(Boolean).join(" · ");
  const what = (c.item === undefined ? "" : `#${c.item} `) + `Call ${c.number}: `;
  return [
    el("p", "", what, el("strong", level, c.outcome + (c.error_class && c.error_class !== "capacity" ? `, ${c.error_class}` : ""))), el("p", "dim", facts),
    c.error ? el("p", level, c.error) : "",
    ...content("Prompt", c.prompt, open), ...content("Reply", c.reply, open),
    story.payloads && !c.prompt && !c.reply ? el("p", "dim", "Prompt and reply are not stored: STAGE_AUDIT_PAYLOADS, or they were too large.") : "",
  ];
}

// content is a text that may be long, to be opened.
function content(name, text, open) {
  if (!text) return [];
  const node = el("details", "", el("summary", "", name), el("pre", "", text));
  node.open = open;
  return [node];
}

function rowButton(row, text) {
  const button = el("button", "", text);
  button.type = "button";
  button.dataset.row = row;
  return button;
}

async function showFailures(reason) {
  listHash = reasonHash(reason);
  failed = [];
  set("story-title", reason ? "Failed rows: " + reason : "Failed rows");
  const reasons = new Set(["", ...[latest, wholeStage].flatMap(s => s ? s.row_errors.map(e => e.reason) : []), reason]);
  $("failures-reason").replaceChildren(...Array.from(reasons, r => {
    const option = el("option", "", r || "any reason");
    option.value = r;
    option.selected = r === reason;
    return option;
  }));
  fill("failures", [], null, null, "…");
  await older(reason, 0);
}

// older shows one more page of the list: the rows that failed before an event.
async function older(reason, before) {
  const button = $("failures-older");
  button.hidden = true;
  const page = await ask(`api/failures?reason=${encodeURIComponent(reason)}` + (before ? `&before=${before}` : ""));
  if (!page) return;
  failed = failed.concat(page.rows);
  fill("failures", failed, r => r.event, r => [
    [dayAndTime(r.time), "dim"], ["", "r", "", [[String(r.row), { row: r.row }, `Row ${r.row}`]]], [count(r.attempts + r.capacity_retries), "r"], [r.reason, ""],
    [r.error || "–", r.error ? "wrap" : "dim"],
  ], "none");
  const read = page.events ? `, ${plural(page.events, "row")} looked at${page.since ? `, back to ${dayAndTime(page.since)}` : ""}` : "";
  note(`${plural(failed.length, "row")} that failed${page.before ? read + ". There may be older ones." : ". That is all that the audit holds."}`);
  button.hidden = !page.before;
  button.onclick = () => older(reason, page.before);
}

$("failures-reason").addEventListener("change", event => { location.hash = reasonHash(event.target.value); });
$("story-back").addEventListener("click", () => { location.hash = listHash; });
$("story-close").addEventListener("click", () => storyDialog.close());
// Escape closes the dialog, too; the browser gives the focus back.
storyDialog.addEventListener("close", () => {
  listHash = "";
  if (storyDialog.open || location.hash !== shownHash) return; // the event is late, and another row was asked for meanwhile
  if (asked) asked.abort();
  asked = null;
  if (/^#(row|failures)/.test(location.hash)) history.replaceState(null, "", location.pathname + location.search);
});
addEventListener("hashchange", route);
const style = el("link");
style.rel = "stylesheet";
style.onload = style.onerror = route;
style.href = "row.css";
document.head.append(style);
