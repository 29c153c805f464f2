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
    const key = `${run.slug}/goodput`;
    const data = await cbtrace.need(key, run.sources[key]);
    const stored = data.ttft_us.length;
    let met = 0;
    for (let i = 0; i < stored; i += 1) met += limits.every(([name, limit]) => data[`${name}_us`][i] <= limit);
    const all = stored ? Math.round((met * data.completed) / stored) : 0;
    told.textContent = fill(data.words[stored < data.completed ? "goodput.js.estimate" : "goodput.js.met"], {
      rate: number(data.window_s > 0 ? all / data.window_s : null),
      met: number(all),
      judged: number(data.judged),
      share: number((100 * all) / Math.max(1, data.judged)),
      stored: number(stored),
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
