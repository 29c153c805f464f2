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

  const LETTER = 7; // pixels, with what stands between two labels

  function variableSpec(place, variable, key) {
    const crowded = LETTER * (variable.labels.join("").length + 2 * variable.labels.length) > place.clientWidth - PLOT.margins;
    return (whole) => {
      const spec = drawn(whole, variableData(variable, key));
      eachEncoding(spec, "x", (x) => {
        x.scale = { domain: variable.labels };
        x.axis.title = variable.name;
        if (crowded) x.axis = { ...x.axis, labelAngle: -50 };
      });
      eachEncoding(spec, "y", (y) => {
        y.axis = { ...y.axis, ...axis(key) };
      });
      return spec;
    };
  }

  function variableData(variable, key) {
    const at = index.get(key);
    const sets = { runs: [], intervals: [], failures: [], limits: [], forecasts: [] };
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
    for (const { label, values, bands } of variable.forecasts) {
      const [low, high] = bands[at] || [values[at], values[at]];
      if (values[at] !== null) sets.forecasts.push({ label, value: values[at], low, high });
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

  function frontSpec(place, key) {
    return (whole) => {
      const spec = drawn(whole, frontData(place, key));
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
    const measured = data.fronts[key].flatMap((row) => row.runs.map((run) => run[latencies.indexOf(key) + 1]));
    const values = [...measured, ...data.forecasts[key].map((row) => row.latency)].filter((value) => value !== null);
    const low = Math.min(...values);
    return low > 0 ? [low, Math.max(...values)] : [0, 0];
  }

  function frontData(place, key) {
    const rows = data.fronts[key];
    const [low, high] = span(key);
    const far = high > FAR * low;
    const floor = far ? low / 1.5 : 0;
    const ceiling = far ? high * 1.5 : Infinity;
    const inside = (value) => Math.min(Math.max(value, floor), ceiling);
    const points = rows.map((row) => ({ ...row, runs: null, number: String(data.numbers[row.variant]) }));
    const forecasts = data.forecasts[key].map(({ number, worth, throughput, latency, ends }) => {
      const [fewest, most] = ends;
      return { number: worth ? number : "", throughput, latency, fewest, most, low: inside(ends[2]), high: inside(ends[3]) };
    });
    giveRoom([...points, ...forecasts], place, far ? [floor, ceiling] : null);
    const column = latencies.indexOf(key) + 1;
    const limit = data.limits[key];
    return {
      points,
      forecasts,
      runs: rows.flatMap((row) => row.runs.filter((run) => run[0] !== null && run[column] !== null).map((run) => ({ throughput: run[0], latency: run[column] }))),
      front: rows.filter((row) => row.front),
      box: limit !== undefined && fits(limit, rows.map((row) => row.latency)) ? [{ limit, floor }] : [],
    };
  }

  // Where labels of points may stand, the best first: right above, left above, right below, ..., farther off.
  const SPOTS = [[8, -8, "left"], [-8, -8, "right"], [8, 15, "left"], [-8, 15, "right"], [0, -14, "center"], [0, 21, "center"],
    [18, -20, "left"], [-18, -20, "right"], [18, 27, "left"], [-18, 27, "right"]];
  const PLOT = { height: 320, margins: 80, line: 12, mark: 6 }; // pixels, as in the specification

  // Gives each point the spot where its label covers least of the marks, and of the labels before it.
  function giveRoom(points, place, logarithmic) {
    const most = Math.max(...points.map((point) => point.most || point.throughput));
    const highest = Math.max(...points.map((point) => point.high || point.latency));
    const width = Math.max(200, place.clientWidth - PLOT.margins);
    const share = (value) => (logarithmic ? Math.log(value / logarithmic[0]) / Math.log(logarithmic[1] / logarithmic[0]) : value / highest);
    const at = points.map((point) => [(width * point.throughput) / most, PLOT.height * (1 - share(point.latency))]);
    const taken = at.map(([x, y]) => [x - PLOT.mark, y - PLOT.mark, x + PLOT.mark, y + PLOT.mark]);
    points.forEach((point, number) => {
      const boxes = SPOTS.map(([dx, dy, align]) => {
        const size = LETTER * point.number.length;
        const left = at[number][0] + dx - (align === "right" ? size : align === "center" ? size / 2 : 0);
        return [left, at[number][1] + dy - PLOT.line, left + size, at[number][1] + dy];
      });
      const covered = boxes.map((box) => taken.reduce((sum, other) => sum + overlap(box, other), 0));
      const best = point.number ? covered.indexOf(Math.min(...covered)) : 0;
      [point.dx, point.dy, point.align] = SPOTS[best];
      if (point.number) taken.push(boxes[best]);
    });
  }

  function overlap(one, other) {
    const [wide, tall] = [0, 1].map((axis) => Math.min(one[axis + 2], other[axis + 2]) - Math.max(one[axis], other[axis]));
    return wide > 0 && tall > 0 ? wide * tall : 0;
  }

  // Charts -------------------------------------------------------------------------------------------------------------

  let charts = [];

  function draw() {
    charts.forEach(cbtrace.undraw);
    charts = [];
    const front = document.querySelector("[data-chart=frontier]");
    const latency = frontSelect ? frontSelect.value : null;
    if (front && latency) charts.push(cbtrace.draw(front, "frontier", () => frontData(front, latency), () => mark(front, latency), frontSpec(front, latency)));
    if (front && latency) say(front, above(latency, frontData(front, latency).box).join(" "));
    const key = metricSelect.value;
    for (const place of key ? document.querySelectorAll("[data-chart=variable]") : []) {
      const variable = data.variables[Number(place.dataset.variable)];
      const values = () => variableData(variable, key);
      const { runs, failures, forecasts } = values();
      if (runs.length + failures.length + forecasts.length === 0) {
        place.replaceChildren();
        say(place, words.nothing);
        continue;
      }
      charts.push(cbtrace.draw(place, "variable", values, () => mark(place, key), variableSpec(place, variable, key)));
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
