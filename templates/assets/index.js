// The table of runs: find, group and sort them, and choose a baseline A and a candidate B to compare.
//
// The page holds a row for every run. Those that are not shown are taken out of it, so that thousands stay quick. The
// address holds the state: q (words to find), group, sort (a column, with "-" for descending), a and b.
(function () {
  "use strict";

  const { element, fill, readState, writeState, onKey } = cbtrace;
  const PAGE = 100;
  const form = document.querySelector("form[data-runs]");
  const texts = form.dataset;
  const table = document.getElementById("runs");
  const heads = Array.from(table.tHead.rows[0].cells);
  const link = form.querySelector("[data-compare]");
  const more = document.querySelector("[data-more]");
  const hint = form.querySelector("[data-chosen]").textContent;
  const runs = Array.from(table.tBodies[0].rows, (row, place) => ({
    row,
    place,
    slug: row.dataset.run,
    name: row.querySelector("th a").textContent,
    text: row.textContent.toLowerCase(),
    values: new Map(),
    tags: null,
  }));
  const bySlug = new Map(runs.map((run) => [run.slug, run]));
  const closed = new Set();
  const groups = Array.from(form.elements.group.options, (option) => option.value);
  const usual = { q: "", group: groups.includes("tag:experiment") ? "tag:experiment" : "none", sort: "", a: "", b: "" };
  const state = { ...usual };
  let limit = PAGE;

  function tagOf(run, name) {
    run.tags ??= new Map(Array.from(run.row.querySelectorAll(".tag"), (tag) => Array.from(tag.children, (part) => part.textContent)));
    return run.tags.get(name) ?? "";
  }

  function groupOf(run) {
    if (state.group.startsWith("tag:")) return tagOf(run, state.group.slice(4));
    return run.row.querySelector(`[data-${state.group}]`).textContent;
  }

  function valueOf(run, column) {
    if (!run.values.has(column)) run.values.set(column, cbtrace.cellValue(run.row, column, heads[column].dataset.sort));
    return run.values.get(column);
  }

  function found() {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    return runs.filter((run) => words.every((word) => run.text.includes(word)));
  }

  function sorted(some) {
    const column = heads.findIndex((head) => head.dataset.column === state.sort.replace(/^-/, ""));
    if (column < 0) return some;
    const sign = state.sort.startsWith("-") ? -1 : 1;
    return some.sort((left, right) => cbtrace.order(valueOf(left, column), valueOf(right, column), sign) || left.place - right.place);
  }

  // Groups in the order of their names; runs without one come last.
  function grouped(some) {
    if (state.group === "none") return [["", some]];
    const members = new Map();
    for (const run of some) {
      const name = groupOf(run);
      if (members.has(name)) members.get(name).push(run);
      else members.set(name, [run]);
    }
    return Array.from(members).sort(([left], [right]) => cbtrace.order(left || null, right || null, 1));
  }

  function isClosed(name) {
    return state.group !== "none" && closed.has(name);
  }

  function groupHead(name, members) {
    const button = element("button", { type: "button", "aria-expanded": String(!closed.has(name)) }, element("bdi", {}, name || texts.textUngrouped), ` (${members.length})`);
    button.addEventListener("click", () => {
      if (!closed.delete(name)) closed.add(name);
      show();
      table.querySelector(`tr.group[data-group="${CSS.escape(name)}"] button`).focus();
    });
    return element("tr", { class: "group", "data-group": name }, element("th", { scope: "rowgroup", colspan: String(heads.length) }, button));
  }

  function show() {
    const matching = found();
    let room = limit;
    let hidden = 0;
    const bodies = grouped(sorted(matching)).map(([name, members]) => {
      const open = isClosed(name) ? [] : members.slice(0, Math.max(room, 0));
      room -= open.length;
      if (!isClosed(name)) hidden += members.length - open.length;
      return element("tbody", {}, state.group === "none" ? null : groupHead(name, members), open.map((run) => run.row));
    });
    Array.from(table.tBodies).forEach((body) => body.remove());
    table.append(...bodies);
    table.setAttribute("data-ready", "");
    more.hidden = hidden === 0;
    more.textContent = fill(texts.textMore, { count: Math.min(hidden, PAGE), left: hidden });
    form.querySelector("[data-count]").textContent = fill(texts.textCount, { found: matching.length, all: runs.length });
    for (const head of heads.filter((head) => head.dataset.column)) {
      const on = state.sort.replace(/^-/, "") === head.dataset.column;
      head.setAttribute("aria-sort", !on ? "none" : state.sort.startsWith("-") ? "descending" : "ascending");
    }
    choose();
  }

  // Marks the chosen runs, wherever their rows are, and leads to their comparison.
  function choose() {
    for (const input of table.querySelectorAll("tbody input")) input.checked = state[input.name] === input.value;
    const [a, b] = [bySlug.get(state.a), bySlug.get(state.b)];
    const ready = a && b && a !== b;
    link.setAttribute("aria-disabled", String(!ready));
    if (ready) link.href = `compare.html#a=${encodeURIComponent(a.slug)}&b=${encodeURIComponent(b.slug)}`;
    else link.removeAttribute("href");
    const chosen = [["A", a], ["B", b]].filter(([, run]) => run);
    const named = chosen.flatMap(([side, run]) => [element("span", { class: `run-${side.toLowerCase()}` }, side), " ", element("bdi", {}, run.name), " "]);
    form.querySelector("[data-chosen]").replaceChildren(...(named.length ? named : [hint]));
  }

  function change(changes) {
    Object.assign(state, changes);
    writeState(Object.fromEntries(Object.entries(state).map(([name, value]) => [name, value === usual[name] ? null : value])));
  }

  function find(changes) {
    limit = PAGE;
    change(changes);
    show();
  }

  // Takes over what an address says; what it does not name is as on a page that was just opened.
  function read() {
    const asked = readState();
    for (const [name, value] of Object.entries(usual)) state[name] = asked.get(name) ?? value;
    if (!groups.includes(state.group)) state.group = usual.group;
    form.elements.q.value = state.q;
    form.elements.group.value = state.group;
    limit = PAGE;
    show();
  }

  // j and k go from run to run in the table, as the arrow keys belong to scrolling.
  function move(by) {
    const links = Array.from(table.querySelectorAll("tbody th a"));
    const here = links.indexOf(document.activeElement);
    const next = links[here < 0 ? 0 : Math.min(Math.max(here + by, 0), links.length - 1)];
    if (next) next.focus();
  }

  function pick(side) {
    const row = document.activeElement.closest("tr[data-run]");
    if (!row) return;
    change({ [side]: row.dataset.run });
    choose();
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.q.addEventListener("input", () => find({ q: form.elements.q.value }));
  form.elements.group.addEventListener("change", () => find({ group: form.elements.group.value }));
  table.addEventListener("cbtrace:sort", (event) => {
    event.preventDefault();
    const column = event.detail.dataset.column;
    find({ sort: state.sort === column ? `-${column}` : column });
  });
  table.addEventListener("change", (event) => {
    change({ [event.target.name]: event.target.value });
    choose();
  });
  more.addEventListener("click", () => {
    limit += PAGE;
    show();
  });
  addEventListener("hashchange", read);
  onKey("/", () => form.elements.q.focus());
  onKey("j", () => move(1));
  onKey("k", () => move(-1));
  onKey("a", () => pick("a"));
  onKey("b", () => pick("b"));
  onKey("c", () => {
    if (link.href) location.href = link.href;
  });
  read();
})();
