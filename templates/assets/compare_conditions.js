// Can two sides be compared, and what differs between them? Says the same as site/analysis/comparability.py, which
// explains the rules and sends them along as data; a test runs both over many runs.
(function () {
  "use strict";

  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

  // The different values of a side, in order.
  function known(values) {
    return Array.from(new Set(values.filter((value) => value !== null)));
  }

  function differ(a, b) {
    const [left, right] = [known(a), known(b)];
    return left.length > 0 && right.length > 0 && JSON.stringify(left) !== JSON.stringify(right);
  }

  function shown(values) {
    return known(values).join(", ") || null;
  }

  function numbers(values) {
    const found = values.filter((value) => value !== null);
    return found.every((value) => NUMBER.test(value)) ? found.map(Number) : [];
  }

  function names(facts) {
    return Array.from(new Set(facts.flatMap(Object.keys))).sort(byCodePoint);
  }

  // The order in which Python sorts, so that both list the same first.
  function byCodePoint(a, b) {
    const [left, right] = [Array.from(a), Array.from(b)];
    for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
      if (left[i] !== right[i]) return left[i].codePointAt(0) - right[i].codePointAt(0);
    }
    return left.length - right.length;
  }

  function get(texts, name) {
    return Object.hasOwn(texts, name) ? texts[name] : null;
  }

  function category(name, rules) {
    const rule = rules.categories.find(([start]) => name.startsWith(start));
    return rule ? rule[1] : "environment";
  }

  function conditions(a, b, rules) {
    const facts = names([...a, ...b].map((run) => run.conditions)).map((name) => {
      const [left, right] = [a, b].map((runs) => runs.map((run) => get(run.conditions, name)));
      const mixed = known(left).length > 1 || known(right).length > 1;
      const state = mixed || differ(left, right) ? "differs" : [...left, ...right].includes(null) ? "unknown" : "same";
      return { name, category: category(name, rules), a: shown(left), b: shown(right), state, mixed };
    });
    return oneWorkload(facts);
  }

  // A digest of the whole workload decides alone.
  function oneWorkload(facts) {
    const deciding = facts.find((fact) => fact.name === "workload.digest" && fact.state !== "unknown");
    if (!deciding || deciding.state === "differs") return facts;
    return facts.filter((fact) => fact.category !== "workload" || fact === deciding);
  }

  // One setting over the runs of both sides, and what can be said of it alone.
  function settingOf(name, a, b, rules) {
    const [requestedA, requestedB] = [a, b].map((runs) => runs.map((run) => get(run.requested, name)));
    const [resolvedA, resolvedB] = [a, b].map((runs) => runs.map((run) => get(run.resolved, name)));
    const requested = [...requestedA, ...requestedB];
    const asked = differ(requestedA, requestedB);
    const bothKnown = known(resolvedA).length > 0 && known(resolvedB).length > 0;
    return {
      name,
      requestedA,
      requestedB,
      resolvedA,
      resolvedB,
      asked,
      mixed: [[requestedA, resolvedA], [requestedB, resolvedB]].some(([asks, has]) => known(has).length > 1 && !wavers(name, asks, has, rules)),
      differs: bothKnown ? differ(resolvedA, resolvedB) : asked,
      pinned: !requested.some((value) => isUnasked(value, rules)),
      wavers: bothKnown && wavers(name, requested, [...resolvedA, ...resolvedB], rules),
    };
  }

  function isUnasked(value, rules) {
    return value === null || rules.unasked.includes(value);
  }

  // Whether these are automatic sizes that differ by no more than free memory does.
  function wavers(name, requested, resolved, rules) {
    if (!rules.automatic.includes(name) || !requested.every((value) => isUnasked(value, rules))) return false;
    const found = numbers(resolved);
    return found.length > 0 && Math.max(...found) <= Math.min(...found) * (1 + rules.automatic_share);
  }

  // The share of memory only decides sizes. It does nothing where these are asked for, come out the same, or were
  // changed themselves: then the size is the variable.
  function inert(name, found, rules) {
    if (name !== "max_memory_percent") return false;
    const sizes = rules.automatic.filter((size) => found.has(size)).map((size) => found.get(size));
    const settled = (size) => size.pinned || size.asked || (known(size.resolvedA).length > 0 && !size.differs && !size.mixed);
    return sizes.length === rules.automatic.length && sizes.every(settled);
  }

  function role(setting, changed, found, rules) {
    if (setting.wavers) return "automatic";
    if (changed.has(setting.name)) return "changed";
    const sources = rules.derived[setting.name] || [];
    if (!setting.asked && sources.some((source) => changed.has(source))) return "derived";
    return inert(setting.name, found, rules) ? "inert" : "followed";
  }

  function settings(a, b, rules) {
    const all = names([...a, ...b].flatMap((run) => [run.requested, run.resolved])).map((name) => settingOf(name, a, b, rules));
    const found = new Map(all.map((setting) => [setting.name, setting]));
    const differing = all.filter((setting) => setting.differs || setting.mixed);
    const changed = new Set(differing.filter((setting) => setting.asked && !inert(setting.name, found, rules)).map((setting) => setting.name));
    return differing.map((setting) => ({
      name: setting.name,
      role: role(setting, changed, found, rules),
      requested_a: shown(setting.requestedA),
      requested_b: shown(setting.requestedB),
      resolved_a: shown(setting.resolvedA),
      resolved_b: shown(setting.resolvedB),
      mixed: setting.mixed,
    }));
  }

  function tags(a, b, rules) {
    const written = [...a, ...b].some((run) => Object.hasOwn(run.tags, "experiment")) ? rules.experiment_tags : [];
    return names([...a, ...b].map((run) => run.tags)).flatMap((name) => {
      const [left, right] = [a, b].map((runs) => Array.from(new Set(runs.map((run) => get(run.tags, name) || ""))));
      const declared = !written.includes(name) && left.length === 1 && right.length === 1 && left[0] !== right[0];
      return declared ? [{ name, a: left[0], b: right[0] }] : [];
    });
  }

  function kindOf(counted, found, declared, predicted) {
    const variables = found.filter(isVariable).length;
    const changed = found.filter((setting) => setting.role === "changed").length;
    if (predicted) return "predicted";
    if (counted.some((fact) => fact.mixed) || found.some((setting) => setting.mixed && isVariable(setting))) return "mixed";
    if (counted.some((fact) => fact.state === "differs")) return "unlike";
    if (variables > 1) return changed === 1 ? "resolved" : "several";
    if (variables === 1) return "one";
    return declared.length ? "declared" : "same";
  }

  function isVariable(setting) {
    return setting.role === "changed" || setting.role === "followed";
  }

  // Whether all runs of one side were recorded before the first of the other. One run a side is no order.
  function apart(a, b) {
    return Math.min(a.length, b.length) > 1 && (Math.max(...a) < Math.min(...b) || Math.max(...b) < Math.min(...a));
  }

  // Compares the runs of A with the runs of B, each one or more.
  function compareConditions(a, b, rules) {
    const facts = conditions(a, b, rules);
    const batching = facts.some((fact) => fact.category === "batching" && fact.state === "differs");
    const found = batching ? [] : settings(a, b, rules);
    const declared = tags(a, b, rules);
    const counted = facts.filter((fact) => !rules.no_condition.includes(fact.category));
    const kind = kindOf(counted, found, declared, [...a, ...b].some((run) => run.predicted));
    const unlike = counted.filter((fact) => fact.state === "differs");
    const categories = Array.from(new Set(unlike.map((fact) => fact.category))).sort();
    const measured = kind !== "mixed" && kind !== "predicted";
    return {
      kind,
      conditions: facts,
      settings: found,
      tags: declared,
      whole: [...a, ...b].every((run) => run.whole),
      apart: apart(...[a, b].map((runs) => runs.map((run) => run.recorded_us))),
      unlike,
      unknown: counted.filter((fact) => fact.state === "unknown"),
      categories,
      variables: ["changed", "followed"].flatMap((wanted) => found.filter((setting) => setting.role === wanted).map((setting) => setting.name)),
      same_work: measured && !categories.some((name) => rules.other_work.includes(name)),
      attributable: measured && kind !== "same" && !categories.some((name) => rules.not_to_blame.includes(name)),
    };
  }

  cbtrace.compareConditions = compareConditions;
})();
