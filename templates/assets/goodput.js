// Goodput under SLOs that the reader names; they are part of the address (#slo=ttft:800,gap:40).
(function () {
  "use strict";

  const { fill, number } = cbtrace;
  const run = cbtrace.arrived.get(document.body.dataset.key);
  const told = document.querySelector("[data-goodput]");
  const inputs = Array.from(document.querySelectorAll("[data-slo]"));
  if (!run || !told) return;

  async function show() {
    const limits = inputs.filter((input) => input.value !== "" && Number(input.value) >= 0).map((input) => [input.dataset.slo, 1000 * Number(input.value)]);
    if (!limits.length) {
      told.textContent = "";
      return;
    }
    const data = await cbtrace.part(run, "goodput", 0);
    const times = cbtrace.table(data.times);
    const held = limits.map(([name, limit]) => [times[`${name}_us`], limit]);
    let met = 0;
    for (let i = 0; i < times.count; i += 1) met += held.every(([took, limit]) => took[i] <= limit);
    told.textContent = fill(data.words["goodput.js.met"], {
      rate: number(data.window_s > 0 ? met / data.window_s : null),
      met: number(met),
      judged: number(data.judged),
      share: number((100 * met) / Math.max(1, data.judged)),
    });
  }

  function changed() {
    const parts = inputs.filter((input) => input.value !== "").map((input) => `${input.dataset.slo}:${input.value}`);
    cbtrace.writeState({ slo: parts.length ? parts.join(",") : null });
    show();
  }

  function fromLink() {
    const wanted = new Map((cbtrace.readState().get("slo") || "").split(",").map((part) => part.split(":")));
    for (const input of inputs) input.value = wanted.get(input.dataset.slo) ?? "";
    show();
  }

  for (const input of inputs) input.addEventListener("input", changed);
  addEventListener("hashchange", fromLink);
  fromLink();
})();
