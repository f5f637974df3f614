// The same words for figures as perfscope/units.py; a browser test compares the two.
const MISSING = "–";

function group(text) {
  const [whole, rest] = text.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return rest === undefined ? grouped : `${grouped}.${rest}`;
}

// What rounds to 0 has no sign.
function fixed(value, decimals) {
  const text = value.toFixed(decimals);
  return group(/[1-9]/.test(text) ? text : text.replace("-", ""));
}

function digits(value) {
  const size = Math.abs(value);
  return fixed(value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

function scaled(value, steps, smallest) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  for (const [size, unit] of steps) {
    // What would read 1,000 (or 1,024) of the next smaller unit is 1.00 of this one.
    if (Math.abs(value) >= size - size / (steps === BYTE_UNITS ? 2048 : 2000)) return `${digits(value / size)} ${unit}`;
  }
  return smallest(value);
}

const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
const BYTE_UNITS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
const DECIMAL_UNITS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

const formatNs = (value) => scaled(value, TIME_UNITS, (v) => (v ? `${fixed(v, 0)} ns` : "0 s"));
const formatBytes = (value) => scaled(value, BYTE_UNITS, (v) => `${fixed(v, 0)} B`);
const formatSi = (value, unit) =>
  scaled(value, DECIMAL_UNITS.map(([size, prefix]) => [size, prefix + unit]), (v) => `${digits(v)} ${unit}`);
const formatRatio = (value) => (Number.isFinite(value) ? `${fixed(100 * value, 1)} %` : MISSING);
// By the names of perfscope/reports/model.py's Unit.
const SUFFIXES = { rate: "B/s", flop_rate: "FLOP/s", flops: "FLOP", watts: "W", joules: "J", hz: "Hz", per_s: "/s" };
function formatUnit(unit, value) {
  if (unit === "ratio") return formatRatio(value);
  if (unit === "bytes") return formatBytes(value);
  if (unit === "time") return formatNs(value);
  if (unit === "factor") return Number.isFinite(value) ? fixed(value, 2) : MISSING;
  if (unit === "celsius") return Number.isFinite(value) ? `${fixed(value, 0)} °C` : MISSING;
  return unit in SUFFIXES ? formatSi(value, SUFFIXES[unit]) : scaled(value, [], (v) => digits(v));
}
const formatCount = (value) => (Number.isFinite(value) ? fixed(value, 0) : MISSING);

// Ticks: round times between low and high, all in one unit.
function timeTicks(low, high, count) {
  const raw = Math.max((high - low) / Math.max(count, 1), 1e-3);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max([1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw), 1);
  const [size, unit] = TIME_UNITS.find(([s]) => Math.max(Math.abs(high), Math.abs(low)) >= s) || [1, "ns"];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high; n += 1) {
    const value = n * step;
    ticks.push([value, value === 0 ? "0" : `${group((value / size).toFixed(decimals))} ${unit}`]);
  }
  return ticks;
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
