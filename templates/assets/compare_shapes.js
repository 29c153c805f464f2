// The shapes behind the numbers: latency distributions of all runs of both sides, and timelines of one run a side.
(function () {
  "use strict";

  const { element, number, compareDetails: details } = cbtrace;
  const { site, words, text, signed, amount, table, row, section, folded, chart, direction, judgedText, HEADS } = cbtrace.compareDom;
  const TABLE_PERCENTILES = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1];
  const SLICES = 12;

  function distributionSection(a, b, made) {
    const several = a.runs.length > 1 || b.runs.length > 1;
    const told = [text("distribution_text", { points: site.probabilities.length }), several ? words.distribution_several : words.within_one];
    return section("distributions", words.distributions, told.map((sentence) => element("p", {}, sentence)), site.latencies.map((metric) => distribution(metric, a, b, made.values)));
  }

  function distribution(metric, a, b, values) {
    const [left, right] = [a, b].map((side) => side.runs.map((run) => run.curves[metric.metric]).filter((curve) => curve.length));
    const id = `distribution-${metric.metric}`;
    if (!left.length || !right.length) return element("div", { id }, element("h3", {}, text("distribution_none", { metric: metric.label })));
    const points = details.curveChanges(left, right);
    const title = shapeTitle(metric, values);
    const curves = chart("distribution", title, () => ({ curves: [...curveRows("A", left), ...curveRows("B", right)] }));
    const difference = chart("difference", title, () => ({ difference: differenceRows(points) }));
    return element("div", { id }, element("h3", {}, title), element("div", { class: "chart-pair" }, curves, difference), quantileTable(metric, points));
  }

  function at(points, probability) {
    return points[details.nearest(site.probabilities, probability)];
  }

  function shapeTitle(metric, values) {
    const said = (statistic) => {
      const value = values.find((one) => one.metric === metric.metric && one.statistic === statistic);
      const { difference } = value.judgement;
      return [`${signed(metric.unit, difference)} ${metric.unit}`, `${direction(metric.change, difference)}; ${judgedText(value)}`];
    };
    const [[change, word], [change99, word99]] = [said("p50"), said("p99")];
    return text("distribution_title", { metric: metric.label, change, word, change99, word99 });
  }

  // The axis is logarithmic: what is zero is drawn at a microsecond.
  function curveRows(run, curves) {
    return curves.flatMap((curve, line) => curve.map((value, i) => ({ run, line: `${run}${line}`, value: Math.max(value, 0.001), share: site.probabilities[i] })));
  }

  // The largest change of all need not be at a percentile that is worth a scale of its own: the last one is left out.
  function differenceRows(points) {
    return points.map(({ change, low, high }, i) => ({ percentile: 100 * site.probabilities[i], change, low, high })).filter((point) => point.percentile <= 99);
  }

  function quantileTable(metric, points) {
    const rows = TABLE_PERCENTILES.map((probability) => {
      const { a, b, change } = at(points, probability);
      const name = probability === 0 ? words.smallest : probability === 1 ? words.largest : `p${number(100 * probability)}`;
      return row(name, [amount(metric.unit, a), amount(metric.unit, b), signed(metric.unit, change)]);
    });
    const caption = text("distribution_table", { metric: metric.label });
    return folded(caption, table(`${caption}, ${metric.unit}`, [[words.percentile, false], ...HEADS], rows));
  }

  // Timelines of one run a side, each from its own first submit.
  function timelineSection(a, b) {
    const [left, right] = [a.timeline, b.timeline];
    if (!left.steps || !right.steps) return section("timelines", words.timelines, element("p", {}, words.timelines_none));
    const [lasted, lastedB] = [left, right].map((timeline) => timeline.end_ms[timeline.end_ms.length - 1] / 1e3);
    const title = text("timelines_title", { a: number(lasted), b: number(lastedB) });
    const told = text("timelines_text", { a: left.bucket, b: right.bucket });
    const most = Math.max(...left.used_peak, ...right.used_peak);
    const place = chart("aligned", title, () => ({ timeline: [...timelineRows("A", left), ...timelineRows("B", right)] }), most);
    return section("timelines", words.timelines, element("h3", {}, title), element("p", {}, told), place, folded(words.timelines_table, sliceTable(left, right)));
  }

  function timelineRows(run, timeline) {
    const rows = timeline.start_ms.map((start, i) => ({
      run,
      t: start / 1e3,
      step: timeline.step_max_ms[i],
      waiting: timeline.waiting_max[i],
      used: timeline.used_peak[i],
    }));
    const last = rows[rows.length - 1];
    return [...rows, { ...last, t: timeline.end_ms[timeline.end_ms.length - 1] / 1e3 }];
  }

  function sliceTable(left, right) {
    const end = Math.max(...[left, right].map((timeline) => timeline.end_ms[timeline.end_ms.length - 1]));
    const width = end / SLICES;
    const heads = ["step", "waiting", "used"].flatMap((name) => ["A", "B"].map((side) => [text(`slice_${name}`, { side }), true]));
    const rows = Array.from({ length: SLICES }, (_, i) => {
      const [a, b] = [left, right].map((timeline) => details.slice(timeline, i * width, (i + 1) * width));
      const cells = [
        ...[a, b].map((slice) => amount("ms", slice && slice.step)),
        ...[a, b].map((slice) => amount("", slice && slice.waiting)),
        ...[a, b].map((slice) => amount("bytes", slice && slice.used)),
      ];
      return row(`${((i * width) / 1e3).toFixed(2)}\u2013${(((i + 1) * width) / 1e3).toFixed(2)}`, cells);
    });
    return table(words.timelines_caption, [[words.seconds, false], ...heads], rows);
  }

  cbtrace.compareShapes = { distributionSection, timelineSection };
})();
