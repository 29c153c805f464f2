// What two runs differ by: pure functions over the data of two runs. A is the baseline; a change is B less A.
(function () {
  "use strict";

  // How a change of each kind is called: when B is smaller, when B is larger.
  const WORDS = { time: ["faster", "slower"], rate: ["slower", "faster"], count: ["fewer", "more"], amount: ["less", "more"] };

  // One change, or null when a side is unknown. `judgement` is "good", "bad" or "" where no direction is better.
  function change(a, b, kind, better) {
    if (a === null || b === null || a === undefined || b === undefined) return null;
    const difference = b - a;
    if (difference === 0) return { difference, share: 0, word: "equal", judgement: "" };
    const word = WORDS[kind][difference > 0 ? 1 : 0];
    const wanted = better === "neither" ? 0 : better === "higher" ? 1 : -1;
    const judgement = wanted === 0 ? "" : Math.sign(difference) === wanted ? "good" : "bad";
    return { difference, share: a === 0 ? null : difference / Math.abs(a), word, judgement };
  }

  function names(left, right) {
    return Array.from(new Set([...Object.keys(left), ...Object.keys(right)])).sort();
  }

  // Facts of both runs: [{name, a, b, state}] with state "same", "differs" or "unknown".
  function facts(left, right) {
    return names(left, right).map((name) => {
      const a = name in left ? left[name] : null;
      const b = name in right ? right[name] : null;
      const state = a === null || b === null ? "unknown" : a === b ? "same" : "differs";
      return { name, a, b, state };
    });
  }

  // Settings that differ. A requested setting and what the engine made of it are one change; a resolved value that
  // differs without having been asked for is a change as well.
  function settingChanges(a, b) {
    const requested = facts(a.requested, b.requested).filter((fact) => fact.state === "differs");
    const resolved = facts(a.resolved, b.resolved).filter((fact) => fact.state === "differs");
    const asked = new Set(requested.map((fact) => fact.name));
    const effective = new Set(resolved.map((fact) => fact.name));
    return {
      requested,
      resolved,
      changed: requested.map((fact) => fact.name).filter((name) => effective.has(name) || !(name in a.resolved)),
      followed: resolved.map((fact) => fact.name).filter((name) => !asked.has(name)),
    };
  }

  // Whether the runs can be compared, and why not.
  function verdict(a, b) {
    const conditions = facts(a.conditions, b.conditions);
    const settings = settingChanges(a, b);
    const differs = conditions.filter((fact) => fact.state === "differs").map((fact) => fact.name);
    const unknown = conditions.filter((fact) => fact.state === "unknown").map((fact) => fact.name);
    let kind = "same";
    if (differs.length) kind = "unlike";
    else if (settings.changed.length + settings.followed.length > 1) kind = settings.changed.length === 1 ? "resolved" : "several";
    else if (settings.changed.length + settings.followed.length === 1) kind = "one";
    return {
      kind,
      conditions,
      settings,
      differs,
      unknown,
      predicted: a.predicted || b.predicted,
      incomplete: [a.health, b.health].some((health) => health === "damaged" || health === "incomplete"),
    };
  }

  // All changes of the metrics in `groups`, group by group.
  function deltas(a, b, groups) {
    return groups.map((group) => ({
      label: group.label,
      rows: group.metrics.flatMap((metric) =>
        (metric.statistics.length ? metric.statistics : ["value"]).map((statistic) => {
          const left = a.values[metric.id][statistic];
          const right = b.values[metric.id][statistic];
          return { metric, statistic, a: left, b: right, change: change(left, right, metric.change, metric.better) };
        }),
      ),
    }));
  }

  // Pairs of requests with the same prompt: the n-th of A with the n-th of B. Indices into the runs' lists.
  function pairs(a, b) {
    const waiting = new Map();
    let unhashed = 0;
    a.requests.prompt.forEach((hash, i) => {
      if (hash === "") unhashed += 1;
      else if (waiting.has(hash)) waiting.get(hash).push(i);
      else waiting.set(hash, [i]);
    });
    const found = [];
    let onlyB = 0;
    b.requests.prompt.forEach((hash, j) => {
      const queue = hash === "" ? undefined : waiting.get(hash);
      if (hash === "") unhashed += 1;
      else if (queue && queue.length) found.push([queue.shift(), j]);
      else onlyB += 1;
    });
    const onlyA = Array.from(waiting.values()).reduce((sum, queue) => sum + queue.length, 0);
    return { found, onlyA, onlyB, unhashed };
  }

  // Changes of one latency over the pairs that have it on both sides, sorted.
  function pairedChanges(a, b, found, metric) {
    return found
      .map(([i, j]) => [a.requests[metric][i], b.requests[metric][j]])
      .filter(([x, y]) => x !== null && y !== null)
      .map(([x, y]) => y - x)
      .sort((x, y) => x - y);
  }

  // How many pairs generated the same tokens, of those whose outputs are known.
  function outputs(a, b, found) {
    const known = found.filter(([i, j]) => a.requests.output[i] !== "" && b.requests.output[j] !== "");
    const same = known.filter(([i, j]) => a.requests.output[i] === b.requests.output[j]);
    return { known: known.length, same: same.length, differ: known.length - same.length };
  }

  cbtrace.comparison = { change, facts, settingChanges, verdict, deltas, pairs, pairedChanges, outputs };
})();
