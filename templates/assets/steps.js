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

  // The file that holds a step: the last one that does not begin after it.
  async function find(step) {
    let file = data.step_starts.length - 1;
    while (file > 0 && data.step_starts[file] > step) file -= 1;
    if (file < 0) return null;
    const key = `${data.slug}/step-${file}`;
    const part = await cbtrace.need(key, data.sources[key]);
    const row = part.index.indexOf(step);
    return row < 0 ? null : { part, row };
  }

  function names() {
    const key = `${data.slug}/requests`;
    return cbtrace.need(key, data.sources[key]).then((list) => new Map(list.ordinal.map((ordinal, i) => [ordinal, list.id[i]])));
  }

  function members(part, row, ids) {
    const stored = part.members[row];
    if (!stored) return [element("p", {}, text("members_none"))];
    const dropped = new Set(stored.wasted);
    const rows = [];
    for (let i = 0; i < stored.rest.length; i += 4) rows.push(stored.rest.slice(i, i + 4));
    for (const request of stored.decode) rows.push([request, 0, 1, 0]);
    const heads = ["request", "prefill", "decode", "recompute", "note"].map((name, i) => element("th", { scope: "col", class: i > 0 && i < 4 ? "num" : null }, text(name)));
    const body = rows.map(([request, ...tokens]) =>
      element("tr", {}, element("th", { scope: "row" }, link(request, ids)), tokens.map((count) => element("td", { class: "num" }, number(count))), element("td", {}, dropped.has(request) ? text("wasted") : "")),
    );
    const caption = text("members", { count: rows.length });
    return [
      element("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": caption },
        element("table", { class: "data" }, element("caption", {}, caption), element("thead", {}, element("tr", {}, heads)), element("tbody", {}, body))),
    ];
  }

  function link(request, ids) {
    return element("a", { class: "id", href: "#requests", "data-request": String(request) }, element("bdi", {}, ids.get(request) ?? `#${request}`));
  }

  function phases(part, row) {
    const heads = part.phases_us[row].map((_, i) => element("th", { scope: "col", class: "num" }, text(`phase_${i}`)));
    const cells = part.phases_us[row].map((us) => element("td", { class: "num" }, number(us / 1e3)));
    const caption = `${text("phases")}, ${text("ms")}`;
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      element("table", { class: "data" }, element("caption", {}, caption), element("thead", {}, element("tr", {}, heads)), element("tbody", {}, element("tr", {}, cells))));
  }

  function facts(part, row) {
    const said = [
      text("summary", {
        start: (part.start_us[row] / 1e6).toFixed(3),
        duration: number(part.duration_us[row] / 1e3),
        waiting: part.waiting[row],
        active: part.active[row],
        starved: part.starved[row],
        stop: words[`stop.${part.stop[row]}`] ?? words["stop.7"],
      }),
      text("kv", { used: bytes(part.kv_used[row]), cached: bytes(part.kv_cached[row]), free: bytes(part.kv_free[row]), read: number(part.kv_read[row]) }),
    ];
    if (part.gpu_us[row] >= 0) said.push(text("gpu", { gpu: number(part.gpu_us[row] / 1e3) }));
    if (part.padded_kv[row] < 0) said.push(text("padded_fast", { queries: number(part.padded_queries[row]) }));
    else said.push(text("padded", { queries: number(part.padded_queries[row]), kv: number(part.padded_kv[row]) }));
    if (part.flags[row] & CAPTURED) said.push(text("captured"));
    if (part.flags[row] & BLOCKED) said.push(text("blocked"));
    return element("p", {}, said.join(" "));
  }

  function button(label, action) {
    const made = element("button", { type: "button" }, label);
    made.addEventListener("click", action);
    return made;
  }

  async function show(step, focus) {
    const [found, ids] = await Promise.all([find(step), names()]);
    panel.hidden = false;
    const close = button(text("close"), () => cbtrace.setState({ step: null }));
    if (!found) {
      panel.replaceChildren(element("p", {}, text("missing", { step })), close);
      return;
    }
    const { part, row } = found;
    const tools = element("div", { class: "toolbar" }, button(text("previous"), () => cbtrace.setState({ step: step - 1 })), button(text("next"), () => cbtrace.setState({ step: step + 1 })), close);
    panel.replaceChildren(element("h3", {}, text("title", { step })), tools, facts(part, row), phases(part, row), ...members(part, row, ids));
    panel.setAttribute("data-step", String(step));
    if (focus) panel.focus({ preventScroll: false });
  }

  let current = null;
  function follow() {
    const wanted = cbtrace.readState().get("step");
    if (wanted === current) return;
    current = wanted;
    if (wanted === null || !/^\d{1,15}$/.test(wanted)) {
      panel.hidden = true;
      panel.removeAttribute("data-step");
      return;
    }
    show(Number(wanted), document.activeElement === document.body);
  }

  addEventListener("cbtrace:state", follow);
  addEventListener("hashchange", follow);
  follow();
})();
