// Draws charts with Vega: puts in the colors of the reader's scheme, and draws again when it or the width changes.
(function () {
  "use strict";

  const drawn = new Set();
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // A copy of a specification in which every "var(--name)" has become a color.
  function colored(value) {
    if (typeof value === "string") {
      const match = /^var\((--[\w-]+)\)$/.exec(value);
      return match ? color(match[1]) : value;
    }
    if (Array.isArray(value)) return value.map(colored);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, colored(inner)]));
    }
    return value;
  }

  function theme() {
    const ink = color("--ink");
    const soft = color("--soft");
    return {
      aria: false, // the place of a chart says what it shows; a sentence for every point would only cost time
      background: "transparent",
      font: getComputedStyle(document.body).fontFamily,
      axis: { labelColor: soft, titleColor: soft, domainColor: color("--line"), tickColor: color("--line"), gridColor: color("--grid"), titleFontWeight: 500, labelFontSize: 11, titleFontSize: 11 },
      title: { color: ink },
      view: { stroke: color("--line") },
    };
  }

  const MARGIN = 100; // labels and title of a vertical axis, and a little air on the right

  function sized(spec, width) {
    const margin = (spec.usermeta && spec.usermeta.margin) || MARGIN;
    const inner = Math.max(160, Math.floor(width) - margin);
    const made = { ...spec };
    if (made.vconcat) made.vconcat = made.vconcat.map((view) => ({ ...view, width: inner }));
    else made.width = inner;
    return made;
  }

  async function embed(chart) {
    const { place, name, data } = chart;
    const whole = cbtrace.arrived.get("charts")[name];
    const spec = colored(sized(chart.adapt ? chart.adapt(whole) : whole, place.clientWidth));
    spec.datasets = data();
    // Vega names what it draws into; the place keeps the name that says what the chart shows.
    if (!chart.inside || !place.contains(chart.inside)) {
      chart.inside = cbtrace.element("div", {});
      place.replaceChildren(chart.inside);
    }
    const result = await vegaEmbed(chart.inside, spec, {
      ast: true, // expressions are interpreted: no eval, so that a strict policy holds
      actions: false,
      mode: "vega-lite",
      renderer: "canvas",
      config: theme(),
      defaultStyle: false,
      tooltip: false,
    });
    if (chart.view) chart.view.finalize();
    chart.inside.removeAttribute("role");
    chart.inside.removeAttribute("aria-label");
    chart.inside.removeAttribute("aria-roledescription");
    chart.inside.setAttribute("aria-hidden", "true");
    chart.view = result.view;
    chart.width = place.clientWidth;
    if (chart.ready) chart.ready(result.view, chart);
  }

  // Charts are drawn one after the other, in the order in which they were asked for, so that the first is there soon.
  let last = Promise.resolve();

  const idle = window.requestIdleCallback ? () => new Promise((go) => requestIdleCallback(go, { timeout: 500 })) : () => null;

  async function begin(chart) {
    if (!drawn.has(chart)) return;
    chart.begun = true;
    await embed(chart);
    await idle();
  }

  // Draws chart `name` into `place`. `data()` gives its datasets, `ready(view)` is called after each drawing, and
  // `adapt(spec)` may leave parts out.
  function draw(place, name, data, ready, adapt) {
    const chart = { place, name, data, ready, adapt, view: null, width: 0, begun: false };
    drawn.add(chart);
    last = last.then(() => begin(chart)).catch((error) => console.error(error));
    return chart;
  }

  function remove(chart) {
    drawn.delete(chart);
    if (chart.view) chart.view.finalize();
  }

  function again(changed) {
    for (const chart of drawn) if (chart.begun && changed(chart)) embed(chart);
  }

  let pending = 0;
  addEventListener("resize", () => {
    clearTimeout(pending);
    pending = setTimeout(() => again((chart) => chart.view && chart.place.clientWidth !== chart.width), 150);
  });
  dark.addEventListener("change", () => again(() => true));

  cbtrace.draw = draw;
  cbtrace.undraw = remove;
})();
