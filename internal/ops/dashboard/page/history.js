"use strict";
// The samples of the whole run, oldest first, thinned with age by the rule of internal/ops/status/history.go.

let samples = [], coarsest = 120, added = 0;

// takeHistory takes all samples: each member has the list of its values.
function takeHistory(columns) {
  samples = columns.time.map((_, i) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]])));
  coarsest = 120;
}

// takeSample takes the newest sample, in place of those that are not earlier.
function takeSample(s) {
  while (samples.length > 0 && samples.at(-1).time >= s.time) samples.pop();
  samples.push(s);
  if (++added % 60 > 0) return;
  const byAge = old => secondsAt(s.time - old.time);
  for (samples = thin(samples, byAge); samples.length > 2200; samples = thin(samples, byAge)) coarsest *= 2;
}

const secondsAt = age => age < 600 ? 1 : age < 6000 ? 10 : age < 36000 ? 60 : coarsest;

// thin merges samples that end in the same span of as many seconds as length returns.
function thin(list, length) {
  const kept = [];
  for (const s of list) {
    const span = length(s), last = kept.at(-1);
    if (last && Math.ceil(last.time / span) === Math.ceil(s.time / span)) kept[kept.length - 1] = merge(last, s);
    else kept.push(s);
  }
  return kept;
}

const peaks = ["window", "reorder", "p50_ms", "p90_ms"];

// merge returns the one sample for two that follow each other: rates are averaged, peaks stay.
function merge(a, b) {
  const seconds = a.seconds + b.seconds, merged = {};
  for (const name in a) {
    const x = a[name] ?? b[name], y = b[name] ?? x; // a value that one of them lacks is the other's
    merged[name] = x === null ? null : peaks.includes(name) ? Math.max(x, y) : (x * a.seconds + y * b.seconds) / seconds;
  }
  return Object.assign(merged, { time: b.time, seconds, held: a.held || b.held });
}
