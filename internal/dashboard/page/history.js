"use strict";
// The samples of the whole run, oldest first. Those that are old are thinned, by the rule of internal/status/history.go: a
// page may be open for as long as the stage runs.

let samples = [];
let coarsest = 120, added = 0;
const samplesMax = 2200, thinEvery = 60;

// takeHistory takes all samples: each member has a list of the values of all.
function takeHistory(columns) {
  samples = columns.time.map((_, i) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]])));
  coarsest = 120;
  added = 0;
}

// takeSample takes the newest sample, in place of those that are not earlier: a clock was set back, or it is sent again.
function takeSample(s) {
  while (samples.length > 0 && samples[samples.length - 1].time >= s.time) samples.pop();
  samples.push(s);
  if (++added < thinEvery) return;
  added = 0;
  const byAge = sample => secondsAt(s.time - sample.time);
  samples = thin(samples, byAge);
  while (samples.length > samplesMax) {
    coarsest *= 2;
    samples = thin(samples, byAge);
  }
}

const secondsAt = age => age < 600 ? 1 : age < 6000 ? 10 : age < 36000 ? 60 : coarsest;

// thin merges samples that end in the same span of as many seconds as length returns.
function thin(list, length) {
  const kept = [];
  for (const s of list) {
    const span = length(s), last = kept.length - 1;
    if (last >= 0 && Math.ceil(kept[last].time / span) === Math.ceil(s.time / span)) kept[last] = merge(kept[last], s);
    else kept.push(s);
  }
  return kept;
}

// merge returns the one sample for two that follow each other: rates are averaged, peaks stay.
function merge(a, b) {
  const seconds = a.seconds + b.seconds;
  const both = (name, f) => a[name] === null ? b[name] : b[name] === null ? a[name] : f(a[name], b[name]);
  const mean = (x, y) => (x * a.seconds + y * b.seconds) / seconds;
  return {
    time: b.time, seconds, held: a.held || b.held,
    allowed: both("allowed", mean), calls: both("calls", mean), rejected: both("rejected", mean), rows: both("rows", mean), in_flight: both("in_flight", mean),
    window: both("window", Math.max), reorder: both("reorder", Math.max), p50_ms: both("p50_ms", Math.max), p90_ms: both("p90_ms", Math.max),
  };
}
