// What the sections of the compare page are built from: texts, amounts, tables and figures.
(function () {
  "use strict";

  const { element, fill, number, bytes } = cbtrace;
  const site = cbtrace.arrived.get("runs");
  const words = site.words;
  const NONE = "\u2014";
  const MINUS = "\u2212";
  const NARROW = 520;

  function text(key, values) {
    return fill(words[key], values || {});
  }

  // Names come from traces and may hold anything: they are text, isolated from the direction of what is around them.
  function isolated(value) {
    return element("bdi", { class: "id" }, value === null || value === undefined ? NONE : value);
  }

  function amount(unit, value) {
    if (value === null || value === undefined) return NONE;
    if (unit === "bytes") return value < 0 ? MINUS + bytes(-value) : bytes(value);
    if (unit === "%") return `${number(100 * value)} %`;
    return number(value).replace(/^-/, MINUS);
  }

  // A difference with its sign; what is shown as zero has none.
  function signed(unit, value) {
    if (value === null || value === undefined) return NONE;
    const size = amount(unit, Math.abs(value));
    return value === 0 ? size : (value > 0 ? "+" : MINUS) + size;
  }

  function withUnit(unit, shown) {
    return unit && unit !== "bytes" && unit !== "%" ? `${shown} ${unit}` : shown;
  }

  function percent(share) {
    if (share === null || share === undefined) return NONE;
    if (share === 0) return "0 %";
    const size = Math.abs(100 * share);
    return `${share > 0 ? "+" : MINUS}${size < 0.05 ? "<0.1" : cbtrace.nearest(size, "toFixed", 1)} %`;
  }

  // A table in a region of its own that scrolls sideways, and downward if `tall`. `heads`
  // are [label, is a number].
  function table(caption, heads, rows, tall) {
    const cells = heads.map(([label, numeric]) => element("th", { scope: "col", class: numeric ? "num" : null }, label));
    const made = element("table", { class: "data" }, element("caption", {}, caption), element("thead", {}, element("tr", {}, cells)), element("tbody", {}, rows));
    return element("div", { class: tall ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
  }

  function row(head, cells, attributes) {
    const made = cells.map((cell) => (cell && cell.nodeType ? cell : element("td", { class: "num" }, cell)));
    return element("tr", attributes || {}, element("th", { scope: "row" }, head), made);
  }

  function cell(content, kind) {
    return element("td", { class: kind || null }, content);
  }

  function section(id, title, ...content) {
    return element("section", { id, "aria-labelledby": `${id}-h` }, element("h2", { id: `${id}-h` }, title), ...content);
  }

  function folded(label, content) {
    return element("details", {}, element("summary", {}, label), content);
  }

  // Charts are drawn once their places are on the page and have a width.
  let waiting = [];
  let drawn = [];

  // The place of a chart; `data()` gives its datasets. What it shows is said by `label`. A chart of amounts in bytes has
  // labels at round ones, up to `most`.
  function chart(name, label, data, most) {
    const place = element("div", { class: "chart", role: "img", "aria-label": label, "data-chart": name });
    const params = most === undefined ? [] : [{ name: "ticks", value: byteTicks(most) }];
    waiting.push([place, name, data, null, (spec) => fitted({ ...spec, params }, place.clientWidth)]);
    return place;
  }

  // On a narrow screen the names of rows take less room; they are whole in the table beside the chart.
  function fitted(spec, width) {
    if (width > NARROW || !spec.usermeta || !spec.usermeta.labels) return spec;
    const labels = Math.round(width / 3);
    const y = (encoding) => encoding && encoding.y && { ...encoding, y: { ...encoding.y, axis: { ...encoding.y.axis, labelLimit: labels, minExtent: labels, maxExtent: labels } } };
    const made = { ...spec, usermeta: { margin: spec.usermeta.margin - spec.usermeta.labels + labels } };
    if (spec.layer) return { ...made, layer: spec.layer.map((layer) => (layer.encoding && layer.encoding.y ? { ...layer, encoding: y(layer.encoding) } : layer)) };
    return { ...made, encoding: y(spec.encoding) };
  }

  function byteTicks(most) {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(most, 1) / 2) / 10));
    const step = unit * [1, 2, 5, 10, 20, 50, 100, 200, 500].find((size, at, sizes) => most / (unit * size) <= 6 || at === sizes.length - 1);
    return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
  }

  function forget() {
    drawn.forEach(cbtrace.undraw);
    drawn = [];
    waiting = [];
  }

  function draw() {
    drawn.push(...waiting.map((one) => cbtrace.draw(...one)));
    waiting = [];
  }

  // Names of metrics and of runs lead to their pages, where there are such.
  function metricName(metric, label) {
    return site.alone ? label : element("a", { class: "metric", href: `metrics.html#${metric}` }, label);
  }

  function runName(run) {
    const name = element("bdi", { class: "name" }, run.name);
    return site.alone ? name : element("a", { href: `runs/${run.slug}/index.html` }, name);
  }

  function badge(side) {
    return element("span", { class: `run-${side.toLowerCase()}` }, side);
  }

  // What B is where its value is A's plus `difference`, for a kind of change: faster, slower, fewer, ...
  function direction(kind, difference) {
    return words[cbtrace.comparison.direction(site.rules, kind, difference)];
  }

  // What is to be thought of a change: better, within noise, cannot tell, ..., and why.
  function judgedText({ judgement, a, b }) {
    const one = judgement.why === "one_run" && a.length === 1 && b.length === 1;
    return words[one ? "why_one_each" : `why_${judgement.why}_${judgement.word}`] || words[`why_${judgement.why}`];
  }

  const HEADS = [[words.head_a, true], [words.head_b, true], [words.change, true]];

  cbtrace.compareDom = { site, words, text, isolated, amount, signed, withUnit, percent, table, row, cell, section, folded, chart, forget, draw, badge, metricName, runName, direction, judgedText, NONE, HEADS };
})();
