// The compare page: choose two runs, and show what they differ by.
(function () {
  "use strict";

  const { element, fill, number, bytes, comparison } = cbtrace;
  const site = cbtrace.arrived.get("runs");
  const words = site.words;
  const form = document.querySelector("[data-choose]");
  const place = document.querySelector("[data-comparison]");
  const bySlug = new Map(site.runs.map((run) => [run.slug, run]));
  let charts = [];
  let asked = 0;

  function text(key, values) {
    return fill(words[key], values || {});
  }

  // Names come from traces and may hold anything: they are text, isolated from the direction of what is around them.
  function isolated(value) {
    return element("bdi", { class: "id" }, value === null ? "\u2014" : value);
  }

  function table(caption, heads, rows) {
    const head = element("tr", {}, heads.map(([label, numeric]) => element("th", { scope: "col", class: numeric ? "num" : null }, label)));
    const made = element("table", { class: "data" }, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, rows));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
  }

  function section(id, title, ...content) {
    return element("section", { id, "aria-labelledby": `${id}-h` }, element("h2", { id: `${id}-h` }, title), ...content);
  }

  function valueText(metric, value) {
    if (value === null || value === undefined) return "\u2014";
    if (metric.unit === "bytes") return bytes(value);
    if (metric.unit === "%") return `${number(100 * value)} %`;
    return number(value);
  }

  function signed(metric, value) {
    if (value === 0) return valueText(metric, 0);
    return (value > 0 ? "+" : "\u2212") + valueText(metric, Math.abs(value));
  }

  function percent(share) {
    if (share === null) return "\u2014";
    const size = Math.abs(100 * share);
    const digits = size < 10 ? 1 : 0;
    return share === 0 ? "0 %" : `${share > 0 ? "+" : "\u2212"}${size.toFixed(digits)} %`;
  }

  function sides(a, b) {
    const side = (label, run) =>
      element("tr", {}, element("th", { scope: "row" }, element("span", { class: `run-${label.toLowerCase()}` }, label)), element("td", {}, isolated(run.name)), element("td", {}, run.model), element("td", {}, run.recorded), element("td", {}, element("a", { href: `runs/${run.slug}/index.html` }, words.open)));
    return table(words.run, [["", false], [words.run, false], [words.model, false], [words.recorded, false], ["", false]], [side("A", a), side("B", b)]);
  }

  function verdictSection(a, b, verdict) {
    const said = [];
    const { settings } = verdict;
    if (a.slug === b.slug) said.push(["info", words.same_run]);
    else if (verdict.kind === "unlike") said.push(["warning", text("verdict_unlike", { names: verdict.differs.join(", ") })]);
    else if (verdict.kind === "several") said.push(["warning", text("verdict_several", { count: settings.changed.length + settings.followed.length })]);
    else if (verdict.kind === "resolved") said.push(["warning", text("verdict_resolved", { name: settings.changed[0], others: settings.followed.join(", ") })]);
    else if (verdict.kind === "one") said.push(["info", text("verdict_one", { name: [...settings.changed, ...settings.followed][0] })]);
    else said.push(["info", words.verdict_same]);
    if (verdict.kind === "unlike" && settings.changed.length + settings.followed.length > 0) {
      said.push(["warning", text("verdict_settings_too", { names: [...settings.changed, ...settings.followed].join(", ") })]);
    }
    if (verdict.unknown.length) said.push(["info", text("verdict_unknown", { count: verdict.unknown.length })]);
    if (verdict.predicted) said.push(["warning", words.verdict_predicted]);
    if (verdict.incomplete) said.push(["warning", words.verdict_damaged]);
    return section("verdict", words.verdict, said.map(([kind, sentence]) => element("p", { class: `banner ${kind}` }, sentence)), differences(verdict));
  }

  function differences(verdict) {
    const counts = { same: 0, differs: 0, unknown: 0 };
    for (const fact of verdict.conditions) counts[fact.state] += 1;
    const listed = [
      ...verdict.settings.requested.map((fact) => [words.requested, fact]),
      ...verdict.settings.resolved.map((fact) => [words.resolved, fact]),
      ...verdict.conditions.filter((fact) => fact.state === "differs").map((fact) => [words.condition, fact]),
      ...verdict.conditions.filter((fact) => fact.state === "unknown").map((fact) => [words.condition, fact]),
    ];
    const rows = listed.map(([kind, fact]) =>
      element("tr", { class: fact.state === "differs" ? "changed" : null }, element("th", { scope: "row" }, isolated(fact.name)), element("td", {}, kind), element("td", {}, isolated(fact.a)), element("td", {}, isolated(fact.b)), element("td", {}, words[fact.state])),
    );
    const counted = element("p", {}, text("fingerprint_counts", counts));
    if (!rows.length) return [counted, element("p", {}, words.differences_none)];
    return [counted, table(words.differences_caption, [[words.name, false], [words.kind, false], ["A", false], ["B", false], [words.state, false]], rows)];
  }

  function deltaSection(a, b) {
    const rows = comparison.deltas(a, b, site.groups).flatMap((group) => [
      element("tr", { class: "group" }, element("th", { scope: "colgroup", colspan: "8" }, group.label)),
      ...group.rows.map(deltaRow),
    ]);
    const heads = [[words.metric, false], [words.statistic, false], ["A", true], ["B", true], [words.change, true], [words.percent, true], [words.direction, false], [words.noise, false]];
    return section("changes", words.deltas, element("p", {}, element("strong", {}, `${words.one_each_title} `), words.one_each_text), table(words.deltas_caption, heads, rows));
  }

  function deltaRow(row) {
    const { metric, change } = row;
    const label = element("a", { class: "metric", href: `metrics.html#${metric.id}` }, metric.label);
    const unit = metric.unit && metric.unit !== "bytes" && metric.unit !== "%" ? element("span", { class: "unit" }, ` ${metric.unit}`) : null;
    const judged = change && change.judgement ? `, ${words[change.judgement]}` : "";
    return element(
      "tr",
      { "data-metric": metric.id, "data-statistic": row.statistic },
      element("th", { scope: "row" }, label, unit),
      element("td", {}, row.statistic === "value" ? "" : row.statistic),
      element("td", { class: "num" }, valueText(metric, row.a)),
      element("td", { class: "num" }, valueText(metric, row.b)),
      element("td", { class: "num", "data-change": change ? String(change.difference) : null }, change ? signed(metric, change.difference) : "\u2014"),
      element("td", { class: "num" }, change ? percent(change.share) : "\u2014"),
      element("td", { class: `nowrap ${change ? change.judgement : ""}` }, change ? words[change.word] + judged : "\u2014"),
      element("td", { class: "nowrap" }, change && change.difference !== 0 ? words.one_each : ""),
    );
  }

  function distributionSection(a, b) {
    const metrics = site.groups.flatMap((group) => group.metrics).filter((metric) => site.latencies.includes(metric.id));
    return section("distributions", words.distributions, element("p", {}, text("distribution_text", { points: site.probabilities.length })), metrics.map((metric) => distribution(metric, a, b)));
  }

  function distribution(metric, a, b) {
    const left = a.curves[metric.id];
    const right = b.curves[metric.id];
    const id = `distribution-${metric.id}`;
    if (!left.length || !right.length) return element("div", { id }, element("h3", {}, text("distribution_none", { metric: metric.label })));
    const said = (statistic) => comparison.change(a.values[metric.id][statistic], b.values[metric.id][statistic], metric.change, metric.better);
    const [median, tail] = [said("p50"), said("p99")];
    const title = text("distribution_title", {
      metric: metric.label,
      change: `${signed(metric, median.difference)} ${metric.unit}`,
      word: words[median.word],
      change99: `${signed(metric, tail.difference)} ${metric.unit}`,
      word99: words[tail.word],
    });
    const curves = element("div", { class: "chart", role: "img", "aria-label": title });
    const difference = element("div", { class: "chart", role: "img", "aria-label": title });
    later(curves, "distribution", () => ({ curves: [...curveRows("A", left), ...curveRows("B", right)] }));
    later(difference, "difference", () => ({ difference: differenceRows(left, right) }));
    return element("div", { id }, element("h3", {}, title), element("div", { class: "chart-pair" }, curves, difference), quantileTable(metric, left, right));
  }

  // The axis is logarithmic: what is zero is drawn at a microsecond.
  function curveRows(run, curve) {
    return curve.map((value, i) => ({ run, value: Math.max(value, 0.001), share: site.probabilities[i] }));
  }

  function differenceRows(left, right) {
    return left.map((value, i) => ({ percentile: 100 * site.probabilities[i], change: right[i] - value }));
  }

  function quantileTable(metric, left, right) {
    const wanted = [0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1];
    const rows = site.probabilities
      .map((p, i) => [p, left[i], right[i]])
      .filter(([p]) => wanted.includes(p))
      .map(([p, x, y]) => element("tr", {}, element("th", { scope: "row", class: "num" }, number(100 * p)), element("td", { class: "num" }, number(x)), element("td", { class: "num" }, number(y)), element("td", { class: "num" }, signed(metric, y - x))));
    const caption = text("distribution_table", { metric: metric.label });
    return element("details", {}, element("summary", {}, caption), table(caption, [[words.percentile, true], ["A", true], ["B", true], [words.change, true]], rows));
  }

  function pairSection(a, b) {
    const { found, onlyA, onlyB, unhashed } = comparison.pairs(a, b);
    const content = [element("p", {}, text("pairs_text", { pairs: found.length, only_a: onlyA, only_b: onlyB, unhashed }))];
    const most = Math.max(a.requests.id.length, b.requests.id.length);
    if (Math.max(a.requests.all, b.requests.all) > most) content.push(element("p", {}, text("pairs_limited", { limit: most })));
    if (!found.length) return section("pairs", words.pairs, content, element("p", {}, words.pairs_none));
    const made = comparison.outputs(a, b, found);
    content.push(element("p", {}, made.known ? text("outputs", made) : words.outputs_none));
    for (const metric of site.groups[0].metrics.filter((metric) => metric.id in a.requests)) content.push(pairChart(metric, a, b, found));
    return section("pairs", words.pairs, content);
  }

  function pairChart(metric, a, b, found) {
    const changes = comparison.pairedChanges(a, b, found, metric.id);
    const faster = changes.filter((change) => change < 0).length;
    const slower = changes.filter((change) => change > 0).length;
    const title = text("pairs_title", { metric: metric.label, pairs: changes.length, faster, slower });
    const chart = element("div", { class: "chart", role: "img", "aria-label": title });
    if (changes.length) later(chart, "pairs", () => ({ pairs: changes.map((change, i) => ({ rank: i, rank_end: i + 1, change, zero: 0 })) }));
    return element("div", {}, element("h3", {}, title), changes.length ? chart : null);
  }

  // Charts are drawn once their places are on the page and have a width.
  let waiting = [];
  function later(chart, name, data) {
    waiting.push([chart, name, data]);
  }

  function show(a, b) {
    charts.forEach(cbtrace.undraw);
    charts = [];
    waiting = [];
    const verdict = comparison.verdict(a, b);
    place.replaceChildren(sides(a, b), verdictSection(a, b, verdict), deltaSection(a, b), distributionSection(a, b), pairSection(a, b));
    charts = waiting.map(([chart, name, data]) => cbtrace.draw(chart, name, data));
    place.setAttribute("data-shown", `${a.slug} ${b.slug}`);
  }

  function say(sentence) {
    charts.forEach(cbtrace.undraw);
    charts = [];
    place.removeAttribute("data-shown");
    place.replaceChildren(element("p", { class: "banner warning" }, sentence));
  }

  async function load(slug) {
    const run = bySlug.get(slug);
    const side = await cbtrace.need(`${slug}/compare`, run.src);
    const more = await cbtrace.need(`${slug}/compare-requests`, `runs/${slug}/${side.sources.requests}`);
    return { ...side, requests: more.requests };
  }

  async function update() {
    const state = cbtrace.readState();
    const [a, b] = [state.get("a"), state.get("b")];
    form.elements.a.value = bySlug.has(a) ? a : "";
    form.elements.b.value = bySlug.has(b) ? b : "";
    const unknown = [a, b].find((slug) => slug && !bySlug.has(slug));
    if (unknown) return say(text("unknown_run", { slug: unknown }));
    if (site.runs.length < 2 && !(a && b)) return say(words.one_run);
    if (!a || !b) return say(words.choose);
    const turn = ++asked;
    say(words.loading);
    try {
      const runs = await Promise.all([load(a), load(b)]);
      if (turn === asked) show(...runs);
    } catch (error) {
      if (turn === asked) say(text("failed", { file: error.message }));
    }
    return undefined;
  }

  // Each choice is a place in the browser's history, so that the back button leads to the one before.
  function choose(a, b) {
    const state = new URLSearchParams();
    if (a) state.set("a", a);
    if (b) state.set("b", b);
    if (location.hash.slice(1) === state.toString()) update();
    else location.hash = state.toString();
  }

  function swap() {
    choose(form.elements.b.value, form.elements.a.value);
  }

  function options(select) {
    select.append(element("option", { value: "" }, "\u2014"));
    for (const run of site.runs) select.append(element("option", { value: run.slug }, run.label));
  }

  options(form.elements.a);
  options(form.elements.b);
  form.addEventListener("change", () => choose(form.elements.a.value, form.elements.b.value));
  form.querySelector("[data-swap]").addEventListener("click", swap);
  cbtrace.onKey("s", swap);
  addEventListener("hashchange", update);
  update();
})();
