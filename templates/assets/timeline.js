// The timeline of a run: moves the window by pointer, keyboard, buttons and links, and loads the points it needs.
(function () {
  "use strict";

  const place = document.querySelector('[data-chart="timeline"]');
  const data = cbtrace.arrived.get(document.body.dataset.key);
  cbtrace.window = cbtrace.span = [0, 1]; // of a run without steps
  if (!place || !data || !data.rows.count) return;

  const PATIENCE = 60; // ms until a window is shown with the points at hand, while finer ones are loaded
  const words = data.words;
  const readout = document.querySelector("[data-readout]");
  const status = document.querySelector("[data-window]");
  const rows = cbtrace.table(data.rows);
  const whole = { columns: rows, marks: cbtrace.table(data.marks), bucket: data.bucket };
  const levels = data.levels.map((level) => ({ ...level, files: cbtrace.table(level.files) }));
  const first = Math.min(0, rows.start_us[0] / 1e6); // from the first submit on, which waits for the first step
  const last = Math.max(first + 1e-6, rows.end_us[rows.count - 1] / 1e6);
  const meanStep = rows.duration_sum_us.reduce((a, b) => a + b, 0) / data.steps;
  const pause = Math.max(5 * meanStep, 20_000); // µs without a batch that are shown as such
  let shown = whole; // the columns that the panels show
  let window_ = [first, last];
  cbtrace.window = window_;
  cbtrace.span = [first, last];
  const { series, panels } = cbtrace.timeline;
  const all = series(whole, pause);
  let drawn = all; // the series of `shown`
  let asked = 0;

  // Points of single steps from a file of the finest level.
  function points(steps) {
    const end = steps.start_us.slice();
    const tokens = new Float64Array(steps.count);
    for (let i = 0; i < steps.count; i += 1) {
      for (let phase = 0; phase < 5; phase += 1) end[i] += steps[`phase_${phase}_us`][i];
      tokens[i] = steps.prefill_tokens[i] + steps.decode_tokens[i] + steps.recompute_tokens[i];
    }
    const groups = steps.names.filter((name) => name.startsWith("group_used_")).map((name) => [name, steps[name]]);
    const made = {
      first_step: steps.index, steps: new Float64Array(steps.count).fill(1), start_us: steps.start_us, end_us: end,
      prefill: steps.prefill_tokens, decode: steps.decode_tokens, recompute: steps.recompute_tokens, wasted: steps.wasted_tokens, tokens_max: tokens,
      used_peak: steps.kv_used, used_min: steps.kv_used, cached: steps.kv_cached,
      waiting_max: steps.waiting, waiting_min: steps.waiting, active_max: steps.active, active_min: steps.active,
      duration_max_us: steps.duration_us, duration_sum_us: steps.duration_us, gpu_sum_us: steps.gpu_us, ...Object.fromEntries(groups),
    };
    return { ...made, names: Object.keys(made) };
  }

  // Tables of the same columns as one.
  function joined(tables) {
    const made = {};
    for (const name of tables[0].names) {
      const parts = tables.map((table) => table[name]);
      made[name] = new Float64Array(parts.reduce((sum, part) => sum + part.length, 0));
      let at = 0;
      for (const part of parts) {
        made[name].set(part, at);
        at += part.length;
      }
    }
    return made;
  }

  function within(columns, from, to) {
    const start = cbtrace.position(columns.start_us, from * 1e6);
    const end = cbtrace.position(columns.start_us, to * 1e6) + 1;
    return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values.subarray(start, end)]));
  }

  // The finest level of zoom that shows the window in as many points as are drawn. Its files are loaded when first needed.
  async function finest(from, to) {
    for (const level of levels.slice().reverse()) {
      const start = cbtrace.position(level.files.start_us, from * 1e6);
      const end = cbtrace.position(level.files.start_us, to * 1e6);
      if (end - start > 1) continue;
      const numbers = Array.from({ length: end + 1 - start }, (_, i) => start + i);
      const parts = await Promise.all(numbers.map((number) => cbtrace.part(data, level.kind, number)));
      const columns = within(joined(parts.map((part) => (part.rows ? cbtrace.table(part.rows) : points(cbtrace.table(part.steps))))), from, to);
      if (columns.start_us.length > data.points) continue;
      return { columns, marks: joined(parts.map((part) => cbtrace.table(part.marks))), bucket: level.bucket };
    }
    return whole;
  }

  function tell() {
    const bucket = shown.bucket === 1 ? words["timeline.js.each"] : cbtrace.fill(words["timeline.js.bucket"], { count: cbtrace.number(shown.bucket) });
    status.textContent = `${window_[0].toFixed(3)}\u2013${window_[1].toFixed(3)} s, ${bucket}`;
  }

  async function show(from, to, remember = true) {
    const least = 1e-4;
    from = Math.max(first, from);
    to = Math.min(last, Math.max(to, from + least));
    window_ = [Math.min(from, to - least), to];
    if (remember) cbtrace.writeState({ t: from <= first && to >= last ? null : `${from.toFixed(4)},${to.toFixed(4)}` });
    const turn = ++asked;
    const impatient = setTimeout(apply, PATIENCE);
    const found = await finest(from, to);
    clearTimeout(impatient);
    if (turn !== asked) return;
    shown = found;
    apply();
  }

  function apply() {
    tell();
    drawn = series(shown, pause);
    cbtrace.window = window_;
    dispatchEvent(new Event("cbtrace:window"));
    const wanted = window_.join();
    plot.soon().then(() => place.setAttribute("data-shown-window", wanted));
  }

  function stripBottom() {
    return plot.panels[0].top + plot.panels[0].height + 5;
  }

  function timeAt(x, inStrip) {
    const [from, to] = inStrip ? [first, last] : window_;
    const share = Math.min(1, Math.max(0, (x - plot.box.left) / plot.box.width));
    return from + share * (to - from);
  }

  const cursor = cbtrace.element("div", { class: "cursor", hidden: true });
  const band = cbtrace.element("div", { class: "band", hidden: true });
  let drag = null;

  function at(event) {
    const box = place.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  function stretch(from, to) {
    const { left, width } = plot.box;
    const [start, end] = [Math.max(left, Math.min(from, to)), Math.min(left + width, Math.max(from, to))];
    band.style.left = `${start}px`;
    band.style.width = `${Math.max(0, end - start)}px`;
  }

  place.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    const point = at(event);
    if (point.x < plot.box.left - 4 || point.x > plot.box.left + plot.box.width + 4) return;
    drag = { x: point.x, strip: point.y < stripBottom() };
    place.setPointerCapture(event.pointerId);
  });

  place.addEventListener("pointermove", (event) => {
    const point = at(event);
    if (drag) {
      band.hidden = Math.abs(point.x - drag.x) < 4;
      stretch(drag.x, point.x);
      return;
    }
    read(point);
  });

  place.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const point = at(event);
    const { x, strip } = drag;
    drag = null;
    band.hidden = true;
    if (Math.abs(point.x - x) < 4) {
      choose(point);
      return;
    }
    const times = [timeAt(x, strip), timeAt(point.x, strip)].sort((a, b) => a - b);
    show(...times);
  });

  place.addEventListener("pointercancel", () => {
    drag = null;
    band.hidden = true;
  });
  place.addEventListener("pointerleave", () => {
    cursor.hidden = true;
  });
  place.addEventListener("dblclick", () => show(first, last));

  // The numbers under the pointer, in words: the same as in the table.
  function read(point) {
    const inStrip = point.y < stripBottom();
    const inside = point.x >= plot.box.left && point.x <= plot.box.left + plot.box.width;
    cursor.hidden = !inside;
    if (!inside) return;
    cursor.style.left = `${point.x}px`;
    const columns = inStrip ? whole.columns : shown.columns;
    const i = cbtrace.position(columns.start_us, timeAt(point.x, inStrip) * 1e6);
    const count = columns.steps[i];
    const steps = count === 1 ? `${columns.first_step[i]}` : `${columns.first_step[i]}\u2013${columns.first_step[i] + count - 1}`;
    readout.textContent = cbtrace.fill(words["timeline.js.readout"], {
      steps,
      time: (columns.start_us[i] / 1e6).toFixed(3),
      prefill: cbtrace.number(columns.prefill[i]),
      decode: cbtrace.number(columns.decode[i]),
      recompute: cbtrace.number(columns.recompute[i]),
      wasted: cbtrace.number(columns.wasted[i]),
      used: cbtrace.bytes(columns.used_peak[i]),
      waiting: columns.waiting_max[i],
      active: columns.active_max[i],
      longest: cbtrace.number(columns.duration_max_us[i] / 1e3),
    });
  }

  // A click on a single step shows it; on a point that stands for several it zooms in.
  function choose(point) {
    const inStrip = point.y < stripBottom();
    const at = timeAt(point.x, inStrip);
    if (inStrip || shown.bucket > 1) {
      const width = (window_[1] - window_[0]) / 8;
      show(at - width / 2, at + width / 2);
      return;
    }
    cbtrace.setState({ step: shown.columns.first_step[cbtrace.position(shown.columns.start_us, at * 1e6)] });
  }

  function zoom(factor) {
    const middle = (window_[0] + window_[1]) / 2;
    const half = ((window_[1] - window_[0]) / 2) * factor;
    return show(middle - half, middle + half);
  }

  function pan(share) {
    const width = window_[1] - window_[0];
    const from = Math.min(Math.max(first, window_[0] + share * width), last - width);
    return show(from, from + width);
  }

  const moves = {
    in: () => zoom(0.5),
    out: () => zoom(2),
    left: () => pan(-0.25),
    right: () => pan(0.25),
    reset: () => show(first, last),
  };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", moves[button.dataset.zoom]);
  for (const [key, move] of [["+", "in"], ["=", "in"], ["-", "out"], ["ArrowLeft", "left"], ["ArrowRight", "right"], ["0", "reset"]]) {
    cbtrace.onKey(key, moves[move]);
  }

  // A link with a window shows it, beside going where it points.
  document.addEventListener("click", (event) => {
    const link = cbtrace.clicked(event, "[data-window-link]");
    if (link) show(...link.dataset.windowLink.split(",").map(Number), false);
  });

  function fromLink() {
    const wanted = (cbtrace.readState().get("t") || "").split(",").map(Number);
    if (wanted.length === 2 && wanted.every(Number.isFinite) && wanted[1] > wanted[0]) show(wanted[0], wanted[1]);
  }
  addEventListener("hashchange", fromLink);

  cbtrace.showWindow = show;
  addEventListener("cbtrace:step", () => plot.soon());
  const kinds = data.mark_names.map((name, kind) => ({ name, kind })).filter(({ kind }) => whole.marks.kind.includes(kind));
  const fixed = { words, limits: data.limits, kinds, memory: data.memory, span: [first, last] };
  const plot = cbtrace.plot(place, () => ({ from: window_[0], to: window_[1], axis: words["plot.time_axis"], panels: panels(drawn, all, window_, { ...fixed, marks: shown.marks, chosen: cbtrace.chosenStep }) }));
  place.append(cursor, band);
  place.setAttribute("data-drawn", "");
  tell();
  fromLink();
})();
