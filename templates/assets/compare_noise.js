// Is a difference between two groups of runs more than their noise? Says the same, to the bit but for exp(), as
// site/analysis/noise.py, which explains the rules; a test runs both over many values.
(function () {
  "use strict";

  const LEVEL = 0.05;
  const HEADLINE_LEVEL = 0.01;
  const LEAST_RUNS = 6;
  const BAND_LIMIT = 0.05;

  // The exact sum, rounded once: parts that do not overlap are kept apart (Shewchuk).
  function exactSum(values) {
    const parts = [];
    for (const value of values) {
      let x = value;
      let kept = 0;
      for (let y of parts) {
        if (Math.abs(x) < Math.abs(y)) [x, y] = [y, x];
        const high = x + y;
        const low = y - (high - x);
        if (low !== 0) parts[kept++] = low;
        x = high;
      }
      parts.length = kept;
      parts.push(x);
    }
    return rounded(parts);
  }

  // The sum of parts that do not overlap, smallest first; a tie goes to even, as one addition of all would.
  function rounded(parts) {
    let n = parts.length;
    if (n === 0) return 0;
    let high = parts[--n];
    let low = 0;
    while (n > 0) {
      const x = high;
      const y = parts[--n];
      high = x + y;
      low = y - (high - x);
      if (low !== 0) break;
    }
    if (n > 0 && ((low < 0 && parts[n - 1] < 0) || (low > 0 && parts[n - 1] > 0))) {
      const twice = 2 * low;
      const x = high + twice;
      if (twice === x - high) high = x;
    }
    return high;
  }

  // The known values of one side, or null: how many, their mean, and the variance of one run.
  function sample(values) {
    const known = values.filter((value) => value !== null && value !== undefined && Number.isFinite(value));
    if (!known.length) return null;
    const n = known.length;
    const mean = known[0] + exactSum(known.map((value) => value - known[0])) / n;
    const squares = exactSum(known.map((value) => (value - mean) ** 2));
    return { runs: n, mean, variance: n > 1 ? squares / (n - 1) : 0 };
  }

  function quantile(table, level, df) {
    const nodes = table[String(level)];
    const place = (nodes.length - 1) / Math.max(df, 1);
    const below = Math.min(Math.floor(place), nodes.length - 2);
    return Math.exp(nodes[below] + (place - below) * (nodes[below + 1] - nodes[below]));
  }

  function welchDf(a, b) {
    const total = a.variance / a.runs + b.variance / b.runs;
    const [ofA, ofB] = [a.variance / a.runs / total, b.variance / b.runs / total];
    return 1 / (ofA ** 2 / (a.runs - 1) + ofB ** 2 / (b.runs - 1));
  }

  function halfWidth(a, b, level, table) {
    if (a.variance === 0 && b.variance === 0) return 0;
    const welch = quantile(table, level, welchDf(a, b)) * Math.sqrt(a.variance / a.runs + b.variance / b.runs);
    const df = a.runs + b.runs - 2;
    const variance = ((a.runs - 1) * a.variance + (b.runs - 1) * b.variance) / df;
    const pooled = quantile(table, level, df) * Math.sqrt(variance * (1 / a.runs + 1 / b.runs));
    return Math.max(welch, pooled);
  }

  function noiseBand(a, b, level, table) {
    if (a.variance === 0 && b.variance === 0) return 0;
    const single = quantile(table, level, a.runs + b.runs - 2) * Math.sqrt(a.variance + b.variance);
    return Math.min(single, BAND_LIMIT * Math.min(Math.abs(a.mean), Math.abs(b.mean)));
  }

  function verdict(difference, half, band, better, runs) {
    if (runs < LEAST_RUNS) return ["cannot_tell", "few_runs"];
    if (difference === 0 && half === 0) return ["within_noise", "equal"];
    if (Math.abs(difference) > half) {
      if (better === "neither") return ["changed", "beyond_noise"];
      return [difference > 0 === (better === "lower") ? "worse" : "better", "beyond_noise"];
    }
    if (Math.abs(difference) + half <= band) return ["within_noise", "inside_band"];
    return ["cannot_tell", "wide_interval"];
  }

  // Judges the values of the runs of A and B, of which unknown ones are left out. `table` holds Student's quantiles.
  function judge(a, b, better, level, table) {
    const [left, right] = [sample(a), sample(b)];
    const made = {
      runs_a: left ? left.runs : 0,
      runs_b: right ? right.runs : 0,
      mean_a: left ? left.mean : null,
      mean_b: right ? right.mean : null,
      difference: null,
      low: null,
      high: null,
      band: null,
      word: "cannot_tell",
      why: "unknown",
    };
    if (!left || !right) return made;
    made.difference = right.mean - left.mean;
    made.why = "one_run";
    if (Math.min(left.runs, right.runs) < 2) return made;
    const half = halfWidth(left, right, level, table);
    made.band = noiseBand(left, right, level, table);
    [made.low, made.high] = [made.difference - half, made.difference + half];
    [made.word, made.why] = verdict(made.difference, half, made.band, better, left.runs + right.runs);
    return made;
  }

  // The same numbers where both sides are repeats of one setting: what they differ by is noise by definition.
  function asSameSettings(judged) {
    if (judged.why === "unknown" || judged.why === "equal") return judged;
    return { ...judged, word: "within_noise", why: "same_settings" };
  }

  cbtrace.noise = { judge, asSameSettings, exactSum, LEVEL, HEADLINE_LEVEL };
})();
