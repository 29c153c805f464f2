// Requests of one run a side, paired: how their latencies changed, and whether they got the same tokens.
(function () {
  "use strict";

  const { element, number, compareDetails: details } = cbtrace;
  const { words, text, isolated, amount, signed, table, row, section, folded, chart, direction, NONE, HEADS } = cbtrace.compareDom;
  const LATENCIES = ["ttft_ms", "longest_gap_ms", "e2e_ms"];
  const LISTED = 10;
  const DIFFERENCES = 50;

  function pairSection(a, b) {
    const paired = details.pairs(a, b);
    const how = words[paired.by === "index" ? "pairs_by_index" : "pairs_by_prompt"];
    const content = [element("p", {}, how), element("p", {}, text("pairs_text", { pairs: number(paired.found.length), only_a: number(paired.onlyA.length), only_b: number(paired.onlyB.length), unhashed: number(paired.unhashed) }))];
    const most = Math.max(a.requests.id.length, b.requests.id.length);
    if (Math.max(a.requests.all, b.requests.all) > most) content.push(element("p", { class: "banner info" }, text("pairs_limited", { limit: number(most) })));
    if (!paired.found.length) return section("pairs", words.pairs, content, element("p", {}, words.pairs_none));
    content.push(element("p", { class: "banner warning" }, words.within_one));
    content.push(...LATENCIES.map((metric) => latency(metric, a, b, paired.found)));
    content.push(only("A", a, paired.onlyA), only("B", b, paired.onlyB));
    return section("pairs", words.pairs, content);
  }

  function latency(metric, a, b, found) {
    const changes = details.pairedChanges(a, b, found, metric);
    const count = (sign) => changes.filter((pair) => Math.sign(pair.change) === sign).length;
    const title = text("pairs_title", { metric: words[`pair_${metric}`], pairs: number(changes.length), faster: number(count(-1)), slower: number(count(1)), equal: number(count(0)) });
    if (!changes.length) return element("div", { id: `pairs-${metric}` }, element("h3", {}, title));
    const most = Math.max(...changes.map((pair) => Math.max(pair.a, pair.b)));
    const scatter = chart("scatter", title, () => ({ scatter: changes, diagonal: [0, most].map((end) => ({ a: end, b: end })) }));
    const sorted = chart("pairs", title, () => ({ pairs: changes.map((pair, i) => ({ rank: i, rank_end: i + 1, change: pair.change, zero: 0 })) }));
    return element("div", { id: `pairs-${metric}` }, element("h3", {}, title), element("div", { class: "chart-pair" }, scatter, sorted), folded(words.pairs_table, extremes(a, b, changes)));
  }

  // The pairs that changed most, either way.
  function extremes(a, b, changes) {
    const shown = changes.length <= 2 * LISTED ? changes : [...changes.slice(0, LISTED), ...changes.slice(-LISTED)];
    const rows = shown.map((pair) => row(isolated(a.requests.id[pair.i]), [amount("ms", pair.a), amount("ms", pair.b), signed("ms", pair.change), element("td", {}, direction("time", pair.change))]));
    return table(text("pairs_caption", { shown: shown.length, pairs: number(changes.length) }), [[words.request, false], ...HEADS, [words.direction, false]], rows);
  }

  function only(side, run, rows) {
    if (!rows.length) return null;
    const names = rows.slice(0, LISTED).map((i) => element("li", {}, isolated(run.requests.id[i])));
    const title = text("only_title", { side, count: number(rows.length) });
    return folded(title, [element("ul", {}, names), rows.length > LISTED ? element("p", {}, text("only_more", { count: number(rows.length - LISTED) })) : null]);
  }

  // Whether the paired requests got the same tokens; where they first differ is looked up in the stored token ids.
  function outputSection(a, b, several) {
    const { found } = details.pairs(a, b);
    const made = details.outputs(a, b, found);
    const of = several ? element("p", {}, text("outputs_of", { a: a.name, b: b.name })) : null;
    const content = [of, element("p", {}, made.known ? text("outputs", { known: number(made.known), same: number(made.same), differ: number(made.differ.length) }) : words.outputs_none)];
    if (sampled(a) || sampled(b)) content.push(element("p", { class: "banner info" }, words.outputs_sampled));
    else if (made.differ.length) content.push(element("p", { class: "banner info" }, text("outputs_numerics", { a: a.conditions["model.dtype"] || NONE, b: b.conditions["model.dtype"] || NONE })));
    if (made.differ.length) content.push(differences(a, b, made.differ));
    return section("outputs", words.outputs_heading, content);
  }

  function sampled(run) {
    return run.conditions["generation.do_sample"] === "true";
  }

  function differences(a, b, pairs) {
    const listed = pairs.slice(0, DIFFERENCES);
    const place = element("div", { "aria-live": "polite", "data-differences": "" }, element("p", {}, words.outputs_loading));
    if (!a.tokens_a_file || !b.tokens_a_file) place.replaceChildren(element("p", {}, words.outputs_no_ids), differenceTable(a, b, listed, pairs.length, () => null));
    else look(a, b, listed, pairs.length, place);
    return place;
  }

  async function look(a, b, listed, all, place) {
    try {
      const files = await Promise.all([[a, 0], [b, 1]].map(([run, at]) => tokens(run, listed.map((pair) => pair[at]))));
      const first = ([i, j]) => details.firstDifference(idsOf(a, files[0], i), idsOf(b, files[1], j));
      place.replaceChildren(differenceTable(a, b, listed, all, first));
    } catch (error) {
      place.replaceChildren(element("p", { class: "banner warning" }, text("failed", { file: error.message })));
    }
    place.setAttribute("data-differences", "shown");
  }

  // The files with the token ids of these requests, by number.
  async function tokens(run, rows) {
    const numbers = Array.from(new Set(rows.map((row) => Math.floor(row / run.tokens_a_file))));
    const files = await Promise.all(numbers.map((file) => cbtrace.need(`${run.slug}/compare-tokens-${file}`, `runs/${run.slug}/${run.sources.tokens[file]}`)));
    return new Map(numbers.map((file, i) => [file, files[i].ids]));
  }

  function idsOf(run, files, row) {
    const file = Math.floor(row / run.tokens_a_file);
    return files.get(file)[row - file * run.tokens_a_file];
  }

  function differenceTable(a, b, listed, all, first) {
    const rows = listed.map((pair) => {
      const [i, j] = pair;
      const found = first(pair);
      const id = (value) => (value === null || value === undefined ? words.output_ended : String(value));
      const where = found ? [number(found.position), id(found.a), id(found.b)] : [NONE, NONE, NONE];
      return row(isolated(a.requests.id[i]), [...where, number(a.requests.generated[i]), number(b.requests.generated[j])]);
    });
    const heads = ["request", "output_position", "output_a", "output_b", "output_length_a", "output_length_b"].map((key, at) => [words[key], at > 0]);
    return table(text("outputs_caption", { shown: number(listed.length), all: number(all) }), heads, rows, true);
  }

  cbtrace.compareRequests = { pairSection, outputSection };
})();
