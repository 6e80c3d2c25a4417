"use strict";
// Numbers, times and money as text, and tables. Text is set by textContent only.

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

// holdText is why rows wait, and what to do about it.
const holdText = h => `${h.kind.replaceAll("_", " ")}${h.by ? ` (${h.by})` : ""}${h.why ? `: ${h.why}` : ""}. To do: ${h.do}.`;

function el(tag, style, ...parts) {
  const node = document.createElement(tag);
  if (style) node.className = style;
  node.append(...parts.filter(part => part !== null && part !== ""));
  return node;
}

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

// fill updates the rows of a table in place: the key identifies a row, a cell is a text, a class, a title, and the buttons in
// it, each a text and the data that says what it does. On a narrow screen a row is a card, and each cell has its label.
function fill(id, items, key, cells, none) {
  const body = $(id), old = new Map(Array.from(body.rows, row => [row.dataset.key, row]));
  const labels = Array.from(body.parentNode.tHead.rows[0].cells, head => head.textContent);
  if (items.length === 0) items = [null];
  items.forEach((item, i) => {
    const name = item === null ? "none" : String(key(item)), want = item === null ? [[none, "none"]] : cells(item);
    let row = old.get(name);
    if (!row) {
      row = document.createElement("tr");
      row.dataset.key = name;
      row.setAttribute("role", "row"); // a card is no table to a browser
    }
    old.delete(name);
    if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] || null);
    want.forEach(([text, style, title, buttons], n) => {
      const cell = row.cells[n] || row.insertCell();
      if (!cell.dataset.label) {
        cell.setAttribute("role", "cell");
        if (item !== null) cell.dataset.label = labels[n];
      }
      if (buttons) fillButtons(cell, buttons);
      else if (cell.textContent !== text) {
        cell.textContent = text;
        delete cell.dataset.buttons;
        delete cell.dataset.does;
      }
      if (cell.className !== (style || "")) cell.className = style || "";
      if (cell.title !== (title || "")) cell.title = title || "";
      if (item === null) cell.colSpan = 9;
    });
  });
  for (const row of old.values()) row.remove();
}

// fillButtons puts buttons into a cell. Those that do the same as before stay, with the focus that they may have.
function fillButtons(cell, buttons) {
  const want = JSON.stringify(buttons), does = JSON.stringify(buttons.map(([, data]) => data));
  if (cell.dataset.buttons === want) return;
  cell.dataset.buttons = want;
  if (cell.dataset.does !== does) cell.replaceChildren(...buttons.map(() => document.createElement("button")));
  cell.dataset.does = does;
  buttons.forEach(([text, data, name], i) => {
    const button = cell.children[i];
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-label", name || text);
    Object.assign(button.dataset, data);
  });
}
