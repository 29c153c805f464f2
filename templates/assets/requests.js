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
  const inWindow = section.querySelector("[data-requests-window]");
  const LANES = 30;
  const CALM = 150; // ms that the window must stay as it is until the lanes follow it
  let head = null;
  let chosen = { ordinals: [], cut: false };
  let page = 0;
  let chart = null;
  let rows = []; // the requests of the lanes
  let spans = [];
  let asked = 0;

  function text(key, values) {
    return fill(head.words[`request.js.${key}`], values || {});
  }

  // Milliseconds from a request's submit to an instant of it.
  function since(name, request) {
    const [from, to] = [request.submit_us, request[`${name}_us`]];
    return from === null || to === null ? null : (to - from) / 1e3;
  }

  async function arrange() {
    const turn = ++asked;
    head = await cbtrace.requests.begin();
    const whole = cbtrace.window[0] <= cbtrace.span[0] && cbtrace.window[1] >= cbtrace.span[1];
    const found = await cbtrace.requests.choose(inWindow.checked && !whole ? cbtrace.window : null, find.value.trim().toLowerCase(), sort.value);
    if (turn !== asked) return;
    chosen = found;
    page = 0;
    await show();
  }

  async function show() {
    const turn = ++asked;
    const first = page * LANES;
    const found = await cbtrace.requests.byOrdinal(chosen.ordinals.slice(first, first + LANES));
    const lives = await Promise.all(found.map(({ ordinal }) => cbtrace.requests.details(ordinal)));
    if (turn !== asked) return;
    rows = found;
    spans = lives.flatMap(({ life }, rank) => life.map(({ state, from, to }) => [rank, from / 1e6, to / 1e6, `--piece-of-${head.states[state]}`]));
    const cut = chosen.cut ? ` ${text("order_cut", { listed: number(chosen.ordinals.length), all: number(head.all) })}` : "";
    shown.textContent = (rows.length ? text("shown", { from: number(first + 1), to: number(first + rows.length), all: number(chosen.ordinals.length) }) : text("none")) + cut;
    table();
    place.setAttribute("aria-label", text("lanes", { from: first + 1, to: first + rows.length }));
    place.hidden = !rows.length;
    if (chart) chart.draw();
    else chart = cbtrace.plot(place, lanes);
    place.setAttribute("data-drawn-lanes", cbtrace.window.join());
  }

  // Two requests may have one name, or seem to when only its end is shown: the ordinal keeps their lanes apart.
  function labels() {
    const names = rows.map(({ id }) => (id.length > 24 ? `\u2026${id.slice(-23)}` : id));
    return names.map((name, i) => (names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} #${rows[i].ordinal}`));
  }

  function lanes() {
    const [from, to] = cbtrace.window;
    return { from, to, axis: data.words["plot.time_axis"], panels: [{ title: data.words["plot.lanes"], lane: 16, rows: labels(), tails: true, layers: [{ kind: "lanes", spans }] }] };
  }

  place.addEventListener("click", (event) => {
    const rank = Math.floor((event.clientY - place.getBoundingClientRect().top - chart.panels[0].top) / chart.panels[0].lane);
    if (rank >= 0 && rank < rows.length) open(rows[rank].ordinal);
  });

  function table() {
    const heads = [["id", false], ["prompt", true], ["generated", true], ["prefix_hit", true], ["ttft", true], ["gap", true], ["e2e", true], ["resets", true], ["end", false]];
    const body = rows.map((request) => {
      const gap = request.longest_gap_us;
      const numbers = [request.prompt_tokens, request.generated, request.prefix_hit, since("first_token", request), gap === null ? null : gap / 1e3, since("end", request), request.soft_resets];
      return element("tr", {}, element("th", { scope: "row" }, link(request)), numbers.map((value) => element("td", { class: "num" }, number(value))), element("td", {}, text(`end_${request.end_reason}`)));
    });
    rowsPlace.replaceChildren(wrapped(section.querySelector("summary").textContent, heads, body));
  }

  function wrapped(caption, heads, body) {
    const head = element("tr", {}, heads.map(([name, numeric]) => element("th", { scope: "col", class: numeric ? "num" : null }, text(name))));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      element("table", { class: "data" }, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, body)));
  }

  function link(request) {
    return element("a", { class: "id", href: "#requests", "data-request": String(request.ordinal) }, element("bdi", {}, request.id));
  }

  // Pieces with their names and shares, largest first.
  function shares(pieces) {
    const total = pieces.reduce((sum, { ns }) => sum + ns, 0);
    return pieces.map(({ piece, ns }) => ({ piece: head.pieces[piece], ns, share: total ? ns / total : 0 })).sort((a, b) => b.ns - a.ns);
  }

  function pieceName(piece) {
    return [element("span", { class: `swatch piece-${piece}`, "aria-hidden": "true" }), head.words[`piece.${piece}`]];
  }

  function life(request) {
    const names = [["submit", "submit"], ["visible", "visible"], ["admitted", "admitted"], ["first_token", "first_token"], ["last_token", "last_token"], ["end", "ended"]];
    const body = names.filter(([name]) => request[`${name}_us`] !== null).map(([name, label]) =>
      element("tr", {}, element("th", { scope: "row" }, text(label)), element("td", { class: "num" }, (request[`${name}_us`] / 1e6).toFixed(6)), element("td", { class: "num" }, number(since(name, request)))));
    return wrapped(text("life"), [["instant", false], ["at", true], ["after", true]], body);
  }

  function cut(pieces, request) {
    if (!pieces.length) return element("p", {}, text("no_cut"));
    const body = shares(pieces).map(({ piece, ns, share }) =>
      element("tr", {}, element("th", { scope: "row" }, pieceName(piece)), element("td", { class: "num" }, number(ns / 1e6)), element("td", { class: "num" }, `${number(100 * share)} %`)));
    return wrapped(text("cut", { ttft: number(since("first_token", request)) }), [["piece", false], ["ms", true], ["share", true]], body);
  }

  function gaps(found) {
    if (!found.length) return element("p", {}, text("no_gaps"));
    const body = found.map(({ position, start_us, duration_us, first_step, later_steps, absent, pieces }) => {
      const last = first_step + later_steps;
      const steps = element("a", { href: `#step=${last}`, "data-window-link": `${(start_us - duration_us) / 1e6},${(start_us + 2 * duration_us) / 1e6}` }, later_steps ? `${first_step}\u2013${last}` : String(last));
      const went = shares(pieces).slice(0, 3).map(({ piece, share }) => `${head.words[`piece.${piece}`]} ${number(100 * share)} %`).join(", ");
      return element("tr", {}, element("th", { scope: "row", class: "num" }, String(position)), element("td", { class: "num" }, number(duration_us / 1e3)), element("td", { class: "nowrap" }, steps), element("td", { class: "num" }, number(absent)), element("td", { class: "wide" }, went));
    });
    const caption = found.length < head.gaps_a_request ? text("gaps") : text("gaps_some", { count: head.gaps_a_request });
    return wrapped(caption, [["token", true], ["duration", true], ["steps", false], ["absent", true], ["went", false]], body);
  }

  function stays(found) {
    const known = (value) => (value < 0 ? null : value);
    const body = found.map(({ begun_us, start, reached, blocks, bytes, left }) =>
      element("tr", {}, element("th", { scope: "row", class: "num" }, (begun_us / 1e6).toFixed(3)), [start, reached, blocks].map((value) => element("td", { class: "num" }, number(known(value)))), element("td", { class: "num" }, cbtrace.bytes(bytes)), element("td", {}, text(`left_${left}`))));
    return wrapped(text("stays"), [["admitted_at", true], ["there", true], ["reached", true], ["blocks", true], ["bytes", true], ["left", false]], body);
  }

  function button(label, action) {
    const made = element("button", { type: "button" }, label);
    made.addEventListener("click", action);
    return made;
  }

  // One request, in a panel of its own.
  let wanted = 0;
  async function showOne(ordinal, focus) {
    const turn = ++wanted;
    head = await cbtrace.requests.begin();
    const [request] = await cbtrace.requests.byOrdinal([ordinal]);
    if (!request) {
      panel.hidden = true;
      return;
    }
    const of = await cbtrace.requests.details(ordinal);
    if (turn !== wanted) return;
    const [from, to] = [request.submit_us, request.end_us ?? request.last_token_us ?? request.submit_us];
    const air = Math.max(1, (to - from) * 0.05);
    const tools = element("div", { class: "toolbar" }, button(text("window"), () => cbtrace.showWindow((from - air) / 1e6, (to + air) / 1e6)), button(text("close"), () => cbtrace.setState({ request: null })));
    const error = request.error ? element("p", {}, `${text("error")}: `, element("bdi", { class: "id" }, request.error)) : null;
    const numbers = ["prompt", "generated", "prefix_hit", "resets", "recomputed"].map((name) => {
      const column = { prompt: "prompt_tokens", resets: "soft_resets" }[name] || name;
      return `${text(name)}: ${number(request[column])}`;
    });
    panel.hidden = false;
    panel.replaceChildren(
      element("h3", {}, element("bdi", {}, text("title", { id: request.id }))),
      tools,
      element("p", {}, `${numbers.join(" \u00b7 ")} \u00b7 ${text("end")}: ${text(`end_${request.end_reason}`)}`),
      ...(error ? [error] : []),
      element("div", { class: "columns" }, life(request), cut(of.ttft, request), stays(of.stays)),
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
    const ordinal = cbtrace.readState().get("request");
    if (ordinal === current) return;
    current = ordinal;
    if (ordinal === null || !/^\d{1,15}$/.test(ordinal)) {
      wanted += 1;
      panel.hidden = true;
      panel.removeAttribute("data-request-shown");
      return;
    }
    showOne(Number(ordinal), true);
  }

  document.addEventListener("click", (event) => {
    const target = cbtrace.clicked(event, "[data-request]");
    if (!target) return;
    event.preventDefault();
    open(target.dataset.request);
  });

  // Nothing is loaded before the section comes into view.
  let begun = false;
  new IntersectionObserver((entries) => {
    if (begun || !entries.some((entry) => entry.isIntersecting)) return;
    begun = true;
    arrange();
  }, { rootMargin: "200px" }).observe(section);

  for (const control of [sort, inWindow]) control.addEventListener("change", arrange);
  let calm = 0;
  function soon() {
    clearTimeout(calm);
    calm = setTimeout(arrange, CALM);
  }
  find.addEventListener("input", soon);
  for (const turn of section.querySelectorAll("[data-requests-page]")) {
    turn.addEventListener("click", () => {
      const pages = Math.max(1, Math.ceil(chosen.ordinals.length / LANES));
      page = Math.min(pages - 1, Math.max(0, page + Number(turn.dataset.requestsPage)));
      show();
    });
  }
  addEventListener("cbtrace:window", () => {
    if (chart) chart.soon();
    if (begun && inWindow.checked) soon();
  });
  addEventListener("cbtrace:state", follow);
  addEventListener("hashchange", follow);
  follow();
})();
