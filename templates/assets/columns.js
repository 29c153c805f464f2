// Columns of whole numbers that were packed into short texts (`packed.py`), and tables that unpack theirs when asked.
(function () {
  "use strict";

  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const VALUE = new Uint8Array(128);
  for (let i = 0; i < DIGITS.length; i += 1) VALUE[DIGITS.charCodeAt(i)] = i;

  // Base64 VLQ: five bits a character, low ones first; the sixth bit says that more follow. Sums beyond 31 bits are
  // made by multiplication, which is exact up to 2 ** 53.
  function numbers(text, count) {
    const made = new Float64Array(count);
    let at = 0;
    for (let i = 0; i < count; i += 1) {
      let value = 0;
      let scale = 1;
      let digit;
      do {
        digit = VALUE[text.charCodeAt(at)];
        at += 1;
        value += (digit & 31) * scale;
        scale *= 32;
      } while (digit & 32);
      made[i] = value % 2 ? -(value + 1) / 2 : value / 2;
    }
    return made;
  }

  function unpack(packed, count) {
    if (packed.by !== undefined) return Float64Array.from({ length: count }, (_, i) => packed.from + packed.by * i);
    const made = numbers(packed.v ?? packed.d, count);
    const scale = packed.scale ?? 1;
    for (let i = 0; i < count; i += 1) made[i] = scale * made[i] + (packed.d !== undefined && i ? made[i - 1] : 0);
    return made;
  }

  // Columns by name, each unpacked when it is first read. A part that arrived is the same table every time.
  const tables = new WeakMap();
  function table(packed) {
    if (tables.has(packed)) return tables.get(packed);
    const made = { count: packed.count, names: Object.keys(packed.columns) };
    for (const name of made.names) {
      let values = null;
      Object.defineProperty(made, name, { enumerable: true, get: () => (values ??= unpack(packed.columns[name], packed.count)) });
    }
    tables.set(packed, made);
    return made;
  }

  // Where the rows of each group of a table begin, and behind the last one.
  const bounds = new WeakMap();
  function groupStarts(packed) {
    if (!bounds.has(packed)) {
      const starts = new Float64Array(packed.groups + 1);
      unpack(packed.lengths, packed.groups).forEach((length, i) => {
        starts[i + 1] = starts[i] + length;
      });
      bounds.set(packed, starts);
    }
    return bounds.get(packed);
  }

  // The rows of one group, as objects.
  function group(packed, at) {
    const [first, end] = groupStarts(packed).subarray(at, at + 2);
    const of = table(packed);
    return Array.from({ length: end - first }, (_, i) => Object.fromEntries(of.names.map((name) => [name, of[name][first + i]])));
  }

  Object.assign(cbtrace, { unpack, table, groupStarts, group });
})();
