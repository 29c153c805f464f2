// Charts of an experiment: the reader chooses which number is drawn; the fragment holds the choice.
(function () {
  "use strict";

  const data = cbtrace.arrived.get(document.body.dataset.key);
  const words = data.words;
  const index = new Map(data.metrics.map((metric, at) => [metric.key, at]));
  const latencies = data.latencies;
  const bytes =
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : " +
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : format(datum.value / 1024, '.3~g') + ' KiB'";

  // What an axis of a metric needs: its title, and how its numbers are written.
  function axis(key) {
    const { label, unit } = data.metrics[index.get(key)];
    if (unit === "bytes") return { title: label, labelExpr: bytes };
    if (unit === "%") return { title: label, format: "%" };
    return { title: unit ? `${label}, ${unit}` : label };
  }

  function eachEncoding(spec, channel, change) {
    for (const layer of spec.layer) if (layer.encoding[channel]) change(layer.encoding[channel]);
  }

  // The specification, to be changed, without the layers that nothing is drawn by.
  function drawn(whole, sets) {
    const spec = structuredClone(whole);
    spec.layer = spec.layer.filter((layer) => sets[layer.data.name].length);
    return spec;
  }

  // A limit far above everything that was measured would press it to the floor: it is told in words instead.
  function fits(limit, values) {
    return values.length > 0 && limit <= 2 * Math.max(...values);
  }

  function variableSpec(variable, key) {
    return (whole) => {
      const spec = drawn(whole, variableData(variable, key));
      eachEncoding(spec, "x", (x) => {
        x.scale = { domain: Array.from(new Set(variable.points.map((point) => point.label))) };
        x.axis.title = variable.name;
      });
      eachEncoding(spec, "y", (y) => {
        y.axis = { ...y.axis, ...axis(key) };
      });
      return spec;
    };
  }

  function variableData(variable, key) {
    const at = index.get(key);
    const sets = { runs: [], intervals: [], failures: [], limits: [] };
    for (const point of variable.points) {
      for (const run of point.runs) {
        const kind = run.predicted ? "predicted" : point.start ? "start" : "run";
        if (run.values[at] !== null) sets.runs.push({ label: point.label, value: run.values[at], kind });
      }
      const interval = point.intervals[at];
      if (interval) sets.intervals.push({ label: point.label, mean: interval[0], low: Math.max(0, interval[1]), high: interval[2] });
      const phases = new Set(point.failures.map((failure) => failure.phase));
      for (const phase of phases) sets.failures.push({ label: point.label, phase });
    }
    const limit = data.limits[key];
    if (limit !== undefined && fits(limit, sets.runs.map((run) => run.value))) sets.limits.push({ limit });
    return sets;
  }

  // What stands below a chart: failures by value, and a limit that is above it.
  function variableSaid(variable, key) {
    const failed = variable.points.filter((point) => point.failures.length);
    const one = (point) => `${point.label}: ${Array.from(new Set(point.failures.map((failure) => failure.text))).join("; ")}`;
    const told = failed.length ? [cbtrace.fill(words.failed, { failures: failed.map(one).join(" · ") })] : [];
    return [...told, ...above(key, variableData(variable, key).limits)].join(" ");
  }

  function above(key, drawnLimits) {
    if (!(key in data.limits) || drawnLimits.length) return [];
    const { unit } = data.metrics[index.get(key)];
    const limit = unit === "bytes" ? cbtrace.bytes(data.limits[key]) : `${cbtrace.number(data.limits[key])} ${unit}`;
    return [cbtrace.fill(words.above, { limit })];
  }

  function frontSpec(key) {
    return (whole) => {
      const spec = drawn(whole, frontData(key));
      eachEncoding(spec, "x", (x) => (x.axis = { ...x.axis, ...axis("throughput_generated_tps") }));
      const [low, high] = span(key);
      eachEncoding(spec, "y", (y) => {
        y.axis = { ...y.axis, ...axis(key) };
        if (high <= FAR * low) return;
        y.scale = { type: "log", domain: [low / 1.5, high * 1.5], nice: false };
        y.axis.title += ` (${words.logarithmic})`;
      });
      return spec;
    };
  }

  const FAR = 20; // latencies that are so many times apart are drawn on a logarithmic axis

  // The smallest and largest latency; [0, 0] where one is zero, which no logarithm has.
  function span(key) {
    const values = data.fronts[key].flatMap((row) => row.runs.map((run) => run[latencies.indexOf(key) + 1])).filter((value) => value !== null);
    const low = Math.min(...values);
    return low > 0 ? [low, Math.max(...values)] : [0, 0];
  }

  function frontData(key) {
    const rows = data.fronts[key];
    const [low, high] = span(key);
    const floor = high > FAR * low ? low / 1.5 : 0;
    const column = latencies.indexOf(key) + 1;
    const limit = data.limits[key];
    return {
      points: rows.map((row) => ({ ...row, runs: null, number: data.numbers[row.variant] })),
      runs: rows.flatMap((row) => row.runs.filter((run) => run[0] !== null && run[column] !== null).map((run) => ({ throughput: run[0], latency: run[column] }))),
      front: rows.filter((row) => row.front),
      box: limit !== undefined && fits(limit, rows.map((row) => row.latency)) ? [{ limit, floor }] : [],
    };
  }

  // Charts -------------------------------------------------------------------------------------------------------------

  let charts = [];

  function draw() {
    charts.forEach(cbtrace.undraw);
    charts = [];
    const front = document.querySelector("[data-chart=frontier]");
    const latency = frontSelect ? frontSelect.value : null;
    if (front && latency) charts.push(cbtrace.draw(front, "frontier", () => frontData(latency), () => mark(front, latency), frontSpec(latency)));
    if (front && latency) say(front, above(latency, frontData(latency).box).join(" "));
    const key = metricSelect.value;
    for (const place of key ? document.querySelectorAll("[data-chart=variable]") : []) {
      const variable = data.variables[Number(place.dataset.variable)];
      const values = () => variableData(variable, key);
      const { runs, failures } = values();
      if (runs.length + failures.length === 0) {
        place.replaceChildren();
        say(place, words.nothing);
        continue;
      }
      charts.push(cbtrace.draw(place, "variable", values, () => mark(place, key), variableSpec(variable, key)));
      say(place, variableSaid(variable, key));
    }
  }

  function say(place, sentence) {
    place.parentElement.querySelector("[data-said]").textContent = sentence;
  }

  function mark(place, key) {
    place.dataset.drawn = key;
    place.dataset.scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"; // for paper
  }

  function option(metric) {
    return cbtrace.element("option", { value: metric.key }, metric.unit && metric.unit !== "bytes" && metric.unit !== "%" ? `${metric.label}, ${metric.unit}` : metric.label);
  }

  function fillMetrics(select) {
    for (const group of data.groups) {
      const members = data.metrics.filter((metric) => metric.group === group.id);
      if (members.length) select.append(cbtrace.element("optgroup", { label: group.label }, members.map(option)));
    }
  }

  function choose(select, name, wanted) {
    const there = Array.from(select.options, (it) => it.value);
    const state = cbtrace.readState().get(name);
    select.value = there.includes(state) ? state : there.includes(wanted) ? wanted : there[0] || "";
  }

  const metricSelect = document.querySelector("[data-variable-metric]");
  const frontSelect = document.querySelector("[data-front-metric]");
  fillMetrics(metricSelect);
  if (frontSelect) frontSelect.append(...latencies.filter((key) => index.has(key)).map((key) => option(data.metrics[index.get(key)])));

  function restore() {
    choose(metricSelect, "metric", "throughput_generated_tps");
    if (frontSelect) choose(frontSelect, "latency", "ttft_ms.p95");
    draw();
  }

  for (const [select, name] of [[metricSelect, "metric"], [frontSelect, "latency"]]) {
    if (!select) continue;
    select.addEventListener("change", () => {
      cbtrace.writeState({ [name]: select.value });
      draw();
    });
  }
  addEventListener("hashchange", restore);
  restore();
})();
