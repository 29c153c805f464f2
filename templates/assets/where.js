// Draws where the time went: one chart a latency.
(function () {
  "use strict";

  const data = cbtrace.arrived.get(document.body.dataset.key);
  if (!data) return;
  for (const place of document.querySelectorAll('[data-chart="cuts"]')) {
    const rows = data.cuts.filter((row) => row.cut === place.dataset.cut);
    if (rows.length) cbtrace.draw(place, "cuts", () => ({ cuts: rows }), () => place.setAttribute("data-drawn-cuts", ""));
  }
})();
