// The table of runs: choose a baseline A and a candidate B, and go to their comparison.
(function () {
  "use strict";

  const table = document.getElementById("runs");
  const link = document.querySelector("[data-compare]");

  function chosen(name) {
    const input = table.querySelector(`input[name="${name}"]:checked`);
    return input ? input.value : null;
  }

  function update() {
    const a = chosen("a");
    const b = chosen("b");
    const ready = a !== null && b !== null && a !== b;
    link.setAttribute("aria-disabled", String(!ready));
    if (ready) link.href = `compare.html#a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`;
    else link.removeAttribute("href");
  }

  table.addEventListener("change", update);
  cbtrace.onKey("c", () => {
    if (link.href) location.href = link.href;
  });
  update();
})();
