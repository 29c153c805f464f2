// Where the time went: one chart a latency, a bar a band, cut into pieces.
(function () {
  "use strict";

  const data = cbtrace.arrived.get(document.body.dataset.key);
  if (!data) return;
  const LABELS = 124; // room for the names of the bands

  function bars(rows) {
    const bands = Array.from(new Map(rows.map((row) => [row.place, row.band])).entries()).sort((a, b) => a[0] - b[0]);
    const lane = new Map(bands.map(([place], i) => [place, i]));
    const reached = bands.map(() => 0);
    const spans = rows.slice().sort((a, b) => a.order - b.order).map((row) => {
      const at = lane.get(row.place);
      reached[at] += row.share;
      return [at, reached[at] - row.share, reached[at], `--piece-of-${row.piece}`];
    });
    return { title: "", lane: 26, rows: bands.map(([, band]) => band), layers: [{ kind: "lanes", spans }] };
  }

  for (const place of document.querySelectorAll('[data-chart="cuts"]')) {
    const rows = data.cuts.filter((row) => row.cut === place.dataset.cut);
    if (!rows.length) continue;
    const panel = bars(rows);
    cbtrace.plot(place, () => ({ from: 0, to: 1, percent: true, labels: LABELS, axis: data.words["plot.cut_share"], panels: [panel] }));
    place.setAttribute("data-drawn-cuts", "");
  }
})();
