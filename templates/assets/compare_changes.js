// Whether the sides can be compared, what differs, and every number with what is to be thought of its change.
(function () {
  "use strict";

  const { element } = cbtrace;
  const { site, words, text, isolated, amount, signed, percent, table, row, cell, section, folded, chart, badge, metricName, runName, judgedText, NONE, HEADS } = cbtrace.compareDom;
  const GRAVE = ["several", "resolved", "unlike", "mixed", "predicted"];

  function sideSection(a, b) {
    const sides = [["A", words.baseline, a], ["B", words.candidate, b]];
    const rows = sides.flatMap(([side, what, { runs }]) =>
      runs.map((run) =>
        element("tr", {}, element("th", { scope: "row" }, badge(side), ` ${what}`), cell(runName(run)), cell(isolated(run.model)), cell(run.recorded), cell(run.whole ? words.whole : words.not_whole)),
      ),
    );
    const made = table(text("sides_caption", { a: a.runs.length, b: b.runs.length }), [[words.side, false], [words.run, false], [words.model, false], [words.recorded, false], [words.recording, false]], rows);
    return section("sides", words.sides, made);
  }

  function banner(kind, sentence) {
    return element("p", { class: `banner ${kind}` }, sentence);
  }

  function nameList(names) {
    return names.join(", ");
  }

  // Whether the sides can be compared, said first.
  function verdictSection(a, b, made) {
    const { comparability, headline } = made;
    const same = a.runs.length === b.runs.length && a.runs.every((run) => b.runs.includes(run));
    const said = same ? [banner("warning", words.same_side)] : [banner(GRAVE.includes(comparability.kind) ? "warning" : "info", kindSentence(comparability))];
    if (comparability.kind === "unlike" && comparability.variables.length) said.push(banner("warning", text("settings_too", { names: nameList(comparability.variables) })));
    if (comparability.unknown.length) said.push(banner("info", text("unknown_conditions", { count: comparability.unknown.length, names: nameList(comparability.unknown.slice(0, 6).map((fact) => fact.name)) })));
    if (comparability.apart) said.push(banner("warning", words.apart));
    if (!comparability.whole) said.push(banner("warning", words.not_whole_sides));
    if (!same && twice([...a.runs, ...b.runs])) said.push(banner("warning", words.twice));
    return [
      section("verdict", words.verdict, said),
      section("short", words.short, element("p", { "data-headline": headline.word }, element("strong", {}, headlineSentence(headline, made.values)), " ", words.short_text)),
    ];
  }

  // Whether a run is there more than once: a copy, another rank of it, or a run on both sides.
  function twice(runs) {
    const ids = runs.map((run) => run.run_id).filter(Boolean);
    return new Set(ids).size < ids.length;
  }

  function kindSentence({ kind, variables, unlike, settings, tags, categories }) {
    const changed = settings.filter((setting) => setting.role === "changed").map((setting) => setting.name);
    const values = {
      name: variables[0],
      names: nameList(variables),
      changed: changed[0],
      followed: nameList(variables.filter((name) => !changed.includes(name))),
      unlike: nameList(unlike.slice(0, 8).map((fact) => fact.name)),
      mixed: nameList([...unlike.slice(0, 8).map((fact) => fact.name), ...variables]),
      categories: nameList(categories.map((name) => words[`category_${name}`])),
      tags: nameList(tags.map((tag) => tag.name)),
    };
    return text(`kind_${kind}`, values);
  }

  function headlineSentence({ word, why, better, worse, changed }, values) {
    const labels = (keys) => nameList(values.filter((value) => keys.includes(value.key)).map((value) => `${valueLabel(value.key)} ${percent(relative(value.judgement))} (${words[value.direction]})`));
    const key = word === "cannot_tell" || why === "same_settings" ? `headline_${why}` : `headline_${word}`;
    const said = [text(key, { better: labels(better), worse: labels(worse) })];
    if (changed.length) said.push(text("headline_changed", { changed: labels(changed) }));
    // Beyond noise when judged alone, and not when all are judged together.
    const named = [...better, ...worse, ...changed];
    const alone = site.rules.headline.filter((one) => !named.includes(one) && values.find((value) => value.key === one).judgement.why === "beyond_noise");
    if (alone.length) said.push(text("headline_alone", { alone: labels(alone) }));
    return said.join(" ");
  }

  function valueLabel(key) {
    const value = site.rules.values.find((other) => other.key === key);
    return value.statistic ? `${value.label} ${value.statistic}` : value.label;
  }

  // What differs: settings as asked for and as the engine worked with them, tags, and conditions.
  function differenceSection({ settings, tags, conditions }) {
    const count = (state) => conditions.filter((fact) => fact.state === state).length;
    const counted = element("p", {}, text("condition_counts", { same: count("same"), differs: count("differs"), unknown: count("unknown") }));
    const told = [settingTable(settings), tagTable(tags), conditionTable(conditions.filter((fact) => fact.state === "differs"), words.conditions_differ)].filter(Boolean);
    const unknown = conditionTable(conditions.filter((fact) => fact.state === "unknown"), words.conditions_unknown);
    const same = conditionTable(conditions.filter((fact) => fact.state === "same"), words.conditions_same);
    const rest = [unknown && folded(words.conditions_unknown, unknown), same && folded(words.conditions_same, same)].filter(Boolean);
    return section("differences", words.differences, counted, told.length ? told : element("p", {}, words.differences_none), rest);
  }

  function settingTable(settings) {
    if (!settings.length) return null;
    const rows = settings.map((setting) => {
      const marked = ["changed", "followed"].includes(setting.role) ? "changed" : null;
      const values = ["requested_a", "requested_b", "resolved_a", "resolved_b"].map((name) => cell(isolated(setting[name])));
      const role = words[`role_${setting.role}`] + (setting.mixed ? ` ${words.mixed}` : "");
      return element("tr", { class: marked, "data-setting": setting.name }, element("th", { scope: "row" }, isolated(setting.name)), values, cell(role));
    });
    return table(words.settings_caption, ["setting", "requested_a", "requested_b", "resolved_a", "resolved_b", "role"].map((key) => [words[key], false]), rows);
  }

  function tagTable(tags) {
    if (!tags.length) return null;
    const rows = tags.map((tag) => element("tr", {}, element("th", { scope: "row" }, isolated(tag.name)), cell(isolated(tag.a)), cell(isolated(tag.b))));
    return table(words.tags_caption, [[words.tag, false], [words.head_a, false], [words.head_b, false]], rows);
  }

  function conditionTable(facts, caption) {
    if (!facts.length) return null;
    const counts = (fact) => fact.state === "differs" && !site.rules.comparability.no_condition.includes(fact.category);
    const rows = facts.map((fact) => element("tr", { class: counts(fact) ? "changed" : null }, element("th", { scope: "row" }, isolated(fact.name)), cell(words[`category_${fact.category}`]), cell(isolated(fact.a)), cell(isolated(fact.b)), cell(words[fact.mixed ? "state_mixed" : `state_${fact.state}`])));
    return table(caption, [[words.condition, false], [words.category, false], [words.head_a, false], [words.head_b, false], [words.state, false]], rows);
  }

  // Every number, group by group.
  function changeSection(a, b, made) {
    const several = a.runs.length > 1 || b.runs.length > 1;
    const told = several ? text("changes_several", { a: a.runs.length, b: b.runs.length }) : words.changes_one_each;
    const warned = GRAVE.includes(made.comparability.kind) ? banner("warning", kindSentence(made.comparability)) : null;
    const groups = Array.from(new Set(made.values.map((value) => value.group)));
    const rows = groups.flatMap((group) => [element("tr", { class: "group" }, element("th", { scope: "colgroup", colspan: "8" }, group)), ...made.values.filter((value) => value.group === group).map(changeRow)]);
    const heads = [[words.metric, false], [words.statistic, false], ...HEADS, [words.percent, true], [words.direction, false], [words.judged, false]];
    return section("changes", words.changes, warned, element("p", {}, told), effects(made.values), table(words.changes_caption, heads, rows));
  }

  function changeRow(value) {
    const { judgement, unit } = value;
    const shownUnit = unit && unit !== "bytes" && unit !== "%" ? element("span", { class: "unit" }, ` ${unit}`) : null;
    const known = judgement.difference !== null;
    return element(
      "tr",
      { "data-value": value.key, "data-word": judgement.word, "data-why": judgement.why },
      element("th", { scope: "row" }, metricName(value.metric, value.label), shownUnit),
      cell(value.statistic),
      element("td", { class: "num" }, side(value, value.a, judgement.mean_a)),
      element("td", { class: "num" }, side(value, value.b, judgement.mean_b)),
      element("td", { class: "num", "data-change": known ? String(judgement.difference) : null }, signed(unit, judgement.difference), interval(value)),
      element("td", { class: "num" }, percent(relative(judgement))),
      cell(known ? words[value.direction] : NONE, "nowrap"),
      cell(judgedText(value), judgement.word),
    );
  }

  function relative({ difference, mean_a: mean }) {
    return difference === null || !mean ? null : difference / Math.abs(mean);
  }

  // The mean of a side, and the range of its runs where there are several.
  function side(value, values, mean) {
    const known = values.filter((one) => one !== null);
    if (known.length < 2) return amount(value.unit, mean);
    return [amount(value.unit, mean), element("span", { class: "sub" }, `${amount(value.unit, Math.min(...known))} \u2013 ${amount(value.unit, Math.max(...known))}, n=${known.length}`)];
  }

  function interval({ unit, judgement }) {
    if (judgement.low === null) return null;
    return element("span", { class: "sub" }, text("interval", { low: signed(unit, judgement.low), high: signed(unit, judgement.high) }));
  }

  // The changes of the latencies, rates and memory in per cent of A.
  function effects(values) {
    const shown = values.filter((value) => site.effects.includes(value.key) && relative(value.judgement) !== null);
    if (!shown.length) return null;
    const several = shown.some((value) => value.judgement.low !== null);
    const label = several ? words.effects_intervals : words.effects_points;
    const share = (judgement, bound) => (bound === null ? relative(judgement) : bound / Math.abs(judgement.mean_a)) * 100;
    const rows = () =>
      shown.map(({ key, judgement }, rank) => ({ label: valueLabel(key), rank, change: share(judgement, judgement.difference), low: share(judgement, judgement.low), high: share(judgement, judgement.high), beyond: judgement.why === "beyond_noise" ? 1 : 0 }));
    return element("div", { id: "effects" }, element("h3", {}, label), chart("effects", label, () => ({ effects: rows() })));
  }

  cbtrace.compareChanges = { sideSection, verdictSection, differenceSection, changeSection };
})();
