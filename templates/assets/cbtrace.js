// What every page needs: data that arrives by script, sortable tables, and the keyboard.
(function () {
  "use strict";

  const arrived = new Map();
  const awaited = new Map();

  // Data files call this. A script works from file://, where fetch does not.
  function load(key, data) {
    arrived.set(key, data);
    const waiting = awaited.get(key);
    if (waiting) waiting.resolve(data);
  }

  // The data under `key`, loaded from the script `src` the first time.
  function need(key, src) {
    if (arrived.has(key)) return Promise.resolve(arrived.get(key));
    if (awaited.has(key)) return awaited.get(key).promise;
    const entry = {};
    entry.promise = new Promise((resolve, reject) => {
      entry.resolve = resolve;
      const script = document.createElement("script");
      script.src = src;
      script.onload = () => script.remove();
      script.onerror = () => {
        awaited.delete(key);
        reject(new Error(src));
      };
      document.head.append(script);
    });
    awaited.set(key, entry);
    return entry.promise;
  }

  // A file of a run's data, by its kind and number. Those asked for longest ago are let go, so that a page which stays
  // open on a long run does not fill the memory; what is inside the page stays.
  const KEPT = 160;
  const recent = new Set();
  function part(run, kind, number) {
    const name = `${kind}-${number}`;
    const key = `${run.slug}/${name}`;
    const found = need(key, `${name}.${run.parts[kind][number]}.js`);
    if (!awaited.has(key)) return found;
    recent.delete(key);
    recent.add(key);
    for (const oldest of recent) {
      if (recent.size <= KEPT) break;
      if (!arrived.has(oldest)) continue; // still awaited
      recent.delete(oldest);
      awaited.delete(oldest);
      arrived.delete(oldest);
    }
    return found;
  }

  // An element with attributes and children. Strings become text, never HTML.
  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return made;
  }

  // Fills the {places} of a text.
  function fill(text, values) {
    return text.replace(/\{(\w+)\}/g, (place, name) => (name in values ? String(values[name]) : place));
  }

  // The nearest decimal as Python writes it: a tie goes to the even digit. `how` is toFixed or toPrecision.
  function nearest(value, how, digits) {
    const longer = value[how](digits + 1);
    const exact = value[how](100);
    const tie = longer.endsWith("5") && exact.startsWith(longer) && /^0*$/.test(exact.slice(longer.length));
    const even = tie && /[02468]\.?5$/.test(longer);
    return even ? longer.slice(0, -1).replace(/\.$/, "") : value[how](digits);
  }

  // The same digits as the pages themselves: three significant ones, or all of the integer part.
  function number(value) {
    if (value === null || value === undefined) return "\u2014";
    const size = Math.abs(value);
    if (size === 0 || size >= 100 || Number.isInteger(value)) return Number(nearest(value, "toFixed", 0)).toLocaleString("en-US");
    if (size >= 0.001) return String(Number(nearest(value, "toPrecision", 3)));
    return value.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2");
  }

  function bytes(value) {
    if (value === null || value === undefined || value < 0) return "\u2014";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let amount = value;
    let unit = 0;
    while (amount >= 1024 && unit + 1 < units.length) {
      amount /= 1024;
      unit += 1;
    }
    return `${number(amount)} ${units[unit]}`;
  }

  // State in the fragment, as in #a=one&b=two. A fragment without "=" names an element.
  function readState() {
    const text = location.hash.slice(1);
    return text.includes("=") ? new URLSearchParams(text) : new URLSearchParams();
  }

  function writeState(changes) {
    const state = readState();
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) state.delete(name);
      else state.set(name, value);
    }
    const text = state.toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }

  // What of a kind was clicked. A click with a key held opens another tab or window, and is left to the browser.
  function clicked(event, selector) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return null;
    return event.target instanceof Element ? event.target.closest(selector) : null;
  }

  // Changes the state and tells whoever shows a part of it.
  function setState(changes) {
    writeState(changes);
    dispatchEvent(new Event("cbtrace:state"));
  }

  function cellValue(row, column, kind) {
    const cell = row.cells[column];
    if (kind !== "number") return cell.textContent.trim();
    const value = cell.dataset.value;
    return value === undefined || value === "" || value === "None" ? null : Number(value);
  }

  // Compares two values of a column, upwards with sign 1 and downwards with -1. What is unknown comes last either way.
  const collator = new Intl.Collator(undefined, { numeric: true });
  function order(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" ? a - b : collator.compare(a, b));
  }

  // Sorts a table by a column, unless the page does so itself.
  function sortTable(table, header) {
    if (!table.dispatchEvent(new CustomEvent("cbtrace:sort", { detail: header, cancelable: true }))) return;
    const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const other of header.parentElement.cells) {
      if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    }
    header.setAttribute("aria-sort", direction);
    const kind = header.dataset.sort;
    const rows = Array.from(table.tBodies[0].rows, (row, index) => ({ row, index, value: cellValue(row, header.cellIndex, kind) }));
    const sign = direction === "ascending" ? 1 : -1;
    rows.sort((a, b) => order(a.value, b.value, sign) || a.index - b.index);
    table.tBodies[0].append(...rows.map((entry) => entry.row));
  }

  function makeSortable(table) {
    for (const header of table.querySelectorAll("th[data-sort]")) {
      const label = header.querySelector(".sort");
      const button = element("button", { type: "button" });
      button.append(...label.childNodes);
      label.append(button);
      button.addEventListener("click", () => sortTable(table, header));
    }
  }

  // Pages add keys of their own. Keys typed into a field are left to it.
  const keys = new Map();
  function onKey(key, action) {
    keys.set(key, action);
  }

  function keyPressed(event) {
    const target = event.target;
    const field = "input:not([type=radio], [type=checkbox]), select, textarea";
    const typing = target instanceof Element && target.closest(field);
    const scrolling = event.key.startsWith("Arrow") && target instanceof Element && target.closest(".scroll");
    if (typing || scrolling || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = keys.get(event.key);
    if (!action) return;
    event.preventDefault();
    action();
  }

  function start() {
    document.documentElement.classList.add("js");
    document.querySelectorAll("table.data").forEach(makeSortable);
    const dialog = document.getElementById("keys");
    const toggle = () => (dialog.open ? dialog.close() : dialog.showModal());
    document.querySelector('[data-open="keys"]').addEventListener("click", toggle);
    onKey("?", toggle);
    document.addEventListener("keydown", keyPressed);
  }

  window.cbtrace = { load, need, part, element, fill, nearest, number, bytes, readState, writeState, setState, clicked, cellValue, order, onKey, arrived };
  start();
})();
