// What lies behind the numbers of two sides: curves, cuts, paired requests. Pure functions over the data of their runs.
(function () {
  "use strict";

  function mean(list) {
    const known = list.filter((value) => value !== null && value !== undefined);
    return known.length ? cbtrace.noise.exactSum(known) / known.length : null;
  }

  // Sums by name over several counts.
  function sums(counts) {
    const made = Object.create(null); // names come from traces: "__proto__" is one of them
    for (const count of counts) for (const [name, value] of Object.entries(count)) made[name] = (made[name] || 0) + value;
    return made;
  }

  // Changes at each stored probability: the means over the runs of each side, and the range over all pairs of runs.
  function curveChanges(left, right) {
    return left[0].map((_, i) => {
      const [of, to] = [left.map((curve) => curve[i]), right.map((curve) => curve[i])];
      const [a, b] = [mean(of), mean(to)];
      return { a, b, change: b - a, low: Math.min(...to) - Math.max(...of), high: Math.max(...to) - Math.min(...of) };
    });
  }

  function nearest(probabilities, wanted) {
    let best = 0;
    probabilities.forEach((value, i) => {
      if (Math.abs(value - wanted) < Math.abs(probabilities[best] - wanted)) best = i;
    });
    return best;
  }

  // A cut pooled over the runs of a side, whole nanoseconds; null when nothing was cut.
  function pooled(runs, name, part) {
    const cuts = runs.map((run) => run.cuts[name][part]);
    const n = cuts.reduce((sum, cut) => sum + cut.n, 0);
    if (!n) return null;
    return { n, total_ns: cuts.reduce((sum, cut) => sum + cut.total_ns, 0), pieces: sums(cuts.map((cut) => cut.pieces)) };
  }

  // Which piece grew: nanoseconds of the mean request (or gap) by piece, in `order`; they add up to the total.
  function cutChanges(runsA, runsB, name, part, order) {
    const [a, b] = [pooled(runsA, name, part), pooled(runsB, name, part)];
    if (!a || !b) return null;
    const change = (x, y) => ({ a: x / a.n, b: y / b.n, change: y / b.n - x / a.n });
    const used = order.filter((piece) => a.pieces[piece] || b.pieces[piece]);
    return {
      rows: used.map((piece) => ({ piece, ...change(a.pieces[piece] || 0, b.pieces[piece] || 0) })),
      total: { n_a: a.n, n_b: b.n, ...change(a.total_ns, b.total_ns) },
    };
  }

  // Pairs the n-th of A with the n-th of B of the same name, in order of submission. "" is no name.
  function match(left, right) {
    const waiting = new Map();
    left.forEach((name, i) => {
      if (name !== "") waiting.set(name, [...(waiting.get(name) || []), i]);
    });
    const found = [];
    right.forEach((name, j) => {
      const queue = name === "" ? undefined : waiting.get(name);
      if (queue && queue.length) found.push([queue.shift(), j]);
    });
    return found;
  }

  // Pairs of requests, as indices into the lists of both runs. Runs of one workload have the same requests by number;
  // others are matched by the hash of the prompt. Requests whose prompts are known to differ are no pair.
  function pairs(a, b) {
    const [digest, other] = [a, b].map((run) => run.conditions["workload.digest"] || null);
    const by = digest !== null && digest === other ? "index" : "prompt";
    const [left, right] = [a.requests, b.requests];
    const alike = ([i, j]) => left.prompt[i] === right.prompt[j] || left.prompt[i] === "" || right.prompt[j] === "";
    const found = by === "index" ? match(left.key, right.key).filter(alike) : match(left.prompt, right.prompt);
    found.sort((x, y) => x[0] - y[0]);
    const rest = (list, at) => {
      const taken = new Set(found.map((pair) => pair[at]));
      return list.map((_, i) => i).filter((i) => !taken.has(i));
    };
    const unhashed = [...left.prompt, ...right.prompt].filter((hash) => hash === "").length;
    return { by, found, onlyA: rest(left.prompt, 0), onlyB: rest(right.prompt, 1), unhashed };
  }

  // Changes of one latency over the pairs that have it on both sides, sorted.
  function pairedChanges(a, b, found, metric) {
    return found
      .map(([i, j]) => ({ i, j, a: a.requests[metric][i], b: b.requests[metric][j] }))
      .filter((pair) => pair.a !== null && pair.b !== null)
      .map((pair) => ({ ...pair, change: pair.b - pair.a }))
      .sort((x, y) => x.change - y.change);
  }

  // How many pairs generated the same tokens, of those whose outputs are known, and which did not.
  function outputs(a, b, found) {
    const known = found.filter(([i, j]) => a.requests.output[i] !== "" && b.requests.output[j] !== "");
    const differ = known.filter(([i, j]) => a.requests.output[i] !== b.requests.output[j]);
    return { known: known.length, same: known.length - differ.length, differ };
  }

  // The first position, from 1, at which two lists of token ids differ; null where one is not known or none differs.
  function firstDifference(a, b) {
    if (!a || !b) return null;
    const at = a.findIndex((id, i) => id !== b[i]);
    const position = at >= 0 ? at : a.length < b.length ? a.length : -1;
    return position < 0 ? null : { position: position + 1, a: a[position] ?? null, b: b[position] ?? null };
  }

  // The extremes of a timeline from one instant to another, ms; null where it has no point.
  function slice(timeline, from, to) {
    const inside = timeline.start_ms.map((_, i) => i).filter((i) => timeline.start_ms[i] < to && timeline.end_ms[i] > from);
    if (!inside.length) return null;
    const most = (column) => {
      const known = inside.map((i) => column[i]).filter((value) => value !== null);
      return known.length ? Math.max(...known) : null;
    };
    return { step: most(timeline.step_max_ms), waiting: most(timeline.waiting_max), used: most(timeline.used_peak) };
  }

  cbtrace.compareDetails = { mean, sums, curveChanges, nearest, cutChanges, pairs, pairedChanges, outputs, firstDifference, slice };
})();
