// The buttons that pause, resume, probe and drain: a module, which the page loads when one is pressed.

const questions = {
  pause: what => `Pause ${what}? Calls in flight end, no other begins, and no row is lost. It lasts until it is resumed, or until the processes end.`,
  drain: what => `Drain ${what}? It is handed over when its calls in flight have ended.`,
};

// said is what became of a wish, each answer once.
function said(outcomes) {
  const by = new Map();
  for (const o of outcomes) by.set(`${o.outcome}: ${o.text}.`, [...(by.get(`${o.outcome}: ${o.text}.`) || []), o.host || o.replica]);
  return Array.from(by, ([text, hosts]) => `${hosts.length > 3 ? plural(hosts.length, "replica") : hosts.join(", ")}: ${text}`).join(" ");
}

// steer asks for what a button says, and shows what each replica did.
export async function steer(button) {
  const { verb, replica, partition } = button.dataset;
  const what = partition !== undefined ? `partition ${partition}` : replica ? `replica ${replica}` : "the stage";
  if (questions[verb] && !confirm(questions[verb](what))) return;
  button.disabled = true;
  set("steer-said", `${verb} ${what} …`);
  try {
    const answer = await fetch("api/control", {
      method: "POST", headers: { "Content-Type": "application/json" }, signal: AbortSignal.timeout(15000),
      body: JSON.stringify({ verb, replica: replica || "", partition: partition === undefined ? null : Number(partition) }),
    });
    const { outcomes, error } = await answer.json();
    set("steer-said", error || said(outcomes));
  } catch (e) {
    set("steer-said", `It is not known whether that was done: ${e.message}.`);
  }
  button.disabled = false;
}
