// The contents of recent calls: a module, which the page loads where they are shown.

// showPayloads lists the payloads; entries that the user has opened stay, and stay open.
export function showPayloads(calls) {
  const list = $("payload-list"), old = new Map(Array.from(list.children, node => [node.dataset.key, node]));
  calls.forEach((c, i) => {
    let node = old.get(c.id);
    if (!node) {
      node = document.createElement("details");
      node.dataset.key = c.id;
      const head = document.createElement("summary");
      head.textContent = `${timeOf(c.time)}  ${c.sequence ? "row " + rowsOf(c) : "batch"}, call ${c.call}: ${outcomes[c.status]}`;
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
