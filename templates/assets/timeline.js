// The timeline of a run: makes rows for the panels, and moves the window by pointer, keyboard, buttons and links.
(function () {
  "use strict";

  const place = document.querySelector('[data-chart="timeline"]');
  const data = cbtrace.arrived.get(document.body.dataset.key);
  if (!place || !data || !data.rows.start_us.length) return;

  const DRAWN = 400; // points that a window is drawn with at most
  const PATIENCE = 60; // ms until a window is shown with the points at hand, while finer ones are loaded
  const words = data.words;
  const readout = document.querySelector("[data-readout]");
  const status = document.querySelector("[data-window]");
  const whole = { columns: data.rows, bucket: data.bucket };
  const first = data.rows.start_us[0] / 1e6;
  const last = Math.max(first + 1e-6, data.rows.end_us[data.rows.end_us.length - 1] / 1e6);
  const meanStep = data.rows.duration_sum_us.reduce((a, b) => a + b, 0) / data.steps;
  const pause = Math.max(5 * meanStep, 20_000); // µs without a batch that are shown as such
  const memorySeries = Object.keys(data.memory).filter((name) => name !== "time_us");
  let shown = whole; // the columns that the panels show
  let window_ = [first, last];
  let view = null;
  let plot = null; // where the panels are within the drawing
  let asked = 0;

  // Columns to the rows of the panels. After a pause of the engine its tokens are zero and the rest unknown.
  function rows({ columns }) {
    const made = [];
    const count = columns.start_us.length;
    for (let i = 0; i < count; i += 1) {
      const steps = columns.steps[i];
      const known = columns.used_min[i] >= 0;
      const wasted = Math.min(columns.wasted[i], columns.decode[i]);
      const prefill = columns.prefill[i] / steps;
      const decode = prefill + (columns.decode[i] - wasted) / steps;
      const recompute = decode + columns.recompute[i] / steps;
      made.push({
        t: columns.start_us[i] / 1e6,
        zero: 0,
        prefill_top: prefill,
        decode_top: decode,
        recompute_top: recompute,
        wasted_top: recompute + wasted / steps,
        tokens_max: columns.tokens_max[i],
        used: known ? columns.used_peak[i] : null,
        used_and_cached: known ? columns.used_peak[i] + columns.cached[i] : null,
        used_min: known ? columns.used_min[i] : null,
        waiting_max: columns.waiting_max[i],
        waiting_min: columns.waiting_min[i],
        active_max: columns.active_max[i],
        active_min: columns.active_min[i],
        duration_max: columns.duration_max_us[i] / 1e3,
        duration_mean: columns.duration_sum_us[i] / steps / 1e3,
        gpu_share: columns.gpu_sum_us[i] < 0 ? null : Math.min(1, columns.gpu_sum_us[i] / Math.max(1, columns.duration_sum_us[i])),
      });
      const next = i + 1 < count ? columns.start_us[i + 1] : Infinity;
      if (next - columns.end_us[i] > pause) made.push(idle(columns.end_us[i] / 1e6));
    }
    return made;
  }

  function idle(t) {
    return { t, zero: 0, prefill_top: 0, decode_top: 0, recompute_top: 0, wasted_top: 0, tokens_max: 0, 
      used: null, used_and_cached: null, used_min: null, waiting_max: null, waiting_min: null,
      active_max: null, active_min: null, duration_max: null, duration_mean: null, gpu_share: 0 };
  }

  // The index of the last entry that is not after `value`, at least 0.
  function position(sorted, value) {
    let low = 0;
    let high = sorted.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (sorted[middle] <= value) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  function joined(parts) {
    const made = {};
    if (parts.length === 1) return parts[0];
    for (const name of Object.keys(parts[0])) made[name] = [].concat(...parts.map((part) => part[name]));
    return made;
  }

  function within(columns, from, to) {
    const start = position(columns.start_us, from * 1e6);
    const end = position(columns.start_us, to * 1e6) + 1;
    const made = {};
    for (const name of Object.keys(columns)) made[name] = columns[name].slice(start, end);
    return made;
  }

  // The finest level of zoom that shows the window in at most DRAWN points. Its files are loaded when first needed.
  async function finest(from, to) {
    for (const level of [...data.levels].reverse()) {
      const start = position(level.starts, from * 1e6);
      const end = position(level.starts, to * 1e6);
      if (end - start > 1) continue;
      const keys = level.keys.slice(start, end + 1);
      const parts = await Promise.all(keys.map((key) => cbtrace.need(key, data.sources[key])));
      const columns = within(joined(parts), from, to);
      if (columns.start_us.length <= DRAWN) return { columns, bucket: level.bucket };
    }
    return whole;
  }

  function tell() {
    const bucket = shown.bucket === 1 ? words["timeline.js.each"] : cbtrace.fill(words["timeline.js.bucket"], { count: shown.bucket });
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
    cbtrace.window = window_;
    dispatchEvent(new Event("cbtrace:window"));
    if (!view) return;
    view.signal("window_from", window_[0]).signal("window_to", window_[1]).signal("kv_ticks", kvTicks()).signal("memory_ticks", memoryTicks()).signal("extremes", shown.bucket > 1 ? 1 : 0);
    view.data("steps", rows(shown)).data("window", [{ from: window_[0], to: window_[1] }]);
    const wanted = window_.join();
    view.runAsync().then(() => place.setAttribute("data-shown-window", wanted));
  }

  // About four round amounts of bytes up to the largest: powers of two, or three times one.
  function ticks(most) {
    let step = 2 ** Math.max(0, Math.floor(Math.log2(most / 4)));
    if (most / step > 6) step *= 1.5;
    return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
  }

  function kvTicks() {
    return ticks(data.limits.capacity || Math.max(1, ...data.rows.used_peak));
  }

  function memoryTicks() {
    return ticks(Math.max(1, ...memorySeries.flatMap((name) => data.memory[name])));
  }

  function limits() {
    // A limit that is unknown is not drawn, and must not stretch its axis.
    const known = (value) => (value === null ? 0 : 1);
    const { token_budget: budget, capacity, margin_from: margin } = data.limits;
    const kv = capacity ?? Math.max(...data.rows.used_peak);
    return [{
      token_budget: budget ?? Math.max(...data.rows.tokens_max),
      token_budget_opacity: known(budget),
      capacity: kv,
      capacity_opacity: known(capacity),
      margin_from: margin ?? kv,
    }];
  }

  function memoryRows() {
    return memorySeries.flatMap((series) =>
      data.memory[series].map((bytes, i) => ({ t: data.memory.time_us[i] / 1e6, series, bytes })).filter((row) => row.bytes >= 0));
  }

  // Without the panels that have nothing to show in this run.
  function adapted(spec) {
    const absent = new Set();
    if (!data.rows.gpu_sum_us.some((time) => time >= 0)) absent.add("gpu_panel");
    if (!memorySeries.length) absent.add("memory_panel");
    return { ...spec, vconcat: spec.vconcat.filter((view) => !absent.has(view.name)) };
  }

  function markRows() {
    return data.marks.time_us.map((time, i) => ({ t: time / 1e6, kind: data.marks.kind[i], label: words[`mark.${data.marks.kind[i]}`] }));
  }

  // Where the plots lie: the groups of the concatenated views, in the coordinates of the element.
  function measure() {
    const [left, top] = view.origin();
    const groups = view.scenegraph().root.items[0].items.filter((mark) => mark.role === "scope").flatMap((mark) => mark.items);
    const strip = groups[0];
    plot = { left: left + strip.x, width: strip.width, top, stripBottom: top + strip.y + strip.height + 5 };
  }

  function timeAt(x, inStrip) {
    const [from, to] = inStrip ? [first, last] : window_;
    const share = Math.min(1, Math.max(0, (x - plot.left) / plot.width));
    return from + share * (to - from);
  }

  function ready(made) {
    view = made;
    measure();
    apply();
    cursor.remove();
    band.remove();
    place.append(cursor, band);
    place.setAttribute("data-drawn", "");
  }

  const cursor = cbtrace.element("div", { class: "cursor", hidden: true });
  const band = cbtrace.element("div", { class: "band", hidden: true });
  let drag = null;

  function at(event) {
    const box = place.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  function stretch(from, to) {
    band.style.left = `${Math.max(plot.left, Math.min(from, to))}px`;
    band.style.width = `${Math.min(plot.left + plot.width, Math.max(from, to)) - Math.max(plot.left, Math.min(from, to))}px`;
  }

  place.addEventListener("pointerdown", (event) => {
    if (!plot || event.button !== 0 || event.pointerType === "touch") return;
    const point = at(event);
    if (point.x < plot.left - 4 || point.x > plot.left + plot.width + 4) return;
    drag = { x: point.x, strip: point.y < plot.stripBottom };
    place.setPointerCapture(event.pointerId);
  });

  place.addEventListener("pointermove", (event) => {
    if (!plot) return;
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
    const inStrip = point.y < plot.stripBottom;
    const inside = point.x >= plot.left && point.x <= plot.left + plot.width;
    cursor.hidden = !inside;
    if (!inside) return;
    cursor.style.left = `${point.x}px`;
    const columns = inStrip ? whole.columns : shown.columns;
    const i = position(columns.start_us, timeAt(point.x, inStrip) * 1e6);
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
    const inStrip = point.y < plot.stripBottom;
    const at = timeAt(point.x, inStrip);
    if (inStrip || shown.bucket > 1) {
      const width = (window_[1] - window_[0]) / 8;
      show(at - width / 2, at + width / 2);
      return;
    }
    cbtrace.setState({ step: shown.columns.first_step[position(shown.columns.start_us, at * 1e6)] });
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
    const link = event.target instanceof Element && event.target.closest("[data-window-link]");
    if (link) show(...link.dataset.windowLink.split(",").map(Number), false);
  });

  function fromLink() {
    const wanted = (cbtrace.readState().get("t") || "").split(",").map(Number);
    if (wanted.length === 2 && wanted.every(Number.isFinite) && wanted[1] > wanted[0]) show(wanted[0], wanted[1]);
  }
  addEventListener("hashchange", fromLink);

  cbtrace.showWindow = show;
  cbtrace.draw(
    place,
    "timeline",
    () => ({ overview: rows(whole), steps: rows(shown), window: [{ from: window_[0], to: window_[1] }], limits: limits(), memory: memoryRows(), marks: markRows() }),
    ready,
    adapted,
  );
  tell();
  fromLink();
})();
