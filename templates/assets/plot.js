// Paints panels over one axis, mostly of time, on a canvas: stepped areas, bands, lines, rules, points and lanes.
// A painter of our own, because a window must be drawn anew within a frame while it is dragged: Vega without `eval`
// interprets every coordinate and takes ten times as long.
(function () {
  "use strict";

  const LEFT = 88; // labels of the vertical axes; on a narrow screen:
  const NARROW_LEFT = 62;
  const RIGHT = 20;
  const TITLE = 16; // above each panel
  const SPACE = 8;
  const AXIS = 34; // the time axis with its title
  const FONT = 11;

  // A round step that divides `span` into about `count` parts.
  function roundStep(span, count) {
    const rough = span / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  }

  // Likewise for bytes: a power of two, or three times one.
  function binaryStep(span, count) {
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(span / count) - 1e-9));
    return span / (0.75 * step) <= count ? 0.75 * step : step;
  }

  function multiples(from, to, step) {
    const first = Math.ceil(from / step - 0.01); // a hair before the first tick is still at it
    const count = Math.floor(to / step + 1e-9) - first + 1;
    return Array.from({ length: Math.max(0, count) }, (_, i) => (first + i) * step);
  }

  // Ticks of an amount from 0 to `most`: round numbers, or for bytes powers of two and three times those.
  function amountTicks(panel, most) {
    if (panel.percent) return [0, 0.5, 1].map((value) => [value, `${100 * value} %`]);
    if (!panel.bytes) {
      const step = roundStep(most, panel.height / 28);
      return multiples(0, most, step).map((value) => [value, cbtrace.number(Number(value.toPrecision(12)))]);
    }
    return multiples(0, most, binaryStep(most, Math.max(2, panel.height / 26))).map((value) => [value, cbtrace.bytes(value)]);
  }

  // The index of the last entry that is not after `value`, at least 0.
  function position(sorted, value) {
    let low = 0;
    let high = sorted.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (sorted[middle] <= value) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  const shapes = {
    "triangle-down": [[-1, -0.8], [1, -0.8], [0, 1]],
    "triangle-up": [[-1, 0.8], [1, 0.8], [0, -1]],
    "triangle-left": [[0.8, -1], [0.8, 1], [-1, 0]],
    "triangle-right": [[-0.8, -1], [-0.8, 1], [1, 0]],
    diamond: [[0, -1.1], [1.1, 0], [0, 1.1], [-1.1, 0]],
    square: [[-0.8, -0.8], [0.8, -0.8], [0.8, 0.8], [-0.8, 0.8]],
    cross: [[-1, -0.35], [-0.35, -0.35], [-0.35, -1], [0.35, -1], [0.35, -0.35], [1, -0.35], [1, 0.35], [0.35, 0.35], [0.35, 1], [-0.35, 1], [-0.35, 0.35], [-1, 0.35]],
  };

  // Runs of entries within the window whose value is known, as [first, behind last].
  function* known({ t, top }, from, to) {
    let begun = -1;
    const end = Math.min(t.length, position(t, to) + 1);
    for (let i = position(t, from); i < end; i += 1) {
      if (top[i] === null) {
        if (begun >= 0) yield [begun, i];
        begun = -1;
      } else if (begun < 0) begun = i;
    }
    if (begun >= 0) yield [begun, end];
  }

  class Painter {
    constructor(context, box, from, to) {
      Object.assign(this, { context, box, from, to, style: getComputedStyle(document.documentElement), colors: new Map() });
    }

    color(name) {
      if (!this.colors.has(name)) this.colors.set(name, this.style.getPropertyValue(name).trim());
      return this.colors.get(name);
    }

    x(t) {
      return this.box.left + ((t - this.from) / (this.to - this.from)) * this.box.width;
    }

    // Where a layer's entry `i` ends: where the next one begins.
    xEnd(layer, i) {
      return this.x(i + 1 < layer.t.length ? layer.t[i + 1] : layer.until);
    }

    steps(layer, values, first, end, y) {
      const path = [];
      for (let i = first; i < end; i += 1) path.push([this.x(layer.t[i]), y(values[i])], [this.xEnd(layer, i), y(values[i])]);
      return path;
    }

    trace(path, close) {
      const { context } = this;
      context.beginPath();
      path.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
      if (close) context.closePath();
    }

    stroke(path, layer) {
      const { context } = this;
      context.strokeStyle = this.color(layer.color);
      context.lineWidth = layer.width || 1.25;
      context.setLineDash(layer.dash || []);
      this.trace(path, false);
      context.stroke();
      context.setLineDash([]);
    }

    fill(path, color, alpha) {
      const { context } = this;
      context.globalAlpha = alpha;
      context.fillStyle = this.color(color);
      this.trace(path, true);
      context.fill();
      context.globalAlpha = 1;
    }

    rect(x0, y0, x1, y1, color, alpha) {
      this.context.globalAlpha = alpha;
      this.context.fillStyle = this.color(color);
      this.context.fillRect(x0, y0, x1 - x0, y1 - y0);
      this.context.globalAlpha = 1;
    }

    // Words, cut to the `room`: at their end, or where it is what tells them apart (`tails`), at their beginning.
    text(words, x, y, align, color, room, tails) {
      const { context } = this;
      context.fillStyle = this.color(color);
      context.textAlign = align;
      context.textBaseline = "middle";
      let shown = words;
      while (room && shown.length > 2 && context.measureText(shown).width > room) shown = tails ? `\u2026${shown.slice(2)}` : `${shown.slice(0, -2)}\u2026`;
      context.fillText(shown, x, y);
    }
  }

  // How each kind of layer is painted; `y` maps an amount, `row` the middle of a lane.
  const kinds = {
    area(painter, layer, y) {
      for (const [first, end] of known(layer, painter.from, painter.to)) {
        const upper = painter.steps(layer, layer.top, first, end, y);
        const lower = layer.bottom ? painter.steps(layer, layer.bottom, first, end, y) : [[upper[0][0], y(0)], [upper[upper.length - 1][0], y(0)]];
        painter.fill([...upper, ...lower.slice().reverse()], layer.color, layer.alpha || 0.85);
        if (!layer.stroke) continue;
        painter.stroke(upper, layer);
        painter.stroke(lower, layer);
      }
    },
    line(painter, layer, y) {
      for (const [first, end] of known(layer, painter.from, painter.to)) painter.stroke(painter.steps(layer, layer.top, first, end, y), layer);
    },
    rule(painter, layer, y) {
      painter.stroke([[painter.box.left, y(layer.at)], [painter.box.left + painter.box.width, y(layer.at)]], layer);
    },
    range(painter, layer, y) {
      painter.rect(painter.box.left, y(layer.high), painter.box.left + painter.box.width, y(layer.low), layer.color, layer.alpha);
    },
    span(painter, layer, _y, _row, panel) {
      const [left, bottom] = [painter.x(layer.from), panel.top + panel.height];
      const right = Math.max(painter.x(layer.to), left + 2);
      painter.rect(left, panel.top, right, bottom, layer.color, layer.alpha);
      if (layer.edges) for (const x of [left, right]) painter.stroke([[x, panel.top], [x, bottom]], { color: layer.color });
    },
    points(painter, layer, _y, row) {
      for (const [t, lane] of layer.at) {
        if (t < painter.from || t > painter.to) continue;
        painter.fill(shapes[layer.shape].map(([x, y]) => [painter.x(t) + 4 * x, row(lane) + 4 * y]), layer.color, 0.9);
      }
    },
    lanes(painter, layer, _y, row, panel) {
      const half = panel.lane * 0.36;
      for (const [lane, from, to, color] of layer.spans) {
        if (to < painter.from || from > painter.to) continue;
        painter.rect(painter.x(from), row(lane) - half, Math.max(painter.x(to), painter.x(from) + 0.5), row(lane) + half, color, 1);
      }
    },
  };

  function arrange(panels) {
    let top = 0;
    for (const panel of panels) {
      if (panel.rows) panel.height = panel.lane * panel.rows.length;
      panel.top = top + TITLE;
      top = panel.top + panel.height + SPACE;
    }
    return top + AXIS;
  }

  function paintPanel(painter, panel, marks) {
    const { context, box } = painter;
    const bottom = panel.top + panel.height;
    const most = panel.most > 0 ? panel.most : 1;
    const y = (value) => bottom - (Math.min(value, 1e300) / most) * panel.height;
    const row = (lane) => panel.top + panel.lane * (lane + 0.5);
    painter.text(panel.title, box.left, panel.top - TITLE / 2, "left", "--soft");
    const grid = (path) => painter.stroke(path, { color: "--grid", width: 1 });
    if (panel.rows) {
      panel.rows.forEach((label, lane) => {
        grid([[box.left, row(lane)], [box.left + box.width, row(lane)]]);
        painter.text(label, box.left - 6, row(lane), "right", "--soft", box.left - 10, panel.tails);
      });
    } else if (!panel.strip) {
      for (const [value, label] of amountTicks(panel, most)) {
        grid([[box.left, y(value)], [box.left + box.width, y(value)]]);
        painter.text(label, box.left - 6, y(value), "right", "--soft");
      }
    }
    if (!panel.strip) for (const t of marks) grid([[painter.x(t), panel.top], [painter.x(t), bottom]]);
    context.save();
    context.beginPath();
    context.rect(box.left, panel.top - 1, box.width, panel.height + 2);
    context.clip();
    for (const layer of panel.layers) kinds[layer.kind](painter, layer, y, row, panel);
    context.restore();
    context.strokeStyle = painter.color("--line");
    context.lineWidth = 1;
    context.strokeRect(box.left + 0.5, panel.top + 0.5, box.width - 1, panel.height - 1);
  }

  function paintAxis(painter, marks, label, top, title) {
    for (const at of marks) painter.text(label(at), painter.x(at), top + 6, "center", "--soft");
    painter.text(title, painter.box.left + painter.box.width / 2, top + 22, "center", "--soft");
  }

  // A plot in `place`. `describe()` returns {from, to, axis, panels}, `percent` or `bytes` for such an axis, and
  // the width of the `labels` on the left where it is another one; a panel has a title, `most` (the top of its axis)
  // and a height, or `rows` and the height of a `lane`, and layers. A `strip` shows {from, to} of its own.
  function plot(place, describe) {
    const canvas = cbtrace.element("canvas", { "aria-hidden": "true" });
    const made = { box: { left: LEFT, width: 0 }, panels: [], draw, soon, canvas };
    place.replaceChildren(canvas);

    function draw() {
      const { from, to, axis, percent, bytes, labels, panels } = describe();
      const height = arrange(panels);
      const ratio = window.devicePixelRatio || 1;
      const width = place.clientWidth;
      made.box.left = labels || (width < 480 ? NARROW_LEFT : LEFT);
      made.box.width = Math.max(120, width - made.box.left - RIGHT);
      made.panels = panels;
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
        canvas.style.width = `${width}px`;
        canvas.style.height = `${height}px`;
      }
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
      const painter = new Painter(context, made.box, from, to);
      const step = bytes ? binaryStep(to - from, made.box.width / 90) : roundStep(to - from, made.box.width / 90);
      const marks = multiples(from, to, step);
      const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      const label = (at) => (percent ? `${Math.round(100 * at)} %` : bytes ? cbtrace.bytes(at) : at.toFixed(digits));
      for (const panel of panels) {
        const whole = panel.strip && new Painter(context, made.box, panel.strip.from, panel.strip.to);
        paintPanel(whole || painter, panel, marks);
      }
      paintAxis(painter, marks, label, height - AXIS, axis);
      made.from = from;
      made.to = to;
    }

    let waiting = null;
    // Draws once before the next frame, however often it is asked.
    function soon() {
      waiting ??= new Promise((resolve) => requestAnimationFrame(() => {
        waiting = null;
        draw();
        resolve();
      }));
      return waiting;
    }

    let width = place.clientWidth;
    new ResizeObserver(() => {
      if (place.clientWidth !== width) soon();
      width = place.clientWidth;
    }).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
    matchMedia("print").addEventListener("change", draw); // in the colors and the width of the paper, at once
    draw();
    return made;
  }

  cbtrace.plot = plot;
  cbtrace.position = position;
})();
