// The memory of the GPU as a bar, made from its table: measured, and below it what the engine predicted.
(function () {
  "use strict";

  const place = document.querySelector('[data-chart="memory"]');
  if (!place) return;
  const rows = Array.from(document.querySelectorAll("[data-memory] tbody tr"), (row) => row.dataset);
  const total = Number(rows.find((row) => row.term === "total").bytes);

  function bar(lane, terms, amount) {
    let reached = 0;
    return terms.map((row) => {
      const from = reached;
      reached += Math.max(0, Number(amount(row))); // what was given back has no length
      return [lane, from, reached, `--memory-${row.term}`];
    });
  }

  const parts = rows.filter((row) => row.term !== "total");
  const predicted = parts.filter((row) => row.predicted !== undefined);
  const spans = bar(0, parts, (row) => row.bytes).concat(bar(1, predicted, (row) => row.predicted));
  const names = [place.dataset.measured, ...(predicted.length ? [place.dataset.predicted] : [])];
  cbtrace.plot(place, () => ({ from: 0, to: total, bytes: true, axis: "", panels: [{ title: "", lane: 26, rows: names, layers: [{ kind: "lanes", spans }] }] }));
  place.setAttribute("data-drawn-memory", "");
})();
