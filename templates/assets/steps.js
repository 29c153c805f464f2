// One step of a run: who was in it, with how many tokens, and what it took. Opened by #step=<index> in the address.
(function () {
  "use strict";

  const { element, fill, number, bytes } = cbtrace;
  const data = cbtrace.arrived.get(document.body.dataset.key);
  const panel = document.querySelector("[data-step-panel]");
  if (!data || !panel) return;
  const words = data.words;
  const CAPTURED = 4;
  const BLOCKED = 8;

  function text(key, values) {
    return fill(words[`step.js.${key}`], values || {});
  }

  const level = data.levels[data.levels.length - 1];
  const files = cbtrace.table(level.files);

  // The file and the row of a step.
  async function find(step) {
    if (!files.count || step < files.step[0]) return null;
    const part = await cbtrace.part(data, level.kind, cbtrace.position(files.step, step));
    const steps = cbtrace.table(part.steps);
    const row = cbtrace.position(steps.index, step);
    return steps.index[row] === step ? { part, steps, row } : null;
  }

  // Requests that decode one token in a row: those who came since the file's first step, without those who left.
  function decoding({ joined, left }, row) {
    const there = new Set();
    const [came, gone] = [joined, left].map((list) => ({ starts: cbtrace.groupStarts(list), request: cbtrace.table(list).request }));
    for (let i = 0; i <= row; i += 1) {
      for (let at = gone.starts[i]; at < gone.starts[i + 1]; at += 1) there.delete(gone.request[at]);
      for (let at = came.starts[i]; at < came.starts[i + 1]; at += 1) there.add(came.request[at]);
    }
    return [...there].sort((a, b) => a - b);
  }

  function membersOf(lists, row) {
    const dropped = new Set(cbtrace.group(lists.wasted, row).map(({ request }) => request));
    const alone = decoding(lists, row).map((request) => ({ request, prefill: 0, decode: 1, recompute: 0 }));
    return [...cbtrace.group(lists.others, row), ...alone].map((member) => ({ ...member, wasted: dropped.has(member.request) }));
  }

  function members(rows, ids) {
    const heads = ["request", "prefill", "decode", "recompute", "note"].map((name, i) => element("th", { scope: "col", class: i > 0 && i < 4 ? "num" : null }, text(name)));
    const body = rows.map((member) =>
      element("tr", {}, element("th", { scope: "row" }, link(member.request, ids)), [member.prefill, member.decode, member.recompute].map((count) => element("td", { class: "num" }, number(count))), element("td", {}, member.wasted ? text("wasted") : "")),
    );
    const caption = text("members", { count: rows.length });
    return element("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": caption },
      element("table", { class: "data" }, element("caption", {}, caption), element("thead", {}, element("tr", {}, heads)), element("tbody", {}, body)));
  }

  function link(request, ids) {
    return element("a", { class: "id", href: "#requests", "data-request": String(request) }, element("bdi", {}, ids.get(request) ?? `#${request}`));
  }

  function phases(steps, row) {
    const spans = Array.from({ length: 5 }, (_, i) => steps[`phase_${i}_us`][row]);
    const heads = spans.map((_, i) => element("th", { scope: "col", class: "num" }, text(`phase_${i}`)));
    const cells = spans.map((us) => element("td", { class: "num" }, number(us / 1e3)));
    const caption = `${text("phases")}, ${text("ms")}`;
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      element("table", { class: "data" }, element("caption", {}, caption), element("thead", {}, element("tr", {}, heads)), element("tbody", {}, element("tr", {}, cells))));
  }

  function facts(steps, row) {
    const of = Object.fromEntries(steps.names.map((name) => [name, steps[name][row]]));
    const queries = of.prefill_tokens + of.decode_tokens + of.recompute_tokens + of.query_padding;
    const said = [
      text("summary", {
        start: (of.start_us / 1e6).toFixed(3),
        duration: number(of.duration_us / 1e3),
        waiting: of.waiting,
        active: of.active,
        starved: of.starved,
        stop: words[`stop.${of.stop}`] ?? words["stop.7"],
      }),
      text("kv", { used: bytes(of.kv_used), cached: bytes(of.kv_cached), free: bytes(of.kv_free), read: number(of.kv_read) }),
    ];
    if (of.gpu_us >= 0) said.push(text("gpu", { gpu: number(of.gpu_us / 1e3) }));
    if (of.rank_slowest >= 0) said.push(text("slowest_rank", { rank: of.rank_slowest, lag: number(of.rank_lag_us / 1e3) }));
    if (of.rank_gpu_spread_us >= 0) said.push(text("rank_gpu", { spread: number(of.rank_gpu_spread_us / 1e3) }));
    if (of.kv_padding < 0) said.push(text("padded_fast", { queries: number(queries) }));
    else said.push(text("padded", { queries: number(queries), kv: number(of.kv_read + of.kv_padding) }));
    if (of.flags & CAPTURED) said.push(text("captured"));
    if (of.flags & BLOCKED) said.push(text("blocked"));
    return element("p", {}, said.join(" "));
  }

  function button(label, action) {
    const made = element("button", { type: "button" }, label);
    made.addEventListener("click", action);
    return made;
  }

  // The timeline shows where the step is.
  function choose(span) {
    cbtrace.chosenStep = span;
    dispatchEvent(new Event("cbtrace:step"));
  }

  let asked = 0;
  async function show(step, focus) {
    const turn = ++asked;
    const found = await find(step);
    const rows = found ? membersOf(found.part.members, found.row) : [];
    const ids = new Map((await cbtrace.requests.byOrdinal(rows.map(({ request }) => request))).map(({ ordinal, id }) => [ordinal, id]));
    if (turn !== asked) return;
    panel.hidden = false;
    const close = button(text("close"), () => cbtrace.setState({ step: null }));
    if (!found) {
      panel.replaceChildren(element("p", {}, text("missing", { step })), close);
      panel.setAttribute("data-step", String(step));
      return;
    }
    const { steps, row } = found;
    choose({ from: steps.start_us[row] / 1e6, to: (steps.start_us[row] + steps.duration_us[row]) / 1e6 });
    const tools = element("div", { class: "toolbar" },
      button(text("previous"), () => cbtrace.setState({ step: step - 1 })),
      button(text("next"), () => cbtrace.setState({ step: step + 1 })),
      button(text("window"), () => around(steps, row)),
      close);
    panel.replaceChildren(element("h3", {}, text("title", { step: number(step) })), tools, facts(steps, row), phases(steps, row), members(rows, ids));
    panel.setAttribute("data-step", String(step));
    if (focus) panel.focus({ preventScroll: false });
  }

  // The timeline's window with the step in its middle third.
  function around(steps, row) {
    const [start, span] = [steps.start_us[row], Math.max(1, steps.duration_us[row])];
    return cbtrace.showWindow((start - span) / 1e6, (start + 2 * span) / 1e6);
  }

  // A step that is asked for by its number is shown, and so is its place in the timeline.
  const wanted = document.querySelector("[data-find-step]");
  wanted.addEventListener("change", async () => {
    if (!/^\d{1,15}$/.test(wanted.value)) return;
    const found = await find(Number(wanted.value));
    if (found) around(found.steps, found.row);
    cbtrace.setState({ step: wanted.value });
  });

  let current = null;
  function follow() {
    const step = cbtrace.readState().get("step");
    if (step === current) return;
    current = step;
    if (step === null || !/^\d{1,15}$/.test(step)) {
      asked += 1;
      choose(null);
      panel.hidden = true;
      panel.removeAttribute("data-step");
      return;
    }
    show(Number(step), document.activeElement === document.body);
  }

  // Whoever follows a link to a step from far below wants to see it.
  document.addEventListener("click", (event) => {
    const link = cbtrace.clicked(event, 'a[href^="#step="]');
    if (!link) return;
    event.preventDefault();
    current = link.hash.slice("#step=".length);
    cbtrace.setState({ step: current });
    show(Number(current), true);
  });
  addEventListener("cbtrace:state", follow);
  addEventListener("hashchange", follow);
  follow();
})();
