// Lines of each rank over the run: how long its steps took, and how much later than the first rank it launched.
(function () {
  "use strict";

  const place = document.querySelector('[data-chart="ranks"]');
  const data = place && cbtrace.arrived.get(document.body.dataset.key)?.ranks;
  if (!data || !data.rows.count) return;

  const COLORS = ["--run-a", "--run-b", "--decode", "--wasted", "--cached", "--duration", "--gpu", "--piece-blocked"];
  const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
  const rows = cbtrace.table(data.rows);
  const t = Array.from(rows.time_us, (us) => us / 1e6);
  const last = t[t.length - 1] + Math.max(0, rows.step_0_us[rows.count - 1]) / 1e6;

  function panel(name) {
    const lines = data.ranks.map((_, line) => rows[`${name}_${line}_us`]).filter(Boolean);
    const layers = lines.map((values, line) => ({
      kind: "line", t, top: Array.from(values, (us) => (us < 0 ? null : us / 1e3)), until: last,
      color: COLORS[line % COLORS.length], dash: DASHES[line % DASHES.length], width: 1.5,
    }));
    return { title: data.words[`ranks.js.${name}`], height: 90, most: Math.max(...lines.map((values) => values.reduce((a, b) => Math.max(a, b), 0))) / 1e3, layers };
  }

  const panels = () => ["step", "late"].filter((name) => rows[`${name}_0_us`]).map(panel);
  cbtrace.plot(place, () => ({ from: t[0], to: Math.max(last, t[0] + 1e-6), axis: data.words["ranks.js.axis"], panels: panels() }));
  place.setAttribute("data-drawn-ranks", "");
})();
