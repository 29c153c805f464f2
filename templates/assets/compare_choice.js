// Choosing the two sides: a group of repeats or a run from a list, or several runs by hand.
(function () {
  "use strict";

  const { element } = cbtrace;
  const { words, text, badge } = cbtrace.compareDom;
  const SIDES = ["a", "b"];
  let from = null;
  let form = null;

  // `choice` brings the site's runs, its groups, and what to call when a side was chosen.
  function start(place, choice) {
    form = place;
    from = choice;
    form.querySelector("[data-find]").addEventListener("input", list);
    for (const side of SIDES) {
      form.elements[side].addEventListener("change", () => from.choose(side, form.elements[side].value));
      handPick(side);
    }
    list();
  }

  function matches(label) {
    const wanted = form.querySelector("[data-find]").value.toLowerCase().split(/\s+/).filter(Boolean);
    return wanted.every((word) => label.toLowerCase().includes(word));
  }

  function groupLabel(group) {
    return text("group_label", { label: group.label, count: group.runs.length });
  }

  // Fills both lists with what matches; what is chosen stays in.
  function list() {
    const groups = Array.from(from.groups, ([id, group]) => [from.prefix + id, groupLabel(group)]);
    const runs = from.site.runs.map((run) => [run.slug, run.label]);
    for (const side of SIDES) {
      const select = form.elements[side];
      const chosen = select.value;
      const options = (entries) => entries.filter(([id, label]) => id === chosen || matches(label)).map(([id, label]) => element("option", { value: id }, label));
      const parts = [[words.groups, options(groups)], [words.single_runs, options(runs)]].filter(([, found]) => found.length);
      select.replaceChildren(element("option", { value: "" }, "\u2014"), ...parts.map(([label, found]) => element("optgroup", { label }, found)));
      set(side === "a" ? chosen : null, side === "b" ? chosen : null, [side]);
    }
    const count = from.site.runs.filter((run) => matches(run.label)).length;
    form.querySelector("[data-found]").textContent = text("found", { count, all: from.site.runs.length });
  }

  // Shows what is chosen; runs picked by hand get an entry of their own.
  function set(a, b, sides = SIDES) {
    for (const [side, id] of [["a", a], ["b", b]].filter(([name]) => sides.includes(name))) {
      const select = form.elements[side];
      const entry = groupOf(id) || id;
      const known = Array.from(select.options).some((option) => option.value === (entry || ""));
      if (!known && from.runsOf(id).length) select.append(element("option", { value: id }, text("picked", { count: from.runsOf(id).length })));
      select.value = entry || "";
    }
  }

  // The entry of the group that has exactly the runs of a side, whatever its name in the link.
  function groupOf(id) {
    const runs = from.runsOf(id).join(".");
    const found = Array.from(from.groups).find(([, group]) => group.runs.join(".") === runs);
    return found ? from.prefix + found[0] : null;
  }

  // A list of all runs with a box each, made when it is opened.
  function handPick(side) {
    const place = form.querySelector(`[data-pick="${side}"]`);
    place.addEventListener("toggle", () => {
      if (!place.open) return;
      const chosen = new Set(from.runsOf(form.elements[side].value));
      const boxes = from.site.runs.map((run) => element("label", {}, element("input", { type: "checkbox", value: run.slug, checked: chosen.has(run.slug) }), element("bdi", {}, run.label)));
      const use = element("button", { type: "button" }, badge(side.toUpperCase()), ` ${words.pick_use}`);
      const list = element("div", { class: "picks scroll tall", tabindex: "0", role: "group", "aria-label": words.pick }, boxes);
      use.addEventListener("click", () => {
        const picked = Array.from(list.querySelectorAll("input:checked"), (box) => box.value);
        place.open = false;
        from.choose(side, picked.join("."));
      });
      place.querySelector("[data-picks]").replaceChildren(list, use);
    });
  }

  cbtrace.compareChoice = { start, set };
})();
