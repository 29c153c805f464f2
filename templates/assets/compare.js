// The compare page: choose two sides, each one run or several, and show what they differ by. What is chosen is in the
// fragment: #a=<side>&b=<side>, where a side is a run, runs joined by dots, or repeats_<group>; ra and rb name the run
// of each side whose requests, timeline and memory are shown.
(function () {
  "use strict";

  const { element, comparison } = cbtrace;
  const { site, words, text, draw, forget, badge } = cbtrace.compareDom;
  const REPEATS = "repeats_";
  const form = document.querySelector("[data-choose]");
  const place = document.querySelector("[data-comparison]");
  const bySlug = new Map(site.runs.map((run) => [run.slug, run]));
  const groups = repeats();
  let asked = 0;

  // Groups of at least two runs, in the order of their first one.
  function repeats() {
    const found = new Map();
    for (const run of site.runs) {
      if (run.group === null) continue;
      const group = found.get(run.group) || { label: run.group_label, runs: [] };
      group.runs.push(run.slug);
      found.set(run.group, group);
    }
    return new Map(Array.from(found).filter(([, group]) => group.runs.length > 1));
  }

  // The runs of a side by its name in the fragment. A run that is not there stays in, so that it can be told.
  function runsOf(id) {
    if (!id) return [];
    const group = id.startsWith(REPEATS) ? groups.get(id.slice(REPEATS.length)) : null;
    return group ? group.runs : Array.from(new Set(id.split(".")));
  }

  function load(slug) {
    return cbtrace.need(`${slug}/compare`, bySlug.get(slug).src);
  }

  async function loadSide(id) {
    return { id, runs: await Promise.all(runsOf(id).map(load)) };
  }

  // One run with its requests and its timeline.
  async function loadDetails(run) {
    const more = await cbtrace.need(`${run.slug}/compare-requests`, `runs/${run.slug}/${run.sources.requests}`);
    return { ...run, ...more };
  }

  // The run of a side whose details are shown: the one that the fragment names, or the first.
  function one(side, name) {
    return side.runs.find((run) => run.slug === cbtrace.readState().get(name)) || side.runs[0];
  }

  // What is chosen: what the fragment says, or what the page was made for.
  function chosen() {
    const state = cbtrace.readState();
    for (const side of ["a", "b"]) if (!state.has(side) && place.dataset[side]) state.set(side, place.dataset[side]);
    return state;
  }

  function show(a, b, details) {
    forget();
    const made = comparison.compare(a.runs, b.runs, site.rules);
    const { compareChanges: changes, compareShapes: shapes, compareWhere: where, compareRequests: requests } = cbtrace;
    const several = a.runs.length > 1 || b.runs.length > 1;
    const parts = [
      changes.sideSection(a, b),
      changes.verdictSection(a, b, made),
      contents(),
      changes.differenceSection(made.comparability),
      requests.outputSection(...details, several),
      changes.changeSection(a, b, made),
      shapes.distributionSection(a, b, made),
      where.whereSection(a, b),
      where.happenedSection(a, b),
      oneEach(a, b, details),
    ];
    place.replaceChildren(...parts.flat());
    draw();
    place.setAttribute("data-shown", `${a.id} ${b.id}`);
  }

  // What can only be told of single runs.
  function oneEach(a, b, [left, right]) {
    const head = element("h2", { id: "single" }, words.single);
    const told = element("p", {}, a.runs.length > 1 || b.runs.length > 1 ? words.single_text : words.within_one);
    const several = [["ra", "A", a, left], ["rb", "B", b, right]].filter(([, , side]) => side.runs.length > 1).map(runChoice);
    const { compareShapes: shapes, compareWhere: where, compareRequests: requests } = cbtrace;
    return [head, told, element("div", { class: "toolbar" }, several), requests.pairSection(left, right), shapes.timelineSection(left, right), where.budgetSection(left, right)];
  }

  function runChoice([name, side, { runs }, shown]) {
    const select = element("select", { name }, runs.map((run) => element("option", { value: run.slug, selected: run.slug === shown.slug }, bySlug.get(run.slug).label)));
    select.addEventListener("change", () => go({ [name]: select.value }));
    return element("label", {}, badge(side), ` ${words.single_run} `, select);
  }

  function contents() {
    const ids = ["differences", "outputs", "changes", "distributions", "where", "happened", "pairs", "timelines", "budgets"];
    const links = ids.map((id) => element("a", { href: `#${id}`, "data-to": id }, words[id === "outputs" ? "outputs_heading" : id]));
    const nav = element("nav", { class: "sections", "aria-label": words.contents }, links);
    nav.addEventListener("click", jump);
    return nav;
  }

  // The fragment holds the choice: a link to a section must leave it as it is.
  function jump(event) {
    const id = event.target.getAttribute("data-to");
    if (!id) return;
    event.preventDefault();
    const target = document.getElementById(`${id}-h`);
    target.setAttribute("tabindex", "-1");
    target.scrollIntoView();
    target.focus();
  }

  function say(sentence) {
    forget();
    place.removeAttribute("data-shown");
    place.replaceChildren(element("p", { class: "banner warning" }, sentence));
  }

  async function update() {
    const turn = ++asked;
    const [a, b] = ["a", "b"].map((side) => chosen().get(side));
    cbtrace.compareChoice.set(a, b);
    const missing = [a, b].flatMap((id) => runsOf(id)).find((slug) => !bySlug.has(slug));
    if (missing) return say(text("unknown_run", { slug: missing.slice(0, 100) }));
    if (site.runs.length < 2 && !(a && b)) return say(words.one_run);
    if (!a || !b) return say(words.choose);
    place.setAttribute("aria-busy", "true");
    try {
      const sides = await Promise.all([a, b].map(loadSide));
      const details = await Promise.all(sides.map((side, at) => loadDetails(one(side, at ? "rb" : "ra"))));
      if (turn === asked) show(...sides, details);
    } catch (error) {
      if (turn === asked) say(text("failed", { file: error.message }));
    }
    place.removeAttribute("aria-busy");
    return undefined;
  }

  // Each choice is a place in the browser's history, so that the back button leads to the one before.
  function go(changes) {
    const state = chosen();
    for (const [name, value] of Object.entries(changes)) {
      if (value) state.set(name, value);
      else state.delete(name);
    }
    if (location.hash.slice(1) === state.toString()) update();
    else location.hash = state.toString();
  }

  function swap() {
    const state = chosen();
    go({ a: state.get("b"), b: state.get("a"), ra: state.get("rb"), rb: state.get("ra") });
  }

  cbtrace.compareChoice.start(form, { site, groups, prefix: REPEATS, runsOf, choose: (side, id) => go({ [side]: id, [`r${side}`]: null }) });
  form.querySelector("[data-swap]").addEventListener("click", swap);
  cbtrace.onKey("s", swap);
  addEventListener("hashchange", () => {
    // A fragment that names an element chooses nothing.
    if (location.hash === "" || location.hash.includes("=")) update();
  });
  update();
})();
