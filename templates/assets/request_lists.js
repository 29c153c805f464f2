// The requests of a run, from the files they lie in: looked up by ordinal, and chosen by window, name and order.
(function () {
  "use strict";

  const data = cbtrace.arrived.get(document.body.dataset.key);
  if (!data) return;
  const INSTANTS = ["visible", "admitted", "first_token", "last_token", "end"];
  const AT_ONCE = 8; // files that are loaded beside one another

  // What all else goes by: orders over the whole run, spans of time of the files, and texts.
  let head = null;
  async function begin() {
    head ??= await cbtrace.part(data, "requests", 0);
    return head;
  }

  async function listOf(number) {
    const part = await cbtrace.part(data, "list", number);
    return { ...part, first: number * head.listed_a_file, table: cbtrace.table(part.columns) };
  }

  const known = (value) => (value === head.unknown ? null : value);

  function instant(table, name, row) {
    const [submit, value] = [known(table.submit_us[row]), known(table[`${name}_us`][row])];
    return name === "submit" || value === null ? value : value + (submit ?? 0);
  }

  // One request as an object: instants in microseconds, null where unknown.
  function requestAt(list, row) {
    const { table } = list;
    const made = { ordinal: list.first + row, id: list.id[row], error: list.error[row] };
    for (const name of table.names) made[name] = table[name][row];
    for (const name of ["submit", ...INSTANTS]) made[`${name}_us`] = instant(table, name, row);
    made.longest_gap_us = known(made.longest_gap_us);
    return made;
  }

  // Requests by their ordinals; those that the run does not have are left out.
  async function byOrdinal(ordinals) {
    await begin();
    const there = ordinals.filter((ordinal) => ordinal >= 0 && ordinal < head.all);
    const fileOf = (ordinal) => Math.floor(ordinal / head.listed_a_file);
    const numbers = Array.from(new Set(there.map(fileOf)));
    const lists = new Map(await Promise.all(numbers.map(async (number) => [number, await listOf(number)])));
    return there.map((ordinal) => requestAt(lists.get(fileOf(ordinal)), ordinal % head.listed_a_file));
  }

  async function details(ordinal) {
    await begin();
    const { first: begins } = cbtrace.table(head.details);
    const file = cbtrace.position(begins, ordinal);
    const part = await cbtrace.part(data, "request", file);
    const at = ordinal - begins[file];
    const first = cbtrace.groupStarts(part.gaps)[at];
    let reached = 0;
    return {
      life: cbtrace.group(part.lives, at).map(({ state, after_us, length_us }) => {
        const from = reached + after_us;
        reached = from + length_us;
        return { state, from, to: reached };
      }),
      ttft: cbtrace.group(part.ttft, at),
      gaps: cbtrace.group(part.gaps, at).map((gap, i) => ({ ...gap, pieces: cbtrace.group(part.gap_pieces, first + i) })),
      stays: cbtrace.group(part.stays, at),
    };
  }

  function since(list, name, row) {
    const [from, to] = [known(list.table.submit_us[row]), instant(list.table, name, row)];
    return from === null || to === null ? -1 : to - from;
  }

  // What a list is sorted by, largest first.
  const measures = {
    submit: () => 0,
    ttft: (list, row) => since(list, "first_token", row),
    gap: (list, row) => known(list.table.longest_gap_us[row]) ?? -1,
    e2e: (list, row) => since(list, "end", row),
    resets: (list, row) => list.table.soft_resets[row],
    prompt: (list, row) => list.table.prompt_tokens[row],
    trouble: (list, row) => head.trouble[list.table.end_reason[row]] ?? 0,
  };

  function alive({ table }, row, [from, to]) {
    const begun = known(table.submit_us[row]) ?? INSTANTS.map((name) => known(table[`${name}_us`][row])).find((value) => value !== null) ?? -Infinity;
    return begun <= 1e6 * to && (instant(table, "end", row) ?? Infinity) >= 1e6 * from;
  }

  // Ordinals of the requests that are there in a window (in seconds; null: the whole run), or, whatever the window, of
  // those whose id has `find` in it, in an order. `cut`: the order of a whole long run ends early.
  async function choose(window_, find, sort) {
    await begin();
    if (!window_ && !find) {
      if (sort === "submit") return { ordinals: Array.from({ length: head.all }, (_, i) => i), cut: false };
      const ordinals = Array.from(cbtrace.table(head.orders)[sort]);
      return { ordinals, cut: ordinals.length < head.all };
    }
    const fits = find ? (list, row) => list.id[row].toLowerCase().includes(find) : (list, row) => alive(list, row, window_);
    const found = [];
    for await (const list of listsOf(find ? null : window_)) {
      for (let row = 0; row < list.id.length; row += 1) if (fits(list, row)) found.push([measures[sort](list, row), list.first + row]);
    }
    found.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    return { ordinals: found.map(([, ordinal]) => ordinal), cut: false };
  }

  // The lists whose span of time meets a window, a few at a time.
  async function* listsOf(window_) {
    const files = cbtrace.table(head.files);
    const meets = (number) => !window_ || (files.begin_us[number] <= 1e6 * window_[1] && files.end_us[number] >= 1e6 * window_[0]);
    const numbers = Array.from({ length: files.count }, (_, i) => i).filter(meets);
    for (let i = 0; i < numbers.length; i += AT_ONCE) yield* await Promise.all(numbers.slice(i, i + AT_ONCE).map(listOf));
  }

  cbtrace.requests = { begin, byOrdinal, details, choose };
})();
