// Where the time and the memory went, A beside B, and what happened in each.
(function () {
  "use strict";

  const { element, number, compareDetails: details } = cbtrace;
  const { site, words, text, signed, amount, withUnit, percent, table, row, section, folded, chart, direction, metricName, NONE, HEADS } = cbtrace.compareDom;
  const MS = 1e6;

  function whereSection(a, b) {
    const several = a.runs.length > 1 || b.runs.length > 1;
    const told = [words.where_text, several ? words.where_several : words.within_one];
    const cuts = ["ttft", "gap"].map((name) => cut(name, a, b));
    return section("where", words.where, told.map((sentence) => element("p", {}, sentence)), cuts);
  }

  function cut(name, a, b) {
    const [all, slow] = ["all", "slow"].map((part) => details.cutChanges(a.runs, b.runs, name, part, site.pieces));
    const id = `where-${name}`;
    if (!all) return element("div", { id }, element("h3", {}, words[`where_${name}_none`]));
    const title = cutTitle(name, all);
    const bars = () => ({ bars: all.rows.flatMap((one, rank) => ["a", "b"].map((side) => ({ label: site.labels.piece[one.piece], rank, run: side.toUpperCase(), amount: one[side] / MS }))) });
    return element("div", { id }, element("h3", {}, title), chart("cut_bars", title, bars), folded(words.where_table, cutTable(name, all, slow)));
  }

  function cutTitle(name, cut) {
    const { change } = cut.total;
    const values = { change: `${signed("ms", change / MS)} ms`, word: direction("time", change) };
    const grown = cut.rows.filter((one) => Math.sign(one.change) === Math.sign(change)).sort((x, y) => Math.abs(y.change) - Math.abs(x.change))[0];
    if (!grown) return text(`where_${name}_equal`, values);
    return text(`where_${name}_title`, { ...values, piece: site.labels.piece[grown.piece], amount: `${signed("ms", grown.change / MS)} ms` });
  }

  function cutTable(name, all, slow) {
    const cells = (one) => (one ? [amount("ms", one.a / MS), amount("ms", one.b / MS), signed("ms", one.change / MS)] : [NONE, NONE, NONE]);
    const rows = all.rows.map((one) => row(site.labels.piece[one.piece], [...cells(one), ...cells(slow && slow.rows.find((other) => other.piece === one.piece))], { "data-piece": one.piece }));
    rows.push(row(words.where_sum, [...cells(all.total), ...cells(slow && slow.total)], { class: "group", "data-piece": "sum" }));
    const counts = { n_a: number(all.total.n_a), n_b: number(all.total.n_b) };
    const heads = [[words.piece, false], ...["where_all", "where_slow"].flatMap((part) => HEADS.map(([label, numeric]) => [`${words[part]}: ${label}`, numeric]))];
    return table(text(`where_${name}_caption`, counts), heads, rows);
  }

  // Counts are of all runs of a side; where sides hold several runs, they are means a run.
  function happenedSection(a, b) {
    const rows = [];
    for (const kind of site.events) {
      for (const measure of ["count", "bytes", "duration_ns"]) {
        const [left, right] = [a, b].map((side) => details.mean(side.runs.map((run) => run.happened[kind][measure])));
        const empty = measure !== "count" && !left && !right;
        if (!empty) rows.push(happenedRow(kind, measure, left, right));
      }
    }
    rows.push(...site.counts.map((metric) => valueRow(metric, a, b)));
    const told = [element("p", {}, a.runs.length > 1 || b.runs.length > 1 ? words.happened_several : words.happened_text)];
    return section("happened", words.happened, told, table(words.happened_caption, [[words.what, false], ...HEADS, [words.direction, false]], rows), failures(a, b));
  }

  function happenedRow(kind, measure, left, right) {
    const unit = measure === "bytes" ? "bytes" : measure === "duration_ns" ? "ms" : "";
    const scale = measure === "duration_ns" ? 1 / MS : 1;
    const [x, y] = [left, right].map((value) => (value === null ? null : value * scale));
    const label = measure === "count" ? site.labels.event[kind] : text(`event_${measure}`, { what: site.labels.event[kind] });
    return changeRow(label, unit, x, y, measure === "count" ? "count" : "amount", kind);
  }

  function valueRow({ metric, label, change }, a, b) {
    const [x, y] = [a, b].map((side) => details.mean(side.runs.map((run) => run.values[metric])));
    return changeRow(metricName(metric, label), "", x, y, change, metric);
  }

  function changeRow(label, unit, x, y, kind, id) {
    const change = x === null || y === null ? null : y - x;
    const word = change === null ? NONE : direction(kind, change);
    return row(label, [withUnit(unit, amount(unit, x)), withUnit(unit, amount(unit, y)), withUnit(unit, signed(unit, change)), element("td", {}, word)], { "data-happened": id });
  }

  function failures(a, b) {
    const sums = [a, b].map((side) => details.sums(side.runs.map((run) => run.failures)));
    const names = Array.from(new Set(sums.flatMap((sum) => Object.keys(sum)))).sort();
    if (!names.length) return null;
    const rows = names.map((name) => row(element("bdi", { class: "id" }, name || words.no_class), [...sums.map((sum) => number(sum[name] || 0)), signed("", (sums[1][name] || 0) - (sums[0][name] || 0))]));
    return table(words.failures_caption, [[words.failure, false], ...HEADS], rows);
  }

  // Budgets of one run a side: measured terms add up to the device only within a run.
  function budgetSection(a, b) {
    return section("budgets", words.budgets, kvBudget(a.kv, b.kv), measured(a.memory.measured, b.memory.measured), predicted(a.memory.predicted, b.memory.predicted));
  }

  function kvBudget(left, right) {
    if (!left || !right) return [element("h3", {}, words.kv_none)];
    const used = (kv) => (kv.peak_used_bytes === null ? NONE : percent(kv.peak_used_bytes / kv.capacity_bytes).replace("+", ""));
    const title = text("kv_title", { a: amount("bytes", left.capacity_bytes), b: amount("bytes", right.capacity_bytes), change: signed("bytes", right.capacity_bytes - left.capacity_bytes), used_a: used(left), used_b: used(right) });
    return budget("kv", title, words.kv_caption, site.kv.map((name) => [site.labels.kv[name], left[name], right[name]]));
  }

  function measured(left, right) {
    if (!left || !right) return [element("h3", {}, words.memory_none)];
    const title = text("memory_title", { a: amount("bytes", left.total - left.terms.free), b: amount("bytes", right.total - right.terms.free), change: signed("bytes", right.total - right.terms.free - (left.total - left.terms.free)) });
    const rows = site.memory.map((name) => [site.labels.memory[name], left.terms[name] ?? null, right.terms[name] ?? null]);
    return budget("memory", title, words.memory_caption, rows, [site.labels.memory.total, left.total, right.total]);
  }

  function predicted(left, right) {
    const names = Array.from(new Set([...Object.keys(left), ...Object.keys(right)])).sort();
    if (!names.length) return [];
    return budget("predicted", words.predicted_title, words.predicted_caption, names.map((name) => [site.labels.predicted[name] || name, left[name] ?? null, right[name] ?? null]));
  }

  function budget(id, title, caption, rows, total) {
    const change = (x, y) => (x === null || y === null ? null : y - x);
    const made = [...rows, ...(total ? [total] : [])].map(([label, x, y]) => row(label, [amount("bytes", x), amount("bytes", y), signed("bytes", change(x, y))]));
    const bars = () => ({ bars: rows.flatMap(([label, x, y], rank) => [["A", x], ["B", y]].map(([run, value]) => ({ label, rank, run, amount: value }))) });
    const most = Math.max(...rows.flatMap(([, x, y]) => [x, y]));
    return [element("h3", { id: `budget-${id}` }, title), chart("budget_bars", title, bars, most), table(caption, [[words.term, false], ...HEADS], made)];
  }

  cbtrace.compareWhere = { whereSection, happenedSection, budgetSection };
})();
