// Unpacks the timeline (reports/timeline_data.py) into rows that can be searched by time.

// One row of the picture: the spans of one lane at one nesting depth, sorted by start, never overlapping.
class Row {
  constructor(lane, depth) {
    this.lane = lane;
    this.depth = depth;
    this.spans = []; // indexes into the lane's arrays
    this.top = 0; // pixels, set by the view
  }

  seal() {
    const { start, end } = this.lane;
    this.start = Float64Array.from(this.spans, (i) => start[i]);
    this.end = Float64Array.from(this.spans, (i) => end[i]);
    // Busy time up to each span: shades a pixel by how much of it is covered.
    this.busy = new Float64Array(this.spans.length + 1);
    for (let n = 0; n < this.spans.length; n += 1) this.busy[n + 1] = this.busy[n] + this.end[n] - this.start[n];
  }

  // First span that ends after `time`.
  firstAfter(time) {
    let low = 0;
    let high = this.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

class Lane {
  constructor(data, definitions) {
    Object.assign(this, { rank: data.rank, host: data.host, device: data.device, role: data.role, label: data.label, loader: data.loader });
    const count = data.gap.length;
    this.start = new Float64Array(count);
    this.end = new Float64Array(count);
    this.def = Uint32Array.from(data.def);
    this.step = new Int32Array(count);
    let at = 0;
    let run = -1;
    for (let i = 0; i < count; i += 1) {
      at += data.gap[i];
      if (run + 1 < data.steps.length && data.steps[run + 1][0] === i) run += 1;
      this.start[i] = at;
      this.end[i] = at + data.dur[i];
      this.step[i] = data.steps[run][1];
    }
    this.rows = this.layOut(definitions.depth);
  }

  // Spans of one depth may overlap where neighbours were merged or a trace is odd: the later one moves a row down.
  layOut(depths) {
    const byDepth = new Map();
    for (let i = 0; i < this.start.length; i += 1) {
      const depth = depths[this.def[i]];
      if (!byDepth.has(depth)) byDepth.set(depth, [new Row(this, depth)]);
      const rows = byDepth.get(depth);
      let row = rows.find((r) => !r.spans.length || this.end[r.spans[r.spans.length - 1]] <= this.start[i]);
      if (!row) {
        row = new Row(this, depth);
        rows.push(row);
      }
      row.spans.push(i);
    }
    const sorted = [...byDepth.keys()].sort((a, b) => a - b).flatMap((depth) => byDepth.get(depth));
    sorted.forEach((row) => row.seal());
    return sorted;
  }
}

// By number, each step over all ranks: from the first rank's start to the last one's end.
function wholeSteps(marks) {
  const steps = new Map();
  for (const { step, start, end } of [...marks].sort((a, b) => a.step - b.step)) {
    const whole = steps.get(step) ?? { step, start, end };
    steps.set(step, { step, start: Math.min(whole.start, start), end: Math.max(whole.end, end) });
  }
  return steps;
}

class TimelineData {
  constructor(raw) {
    Object.assign(this, { strings: raw.strings, kinds: raw.kinds, phases: raw.phases, focus: raw.focus });
    this.groupings = raw.groupings;
    this.compared = raw.compared; // of two runs; null = one
    this.definitions = raw.definitions;
    this.colors = this.definitions.kind.map((_, def) => this.colorOf(def));
    this.raw = raw.windows;
    this.windows = new Map();
    this.hits = null; // per definition: does it match the search
  }

  // Windows are unpacked when they are looked at.
  window(index) {
    if (!this.windows.has(index)) {
      const raw = this.raw[index];
      const lanes = raw.lanes.map((lane) => new Lane(lane, this.definitions));
      const ends = lanes.filter((lane) => !lane.loader).flatMap((lane) => lane.rows.map((row) => row.end[row.end.length - 1] || 0));
      const steps = raw.steps.map(([rank, step, start, dur]) => ({ rank, step, start, end: start + dur }));
      const { counters, disturbed } = raw;
      const path = unpackPath(raw.path);
      this.windows.set(index, { window: raw.window, lanes, steps, whole: wholeSteps(steps), counters, disturbed, path, dur: Math.max(raw.dur, 1, ...ends) });
    }
    return this.windows.get(index);
  }

  name(def) {
    return this.strings[this.definitions.name[def]] ?? "";
  }

  layer(def) {
    return this.word("layer", def);
  }

  // A text of a definition: its layer, and of communication its axis, group, and why it has no layer.
  word(column, def) {
    return this.definitions[column][def] < 0 ? "" : this.strings[this.definitions[column][def]];
  }

  kind(def) {
    return this.kinds[this.definitions.kind[def]] || "";
  }

  phase(def) {
    return this.phases[this.definitions.phase[def]] || "";
  }

  // Which entry of the legend a span belongs to.
  colorOf(def) {
    const kind = this.kind(def);
    if (kind === "comm") return "exposed_comm";
    if (kind === "copy") return "copy";
    if (kind === "input") return "input_wait";
    if (kind === "loading") return "loading";
    const phase = this.phase(def);
    if (kind === "optimizer" || phase === "optimizer") return "optimizer";
    if (kind === "compute" || (kind === "annotation" && this.definitions.layer[def] >= 0)) {
      return phase === "forward" ? "forward" : phase === "backward" ? "backward" : "compute";
    }
    return kind === "annotation" ? "outline" : "host";
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) {
      this.hits = null;
      return;
    }
    const match = this.strings.map((s) => s.toLowerCase().includes(wanted));
    const { name, layer } = this.definitions;
    this.hits = name.map((n, def) => match[n] || (layer[def] >= 0 && match[layer[def]]));
  }
}
