// The requests of a run: lanes over the timeline's window, a table, and one request in detail (#request=<ordinal>).
(function () {
  "use strict";

  const { element, fill, number } = cbtrace;
  const data = cbtrace.arrived.get(document.body.dataset.key);
  const section = document.getElementById("requests");
  if (!data || !section) return;
  const place = section.querySelector('[data-chart="lanes"]');
  const panel = section.querySelector("[data-request-panel]");
  const sort = section.querySelector("[data-requests-sort]");
  const find = section.querySelector("[data-requests-find]");
  const shown = section.querySelector("[data-requests-shown]");
  const rowsPlace = section.querySelector("[data-requests-rows]");
  const LANES = 30;
  let list = null;
  let order = [];
  let page = 0;
  let chart = null;
  let labels = [];
  let spans = [];
  let asked = 0;

  function text(key, values) {
    return fill(list.words[`request.js.${key}`], values || {});
  }

  async function load() {
    if (list) return list;
    const key = `${data.slug}/requests`;
    list = await cbtrace.need(key, data.sources[key]);
    return list;
  }

  async function details(row) {
    const file = Math.floor(row / data.details_a_file);
    const key = `${data.slug}/request-${file}`;
    const part = await cbtrace.need(key, data.sources[key]);
    const at = row - file * data.details_a_file;
    return { life: part.lives[at], ttft: part.ttft[at], gaps: part.gaps[at], stays: part.stays[at] };
  }

  function since(name, row) {
    const [from, to] = [list.submit_us[row], list[`${name}_us`][row]];
    return from === null || to === null ? null : (to - from) / 1e3;
  }

  const measures = {
    submit: (row) => row,
    ttft: (row) => -(since("first_token", row) ?? -1),
    gap: (row) => -(list.longest_gap_us[row] ?? -1),
    e2e: (row) => -(since("end", row) ?? -1),
    resets: (row) => -list.soft_resets[row],
    prompt: (row) => -list.prompt_tokens[row],
  };

  function arrange() {
    const wanted = find.value.toLowerCase();
    const measure = measures[sort.value];
    order = list.id.map((_, row) => row).filter((row) => list.id[row].toLowerCase().includes(wanted));
    order.sort((a, b) => measure(a) - measure(b) || a - b);
    page = 0;
  }

  async function show() {
    await load();
    const turn = ++asked;
    const first = page * LANES;
    const rows = order.slice(first, first + LANES);
    const lives = await Promise.all(rows.map(details));
    if (turn !== asked) return;
    const more = list.id.length < list.all ? ` ${text("limited", { listed: number(list.id.length), all: number(list.all) })}` : "";
    shown.textContent = (rows.length ? text("shown", { from: first + 1, to: first + rows.length, all: number(order.length) }) : text("none")) + more;
    table(rows);
    place.setAttribute("aria-label", text("lanes", { from: first + 1, to: first + rows.length }));
    labels = rows.map(label);
    spans = rows.flatMap((_, rank) => spansOf(lives[rank].life, rank));
    place.hidden = !rows.length;
    if (chart) chart.draw();
    else chart = cbtrace.plot(place, lanes);
    place.setAttribute("data-drawn-lanes", "");
  }

  // Two requests may have one name: the ordinal keeps their lanes apart.
  function label(row) {
    const name = list.id[row].length > 24 ? `${list.id[row].slice(0, 23)}\u2026` : list.id[row];
    return list.id.indexOf(list.id[row]) === list.id.lastIndexOf(list.id[row]) ? name : `${name} #${list.ordinal[row]}`;
  }

  function spansOf(life, rank) {
    const made = [];
    for (let i = 0; i < life.length; i += 3) made.push([rank, life[i + 1] / 1e6, life[i + 2] / 1e6, `--piece-of-${list.states[life[i]]}`]);
    return made;
  }

  function lanes() {
    const [from, to] = cbtrace.window;
    return { from, to, axis: data.words["plot.time_axis"], panels: [{ title: data.words["plot.lanes"], lane: 16, rows: labels, layers: [{ kind: "lanes", spans }] }] };
  }

  place.addEventListener("click", (event) => {
    const rank = Math.floor((event.clientY - place.getBoundingClientRect().top - chart.panels[0].top) / chart.panels[0].lane);
    if (rank >= 0 && rank < labels.length) open(list.ordinal[order[page * LANES + rank]]);
  });

  function table(rows) {
    const heads = [["id", false], ["prompt", true], ["generated", true], ["prefix_hit", true], ["ttft", true], ["gap", true], ["e2e", true], ["resets", true], ["end", false]];
    const body = rows.map((row) => {
      const gap = list.longest_gap_us[row];
      const numbers = [list.prompt_tokens[row], list.generated[row], list.prefix_hit[row], since("first_token", row), gap === null ? null : gap / 1e3, since("end", row), list.soft_resets[row]];
      return element("tr", {}, element("th", { scope: "row" }, link(row)), numbers.map((value) => element("td", { class: "num" }, number(value))), element("td", {}, text(`end_${list.end_reason[row]}`)));
    });
    rowsPlace.replaceChildren(wrapped(section.querySelector("summary").textContent, heads, body));
  }

  function wrapped(caption, heads, body) {
    const head = element("tr", {}, heads.map(([name, numeric]) => element("th", { scope: "col", class: numeric ? "num" : null }, text(name))));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      element("table", { class: "data" }, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, body)));
  }

  function link(row) {
    return element("a", { class: "id", href: "#requests", "data-request": String(list.ordinal[row]) }, element("bdi", {}, list.id[row]));
  }

  function cutRows(sparse) {
    const total = sparse.reduce((sum, value, i) => (i % 2 ? sum + value : sum), 0);
    const made = [];
    for (let i = 0; i < sparse.length; i += 2) made.push({ piece: list.pieces[sparse[i]], ns: sparse[i + 1], share: total ? sparse[i + 1] / total : 0 });
    return made.sort((a, b) => b.ns - a.ns);
  }

  function pieceName(piece) {
    return [element("span", { class: `swatch piece-${piece}`, "aria-hidden": "true" }), list.words[`piece.${piece}`]];
  }

  function life(row) {
    const names = [["submit", "submit"], ["visible", "visible"], ["admitted", "admitted"], ["first_token", "first_token"], ["last_token", "last_token"], ["end", "ended"]];
    const body = names.filter(([name]) => list[`${name}_us`][row] !== null).map(([name, label]) =>
      element("tr", {}, element("th", { scope: "row" }, text(label)), element("td", { class: "num" }, (list[`${name}_us`][row] / 1e6).toFixed(6)), element("td", { class: "num" }, number(since(name, row)))));
    return wrapped(text("life"), [["instant", false], ["at", true], ["after", true]], body);
  }

  function cut(sparse, row) {
    if (!sparse) return element("p", {}, text("no_cut"));
    const body = cutRows(sparse).map(({ piece, ns, share }) =>
      element("tr", {}, element("th", { scope: "row" }, pieceName(piece)), element("td", { class: "num" }, number(ns / 1e6)), element("td", { class: "num" }, `${number(100 * share)} %`)));
    return wrapped(text("cut", { ttft: number(since("first_token", row)) }), [["piece", false], ["ms", true], ["share", true]], body);
  }

  function gaps(found) {
    if (!found.length) return element("p", {}, text("no_gaps"));
    const body = found.map(([position, start, duration, first, last, absent, sparse]) => {
      const steps = element("a", { href: `#step=${last}`, "data-window-link": `${(start - duration) / 1e6},${(start + 2 * duration) / 1e6}` }, first === last ? String(first) : `${first}\u2013${last}`);
      const went = cutRows(sparse).slice(0, 3).map(({ piece, share }) => `${list.words[`piece.${piece}`]} ${number(100 * share)} %`).join(", ");
      return element("tr", {}, element("th", { scope: "row", class: "num" }, String(position)), element("td", { class: "num" }, number(duration / 1e3)), element("td", { class: "nowrap" }, steps), element("td", { class: "num" }, number(absent)), element("td", { class: "wide" }, went));
    });
    return wrapped(text("gaps"), [["token", true], ["duration", true], ["steps", false], ["absent", true], ["went", false]], body);
  }

  function stays(found) {
    const known = (value) => (value < 0 ? null : value);
    const body = found.map(([begun, start, reached, blocks, size, left]) =>
      element("tr", {}, element("th", { scope: "row", class: "num" }, (begun / 1e6).toFixed(3)), [start, reached, blocks].map((value) => element("td", { class: "num" }, number(known(value)))), element("td", { class: "num" }, cbtrace.bytes(size)), element("td", {}, text(left ? `left_${left}` : "left_0"))));
    return wrapped(text("stays"), [["admitted_at", true], ["there", true], ["reached", true], ["blocks", true], ["bytes", true], ["left", false]], body);
  }

  function button(label, action) {
    const made = element("button", { type: "button" }, label);
    made.addEventListener("click", action);
    return made;
  }

  // One request, in a panel of its own.
  async function showOne(ordinal, focus) {
    await load();
    const row = list.ordinal.indexOf(ordinal);
    if (row < 0) {
      panel.hidden = true;
      return;
    }
    const of = await details(row);
    const [from, to] = [list.submit_us[row], list.end_us[row] ?? list.last_token_us[row] ?? list.submit_us[row]];
    const air = Math.max(1, (to - from) * 0.05);
    const tools = element("div", { class: "toolbar" }, button(text("window"), () => cbtrace.showWindow((from - air) / 1e6, (to + air) / 1e6)), button(text("close"), () => cbtrace.setState({ request: null })));
    const error = list.error[row] ? element("p", {}, `${text("error")}: `, element("bdi", { class: "id" }, list.error[row])) : null;
    const numbers = ["prompt", "generated", "prefix_hit", "resets", "recomputed"].map((name) => {
      const column = { prompt: "prompt_tokens", resets: "soft_resets" }[name] || name;
      return `${text(name)}: ${number(list[column][row])}`;
    });
    panel.hidden = false;
    panel.replaceChildren(
      element("h3", {}, element("bdi", {}, text("title", { id: list.id[row] }))),
      tools,
      element("p", {}, `${numbers.join(" · ")} · ${text("end")}: ${text(`end_${list.end_reason[row]}`)}`),
      ...(error ? [error] : []),
      element("div", { class: "columns" }, life(row), cut(of.ttft, row), stays(of.stays)),
      gaps(of.gaps),
    );
    panel.setAttribute("data-request-shown", String(ordinal));
    if (focus) panel.scrollIntoView({ block: "nearest" });
  }

  function open(ordinal) {
    cbtrace.setState({ request: ordinal });
  }

  let current = null;
  function follow() {
    const wanted = cbtrace.readState().get("request");
    if (wanted === current) return;
    current = wanted;
    if (wanted === null || !/^\d{1,15}$/.test(wanted)) {
      panel.hidden = true;
      panel.removeAttribute("data-request-shown");
      return;
    }
    showOne(Number(wanted), true);
  }

  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element && event.target.closest("[data-request]");
    if (!target) return;
    event.preventDefault();
    open(target.dataset.request);
  });

  async function first() {
    await load();
    arrange();
    await show();
  }

  // Nothing is loaded before the section comes into view.
  let begun = false;
  function begin() {
    if (begun) return;
    begun = true;
    first();
  }
  new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) begin();
  }, { rootMargin: "200px" }).observe(section);

  async function rearrange() {
    await load();
    arrange();
    show();
  }
  sort.addEventListener("change", rearrange);
  find.addEventListener("input", rearrange);
  for (const turn of section.querySelectorAll("[data-requests-page]")) {
    turn.addEventListener("click", () => {
      const pages = Math.max(1, Math.ceil(order.length / LANES));
      page = Math.min(pages - 1, Math.max(0, page + Number(turn.dataset.requestsPage)));
      show();
    });
  }
  addEventListener("cbtrace:window", () => {
    if (chart) chart.soon();
  });
  addEventListener("cbtrace:state", follow);
  addEventListener("hashchange", follow);
  follow();
})();
