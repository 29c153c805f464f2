// B against A: what differs, every number judged under that, and one word on the whole. Says the same as
// site/analysis/comparison.py; a test runs both over many runs. A is the baseline; a change is B less A.
(function () {
  "use strict";

  const { judge, asSameSettings, LEVEL, HEADLINE_LEVEL } = cbtrace.noise;

  // What B is where its value is A's plus `difference`, for a kind of change.
  function direction(rules, kind, difference) {
    return difference === 0 ? "equal" : rules.directions[kind][difference > 0 ? 1 : 0];
  }

  // The number of each run of both sides; unknown where peak memory is not of one scope.
  function valuesOf(key, a, b, rules) {
    const scopes = new Set([...a, ...b].map((run) => run.memory_scope).filter(Boolean));
    const apart = key === rules.memory && scopes.size > 1;
    const value = (run) => (apart || run.values[key] === undefined ? null : run.values[key]);
    return [a.map(value), b.map(value)];
  }

  // What a difference means, given what the sides differ by.
  function judgeUnder(comparability, judged) {
    if (comparability.kind === "same") return asSameSettings(judged);
    if (["mixed", "predicted"].includes(comparability.kind)) return { ...judged, word: "cannot_tell", why: comparability.kind };
    if (!comparability.same_work && ["better", "worse"].includes(judged.word)) return { ...judged, word: "changed" };
    return judged;
  }

  function compared(value, a, b, comparability, level, rules) {
    const [left, right] = valuesOf(value.key, a, b, rules);
    const judgement = judgeUnder(comparability, judge(left, right, value.better, level, rules.student));
    const word = judgement.difference === null ? "" : direction(rules, value.change, judgement.difference);
    return { ...value, a: left, b: right, judgement, direction: word };
  }

  // Share of the requests of a side that failed or had not ended, over all of its runs.
  function unanswered(side) {
    const count = (endings) => endings.flatMap((ending) => side.map((run) => run.values[`requests.${ending}`] || 0)).reduce((x, y) => x + y, 0);
    const total = count(["finished", "failed", "cancelled", "running"]);
    return total ? count(["failed", "running"]) / total : 0;
  }

  function headline(values, comparability, moreUnanswered) {
    const of = (word) => values.filter((value) => value.judgement.word === word).map((value) => value.key);
    let [word, why] = headlineWord(values.map((value) => value.judgement), comparability);
    // What was not answered is in no latency: the side that it makes look better is not.
    if ((word === "better" && moreUnanswered > 0) || (word === "worse" && moreUnanswered < 0)) [word, why] = ["cannot_tell", "unanswered"];
    return { word, why, better: of("better"), worse: of("worse"), changed: of("changed") };
  }

  function headlineWord(judgements, { kind, same_work: sameWork }) {
    const words = new Set(judgements.map((judged) => judged.word));
    const told = judgements.filter((judged) => judged.why !== "unknown");
    const reasons = new Set(told.map((judged) => judged.why));
    if (kind === "mixed" || kind === "predicted") return ["cannot_tell", kind];
    if (kind === "same") return ["within_noise", "same_settings"];
    if (kind === "unlike" && !sameWork) return ["cannot_tell", "unlike"];
    if (words.has("better") && words.has("worse")) return ["better_and_worse", "numbers"];
    if (words.has("better")) return ["better", "numbers"];
    if (words.has("worse")) return ["worse", "numbers"];
    if (told.length && told.every((judged) => judged.word === "within_noise")) return ["within_noise", "numbers"];
    if (reasons.size === 1 && reasons.has("one_run")) return ["cannot_tell", "one_run"];
    return ["cannot_tell", reasons.size === 1 && reasons.has("few_runs") ? "few_runs" : "unclear"];
  }

  // Compares B with A, each a list of runs. `rules` holds what Python sends along: the numbers, the words and the table.
  function compare(a, b, rules) {
    const comparability = cbtrace.compareConditions(a, b, rules.comparability);
    const all = rules.values.map((value) => compared(value, a, b, comparability, LEVEL, rules));
    const few = rules.values.filter((value) => rules.headline.includes(value.key));
    few.sort((x, y) => rules.headline.indexOf(x.key) - rules.headline.indexOf(y.key));
    return { comparability, values: all, headline: headline(few.map((value) => compared(value, a, b, comparability, HEADLINE_LEVEL, rules)), comparability, unanswered(b) - unanswered(a)) };
  }

  cbtrace.comparison = { compare, direction };
})();
