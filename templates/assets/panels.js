// What the panels of a run's timeline show, made from the columns of the window's points.
(function () {
  "use strict";

  const MARKS = {
    soft_reset: ["triangle-down", "--mark-reset"],
    offload: ["triangle-left", "--mark-offload"],
    restore: ["triangle-right", "--mark-offload"],
    capture: ["diamond", "--mark-capture"],
    cancel: ["square", "--muted"],
    failure: ["cross", "--mark-failure"],
    out_of_memory: ["cross", "--mark-failure"],
    fatal_error: ["cross", "--mark-failure"],
    oversize: ["triangle-up", "--mark-failure"],
  };
  const MEMORY = {
    reserved: ["--used"],
    allocated: ["--decode"],
    device_used: ["--limit", [5, 3]],
    host_rss: ["--duration", [2, 2]],
  };
  const SMALL = 0.1; // a share of the KV cache below which the panel shows what is used, not the capacity
  const SLOW = 3; // times the median of the points' longest steps: where a step took longer, the strip has a tick
  const GROUPS = ["--used", "--group-b", "--group-c", "--group-d"];

  // Columns to the series of the panels. In a pause of the engine its tokens are zero and the rest is unknown.
  function series({ columns, bucket }, pause) {
    const made = { t: [], bucket };
    const groups = Object.keys(columns).filter((name) => name.startsWith("group_used_")).sort();
    const names = ["prefill", "decode", "recompute", "wasted", "tokens_max", "used", "cached", "used_min", "waiting_max", "waiting_min", "active_max", "active_min", "duration_max", "duration_mean", "gpu"];
    for (const name of names) made[name] = [];
    made.groups = groups.map(() => []);
    const count = columns.start_us.length;
    for (let i = 0; i < count; i += 1) {
      point(made, columns, i);
      groups.forEach((used, group) => made.groups[group].push((group ? made.groups[group - 1][made.t.length - 1] : 0) + columns[used][i]));
      const next = i + 1 < count ? columns.start_us[i + 1] : Infinity;
      if (next - columns.end_us[i] > pause) idle(made, names, columns.end_us[i]);
    }
    made.until = count ? Math.max(columns.end_us[count - 1] / 1e6, made.t[made.t.length - 1]) : 0;
    return made;
  }

  // Tokens are stacked, and means a step.
  function point(made, columns, i) {
    const steps = columns.steps[i];
    const wasted = Math.min(columns.wasted[i], columns.decode[i]);
    const prefill = columns.prefill[i] / steps;
    const decode = prefill + (columns.decode[i] - wasted) / steps;
    const recompute = decode + columns.recompute[i] / steps;
    const known = columns.used_min[i] >= 0;
    const gpu = columns.gpu_sum_us[i];
    made.t.push(columns.start_us[i] / 1e6);
    made.prefill.push(prefill);
    made.decode.push(decode);
    made.recompute.push(recompute);
    made.wasted.push(recompute + wasted / steps);
    made.tokens_max.push(columns.tokens_max[i]);
    made.used.push(known ? columns.used_peak[i] : null);
    made.cached.push(known ? columns.used_peak[i] + columns.cached[i] : null);
    made.used_min.push(known ? columns.used_min[i] : null);
    for (const name of ["waiting_max", "waiting_min", "active_max", "active_min"]) made[name].push(columns[name][i]);
    made.duration_max.push(columns.duration_max_us[i] / 1e3);
    made.duration_mean.push(columns.duration_sum_us[i] / steps / 1e3);
    made.gpu.push(gpu < 0 ? null : Math.min(1, gpu / Math.max(1, columns.duration_sum_us[i])));
  }

  const ZERO_IN_A_PAUSE = new Set(["prefill", "decode", "recompute", "wasted", "tokens_max", "gpu"]);

  function idle(made, names, at_us) {
    made.t.push(at_us / 1e6);
    for (const name of names) made[name].push(ZERO_IN_A_PAUSE.has(name) ? 0 : null);
    for (const group of made.groups) group.push(null);
  }

  function largest(...columns) {
    let most = 0;
    for (const column of columns) for (const value of column) if (value !== null && value > most) most = value;
    return most;
  }

  // Panels over the series of a window. `fixed` is what does not change with it: limits, marks, memory, words.
  function panels(shown, whole, window_, fixed) {
    const { words, limits } = fixed;
    const area = (top, color, bottom, more) => ({ kind: "area", t: shown.t, until: shown.until, top, bottom, color, ...more });
    const band = (name, low, color, dash) => area(shown[name], color, shown[low], { alpha: 0.25, stroke: true, dash });
    const extreme = (top) => (shown.bucket > 1 ? [{ kind: "line", t: shown.t, until: shown.until, top, color: "--muted", width: 0.75 }] : []);
    const upTo = (top, bottom) => (shown.bucket > 1 ? [area(top, "--muted", bottom, { alpha: 0.15 }), ...extreme(top)] : []);
    const rule = (at) => (at === null ? [] : [{ kind: "rule", at, color: "--limit", dash: [5, 3] }]);
    const tokens = {
      title: words["plot.tokens"], height: 120, most: 1.04 * largest(shown.wasted, shown.tokens_max, [limits.token_budget]),
      layers: [area(shown.prefill, "--prefill"), area(shown.decode, "--decode", shown.prefill), area(shown.recompute, "--recompute", shown.decode), area(shown.wasted, "--wasted", shown.recompute), ...upTo(shown.tokens_max, shown.wasted), ...rule(limits.token_budget)],
    };
    const used = largest(whole.cached);
    const capacity = limits.capacity ?? used;
    const small = used > 0 && used < SMALL * capacity; // nothing of it could be seen at the scale of the capacity
    const margin = limits.margin_from === null ? [] : [{ kind: "range", low: limits.margin_from, high: capacity, color: "--reserve", alpha: 0.35 }];
    const kv = {
      title: small ? cbtrace.fill(words["plot.kv_small"], { capacity: cbtrace.bytes(capacity) }) : words["plot.kv"],
      height: 120, bytes: true, most: small ? 1.2 * used : 1.04 * capacity,
      layers: [...margin, area(shown.used, "--used"), area(shown.cached, "--cached", shown.used), ...extreme(shown.used_min), ...rule(limits.capacity)],
    };
    const load = {
      title: words["plot.requests"], height: 70, most: 1.08 * largest(shown.waiting_max, shown.active_max),
      layers: [band("waiting_max", "waiting_min", "--waiting", [4, 2]), band("active_max", "active_min", "--active")],
    };
    const duration = { title: words["plot.step_time"], height: 60, most: 1.08 * largest(shown.duration_max), layers: [band("duration_max", "duration_mean", "--duration")] };
    const over = [tokens, kv, ...groupPanel(shown, whole, fixed), load, duration, ...gpuPanel(shown, whole, words), ...memoryPanel(fixed), ...marksPanel(fixed)];
    if (fixed.chosen) for (const panel of over) panel.layers.push({ kind: "span", ...fixed.chosen, color: "--accent", alpha: 0.22 });
    return [strip(whole, window_, fixed), ...over];
  }

  // The whole run in one strip: how many requests there were, a tick where a step was slow, and the window.
  function strip(whole, [from, to], { words, span }) {
    const { t } = whole;
    const requests = whole.active_max.map((active, i) => (active === null ? null : active + whole.waiting_max[i]));
    const typical = whole.duration_max.filter((duration) => duration !== null).sort((a, b) => a - b);
    const slow = SLOW * typical[typical.length >> 1];
    const ticks = [];
    whole.duration_max.forEach((duration, i) => {
      if (duration > slow) ticks.push({ kind: "span", from: t[i], to: t[i], color: "--duration", alpha: 1 });
    });
    return {
      title: words["plot.overview"], height: 26, most: largest(requests), strip: { from: span[0], to: span[1] },
      layers: [{ kind: "area", t, until: whole.until, top: requests, color: "--muted", alpha: 0.5 }, { kind: "span", from, to, color: "--accent", alpha: 0.22, edges: true }, ...ticks],
    };
  }

  function groupPanel(shown, whole, { words }) {
    const count = shown.groups.length;
    if (!count) return [];
    const layers = shown.groups.map((top, i) => ({ kind: "area", t: shown.t, until: shown.until, top, bottom: i ? shown.groups[i - 1] : undefined, color: GROUPS[i % GROUPS.length] }));
    return [{ title: words["plot.kv_groups"], height: 80, bytes: true, most: 1.04 * largest(whole.groups[whole.groups.length - 1]), layers }];
  }

  function gpuPanel(shown, whole, words) {
    if (!whole.gpu.some((share) => share > 0)) return [];
    return [{ title: words["plot.gpu"], height: 40, percent: true, most: 1, layers: [{ kind: "area", t: shown.t, until: shown.until, top: shown.gpu, color: "--gpu" }] }];
  }

  function memoryPanel({ memory, words }) {
    const names = Object.keys(MEMORY).filter((name) => memory[name]);
    if (!names.length) return [];
    const t = memory.time_us.map((time) => time / 1e6);
    const layers = names.map((name) => {
      const [color, dash] = MEMORY[name];
      return { kind: "line", t, until: t[t.length - 1], top: memory[name].map((bytes) => (bytes < 0 ? null : bytes)), color, dash };
    });
    return [{ title: words["plot.memory"], height: 64, bytes: true, most: 1.05 * largest(...names.map((name) => memory[name])), layers }];
  }

  // One lane a kind that the run has. A mark stands for all events of its kind in its point.
  function marksPanel({ marks, kinds, words }) {
    if (!kinds.length) return [];
    const layers = kinds.map(({ name, kind }, lane) => {
      const [shape, color] = MARKS[name];
      const at = [];
      for (let i = 0; i < marks.kind.length; i += 1) if (marks.kind[i] === kind) at.push([marks.time_us[i] / 1e6, lane]);
      return { kind: "points", shape, color, at };
    });
    return [{ title: words["plot.marks"], lane: 16, rows: kinds.map(({ name }) => words[`mark.${name}`]), layers }];
  }

  cbtrace.timeline = { series, panels };
})();
