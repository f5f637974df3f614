// Draws one window. Time runs right, ranks and lanes run down; the picture is drawn for the visible part only.

const ROW = 17;
const LANE_GAP = 7;
const RANK_GAP = 13;
const AXIS = 42;
const MINIMAP = 12;
const COMPACT_FROM = 1500; // pixels
const LEGEND = [
  ["forward", "Forward"], ["backward", "Backward"], ["compute", "Other compute"],
  ["exposed_comm", "Communication"], ["copy", "Copy"], ["input_wait", "Input"], ["loading", "Loader worker"], ["optimizer", "Optimizer"],
  ["host", "Host"], ["outline", "Step or other mark"],
];

class TimelineView {
  constructor(canvas, data) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.scroller = canvas.closest(".tl-scroll");
    this.sizer = canvas.closest(".tl-sizer");
    this.data = data;
    this.dense = false;
    this.hover = null; // {row, n}
    this.picked = null;
    this.range = null; // selected: [start, end]
    this.cursor = null; // time under the pointer
    this.showPath = true;
    this.pinned = new Set(); // ranks on top
    this.grouping = null; // of timeline_data.js
    this.allWorkers = false; // of data loaders, where there are many
    this.queued = false;
    this.readTheme();
    this.openWindow(0);
  }

  openWindow(index) {
    this.index = index;
    this.window = this.data.window(index);
    this.t0 = 0;
    this.t1 = this.window.dur;
    this.hover = null;
    this.picked = null;
    this.range = null;
    this.layOut();
  }

  // These ranks stand on top; [] = none.
  pin(ranks) {
    if (ranks.length === this.pinned.size && ranks.every((rank) => this.pinned.has(rank))) return;
    this.pinned = new Set(ranks);
    this.layOut();
    this.scroller.scrollTop = 0;
  }

  // `grouping`: null = none.
  group(grouping) {
    this.grouping = grouping;
    this.layOut();
    this.scroller.scrollTop = 0;
  }

  // The rank whose name is at a point of the canvas; null: no name is there.
  rankAt(x, y) {
    if (x >= this.gutter || y < AXIS) return null;
    const page = y + this.scroller.scrollTop;
    const entry = this.ranks.find(({ top, bottom }) => page >= top && page < bottom);
    return entry ? entry.rank : null;
  }

  // Many ranks start compact: comparing them is the point, and that needs them on one screen.
  startCompact() {
    this.dense = this.height > COMPACT_FROM;
    if (this.dense) this.layOut();
    return this.dense;
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    this.color = {
      bg: read("--bg"), surface: read("--surface"), ink: read("--ink"), ink2: read("--ink-2"), line: read("--line"),
      line2: read("--line-2"), accent: read("--accent"), hatch: read("--hatch"),
    };
    this.fill = {};
    this.ink = {};
    for (const [key] of LEGEND) {
      this.fill[key] = key === "outline" ? this.color.line2 : read(`--part-${key}`);
      this.ink[key] = key === "outline" ? this.color.ink : read(`--part-${key}-ink`);
    }
    this.hatches = { exposed_comm: this.hatch("diagonal"), input_wait: this.hatch("vertical"), optimizer: this.hatch("dots"), copy: this.hatch("horizontal") };
    this.warning = this.hatch("diagonal", this.fill.input_wait);
  }

  hatch(kind, color = this.color.hatch) {
    const tile = document.createElement("canvas");
    tile.width = 8;
    tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = color;
    pen.fillStyle = color;
    pen.lineWidth = 1.6;
    pen.beginPath();
    if (kind === "diagonal") for (const x of [-8, 0, 8]) { pen.moveTo(x, 8); pen.lineTo(x + 8, 0); }
    if (kind === "vertical") { pen.moveTo(4, 0); pen.lineTo(4, 8); }
    if (kind === "horizontal") { pen.moveTo(0, 4); pen.lineTo(8, 4); }
    if (kind === "dots") pen.fillRect(3, 3, 2, 2);
    pen.stroke();
    return this.context.createPattern(tile, "repeat");
  }

  // Rows from top to bottom, and the height they need.
  layOut() {
    this.rows = [];
    this.ranks = [];
    this.headings = [];
    this.places = new Map(); // lane -> where it is
    let y = AXIS + 6;
    for (const { text, lanes } of groupedLanes(this)) {
      if (text) {
        if (this.ranks.length) y += RANK_GAP;
        this.headings.push({ text, top: y });
        y += GROUP_HEADING;
      }
      y = this.layOutLanes(lanes, y, text !== "");
    }
    this.height = layOutCounters(this, y + RANK_GAP / 2) + MINIMAP + 8;
    this.resize();
  }

  // `y` below the last of the lanes, which begin at `y`.
  layOutLanes(lanes, y, hasHeading) {
    let rank = null;
    for (const lane of drawnLanes(this, lanes)) {
      if (rank === null || rank.rank !== lane.rank) {
        if (rank) y += RANK_GAP;
        const isFirst = !this.ranks.length || (hasHeading && !rank);
        rank = { rank: lane.rank, host: lane.host, top: y, bottom: y, lanes: [], isFirst };
        this.ranks.push(rank);
      }
      const place = { lane, top: y };
      const rows = this.visibleRows(lane);
      const least = rank.lanes.length ? 1 : 2; // the first lane of a rank also carries the rank's own label
      for (const row of rows) {
        row.top = y;
        y += ROW;
        this.rows.push(row);
      }
      if (hasCurve(lane)) {
        place.curve = y;
        y += CURVE_ROW;
      }
      y += Math.max(0, least - rows.length - (hasCurve(lane) ? 1 : 0)) * ROW + LANE_GAP;
      place.bottom = y - LANE_GAP;
      rank.lanes.push(place);
      this.places.set(lane, place);
      rank.bottom = y - LANE_GAP;
    }
    return y;
  }

  visibleRows(lane) {
    if (!this.dense) return lane.rows;
    const depth = this.tellingDepth(lane.role);
    const rows = lane.rows.filter((row) => row.depth <= depth);
    return rows.length ? rows.slice(-1) : lane.rows.slice(0, 1);
  }

  // Compact: one nesting level, the same for all ranks: the topmost that says nearly as much as any, steps and
  // other bare marks not counted.
  tellingDepth(role) {
    const said = [];
    const { colors } = this.data;
    for (const lane of this.window.lanes.filter((l) => l.role === role)) {
      for (const row of lane.rows) {
        for (const i of row.spans) {
          if (colors[lane.def[i]] !== "outline") said[row.depth] = (said[row.depth] || 0) + lane.end[i] - lane.start[i];
        }
      }
    }
    const most = Math.max(0, ...said.filter(Boolean));
    return Math.max(said.findIndex((time) => time && time >= 0.6 * most), 0);
  }

  resize() {
    const width = this.scroller.clientWidth;
    if (!width) return;
    const limit = this.onPaper ? this.height : parseFloat(getComputedStyle(this.scroller).maxHeight) || 680;
    this.width = width;
    this.gutter = width < 560 ? 74 : width < 900 ? 140 : 172;
    this.viewHeight = Math.ceil(Math.min(this.height, limit));
    this.sizer.style.height = `${this.height}px`;
    this.canvas.style.height = `${this.viewHeight}px`;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.viewHeight * scale);
    this.scale = scale;
    this.draw();
  }

  get plotWidth() {
    return Math.max(this.width - this.gutter - 8, 10);
  }

  x(time) {
    return this.gutter + ((time - this.t0) / (this.t1 - this.t0)) * this.plotWidth;
  }

  time(x) {
    return this.t0 + ((x - this.gutter) / this.plotWidth) * (this.t1 - this.t0);
  }

  // Keeps the view inside the window and no narrower than 20 ns.
  show(t0, t1) {
    const span = clamp(t1 - t0, Math.min(20, this.window.dur), this.window.dur);
    const start = clamp(t0, 0, this.window.dur - span);
    this.t0 = start;
    this.t1 = start + span;
    document.dispatchEvent(new Event("perfscope-view"));
    this.redraw();
  }

  zoom(factor, around) {
    const center = around ?? (this.t0 + this.t1) / 2;
    this.show(center - (center - this.t0) * factor, center + (this.t1 - center) * factor);
  }

  redraw() {
    if (this.queued) return;
    this.queued = true;
    const frame = () => {
      if (!this.queued) return;
      this.queued = false;
      this.draw();
    };
    requestAnimationFrame(frame);
    setTimeout(frame, 120); // pages in the background get no animation frames
  }

  draw() {
    if (!this.width) return;
    const pen = this.context;
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.fillStyle = this.color.bg;
    pen.fillRect(0, 0, this.width, this.viewHeight);
    this.scrollTop = this.scroller.scrollTop;
    this.drawn = 0;
    pen.save();
    pen.translate(0, -this.scrollTop);
    this.drawRankBands(pen);
    drawCounterNames(this, pen);
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, this.scrollTop + AXIS, this.plotWidth, this.viewHeight);
    pen.clip();
    drawDisturbances(this, pen, AXIS, this.height);
    this.drawGrid(pen);
    for (const row of this.rows) {
      if (row.top + ROW > this.scrollTop && row.top < this.scrollTop + this.viewHeight) this.drawRow(pen, row);
    }
    drawCounters(this, pen);
    drawLoaderCurves(this, pen);
    this.drawSteps(pen);
    drawPath(this, pen);
    this.outlineSpan(pen, this.hover, this.color.ink, 1.5);
    this.outlineSpan(pen, this.picked, this.color.ink, 2.5);
    pen.restore();
    drawHeadings(this, pen);
    pen.restore();
    this.drawAxis(pen);
    drawRange(this, pen);
    this.drawMinimap(pen);
    this.drawCursor(pen);
    this.tell();
  }

  drawRankBands(pen) {
    pen.textBaseline = "middle";
    for (const rank of this.ranks) {
      if (!rank.isFirst) {
        pen.fillStyle = this.color.line;
        pen.fillRect(0, rank.top - RANK_GAP / 2 - LANE_GAP / 2, this.width, 1);
      }
      if (this.pinned.has(rank.rank)) {
        pen.fillStyle = this.color.accent;
        pen.fillRect(2, rank.top - 2, 3, rank.bottom - rank.top);
      }
      pen.fillStyle = this.color.ink;
      pen.font = "600 12.5px system-ui, sans-serif";
      pen.fillText(rankName(this.data, rank.rank), 12, rank.top + ROW / 2);
      pen.font = "12px system-ui, sans-serif";
      for (const [m, place] of rank.lanes.entries()) {
        pen.fillStyle = this.color.ink2;
        const text = fitted(pen, place.lane.label, this.gutter - 22);
        pen.fillText(text, 12, place.top + ROW / 2 + (m ? 0 : ROW));
        drawCurveScale(this, pen, place);
      }
    }
  }

  ticks() {
    return timeTicks(this.t0, this.t1, this.plotWidth / 105);
  }

  drawGrid(pen) {
    pen.fillStyle = this.color.line;
    for (const [time] of this.ticks()) pen.fillRect(Math.round(this.x(time)), 0, 1, this.height);
  }

  drawRow(pen, row) {
    const { start, end, spans, lane } = row;
    const perPixel = (this.t1 - this.t0) / this.plotWidth;
    const hits = this.data.hits;
    for (let n = row.firstAfter(this.t0); n < spans.length && start[n] < this.t1;) {
      const def = lane.def[spans[n]];
      const x0 = this.x(start[n]);
      const width = (end[n] - start[n]) / perPixel;
      this.drawn += 1;
      if (width >= 1.5) {
        this.drawSpan(pen, row, n, def, x0, width, hits && !hits[def]);
        n += 1;
        continue;
      }
      // Narrower than a pixel: one mark for all that end within it, as strong as the pixel is covered.
      const edge = this.time(Math.floor(x0) + 1);
      const next = Math.max(row.firstAfter(edge), n + 1);
      const cover = (row.busy[next] - row.busy[n]) / perPixel;
      pen.globalAlpha = clamp(cover, 0.35, 1) * (hits && !this.anyHit(row, n, next) ? 0.18 : 1);
      pen.fillStyle = this.fill[this.data.colors[def]];
      pen.fillRect(Math.floor(x0), row.top, Math.max(Math.min(cover, 1.5), 1), ROW - 2);
      pen.globalAlpha = 1;
      n = next;
    }
  }

  anyHit(row, from, to) {
    const last = Math.min(to, from + 64);
    for (let n = from; n < last; n += 1) if (this.data.hits[row.lane.def[row.spans[n]]]) return true;
    return false;
  }

  drawSpan(pen, row, n, def, x0, width, dimmed) {
    const key = this.data.colors[def];
    const left = Math.max(x0, this.gutter - 2);
    const right = Math.min(x0 + width, this.gutter + this.plotWidth + 2);
    const size = Math.max(right - left - (width > 4 ? 1 : 0), 0.8);
    const tall = ROW - 2;
    const mark = this.data.kind(def) === "annotation";
    pen.globalAlpha = dimmed ? 0.18 : mark && key !== "outline" ? 0.34 : 1;
    if (key === "outline") {
      pen.fillStyle = this.color.surface;
      pen.fillRect(left, row.top, size, tall);
      pen.strokeStyle = this.color.line2;
      pen.lineWidth = 1;
      pen.strokeRect(left + 0.5, row.top + 0.5, Math.max(size - 1, 0), tall - 1);
    } else {
      pen.fillStyle = this.fill[key];
      pen.fillRect(left, row.top, size, tall);
      if (this.hatches[key] && size > 7) {
        pen.fillStyle = this.hatches[key];
        pen.fillRect(left, row.top, size, tall);
      }
    }
    pen.globalAlpha = dimmed ? 0.4 : 1;
    if (mark && key !== "outline") {
      pen.fillStyle = this.fill[key];
      pen.fillRect(left, row.top, Math.min(3, size), tall);
    }
    if (size > 26) this.label(pen, row, def, left, size, mark ? this.color.ink : this.ink[key], key);
    pen.globalAlpha = 1;
  }

  label(pen, row, def, left, size, ink, key) {
    pen.font = "11.5px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const mark = this.data.kind(def) === "annotation";
    const text = fittedName(pen, (mark && this.data.layer(def)) || this.data.name(def), size - 10);
    if (!text) return;
    if (this.hatches[key] && !mark) {
      // A plain ground under the words: hatching behind letters is hard to read.
      pen.fillStyle = this.fill[key];
      pen.fillRect(left + 2, row.top + 1, pen.measureText(text).width + 7, ROW - 4);
    }
    pen.fillStyle = ink;
    pen.fillText(text, left + 5, row.top + (ROW - 2) / 2 + 0.5);
  }

  drawSteps(pen) {
    pen.strokeStyle = this.color.ink2;
    pen.lineWidth = 1;
    pen.setLineDash([3, 3]);
    pen.beginPath();
    for (const mark of this.window.steps) {
      const rank = this.ranks.find((r) => r.rank === mark.rank);
      if (!rank) continue;
      for (const time of [mark.start, mark.end]) {
        if (time < this.t0 || time > this.t1) continue;
        const x = Math.round(this.x(time)) + 0.5;
        pen.moveTo(x, rank.top - 4);
        pen.lineTo(x, rank.bottom + 2);
      }
    }
    pen.stroke();
    pen.setLineDash([]);
  }

  outlineSpan(pen, span, color, width) {
    if (!span) return;
    const x0 = Math.max(this.x(span.row.start[span.n]), this.gutter - 3);
    const x1 = Math.min(this.x(span.row.end[span.n]), this.gutter + this.plotWidth + 3);
    pen.strokeStyle = color;
    pen.lineWidth = width;
    pen.strokeRect(x0 - 0.5, span.row.top - 0.5, Math.max(x1 - x0, 2), ROW - 1);
    this.outlineTwins(pen, span, color);
  }

  // The same work in the same step of the other ranks: that is what one compares.
  outlineTwins(pen, span, color) {
    const { lane } = span.row;
    const def = lane.def[span.row.spans[span.n]];
    const step = lane.step[span.row.spans[span.n]];
    const order = this.orderInStep(span.row, span.n, def, step);
    pen.lineWidth = 1;
    pen.strokeStyle = color;
    for (const row of this.rows) {
      if (row.lane.rank === lane.rank || row.lane.role !== lane.role || row.depth !== span.row.depth) continue;
      const twin = this.nthInStep(row, def, step, order);
      if (twin < 0 || row.end[twin] < this.t0 || row.start[twin] > this.t1) continue;
      const x0 = this.x(row.start[twin]);
      pen.strokeRect(x0 - 0.5, row.top - 0.5, Math.max(this.x(row.end[twin]) - x0, 2), ROW - 1);
    }
  }

  same(lane, index, def, step) {
    const { name, layer } = this.data.definitions;
    const other = lane.def[index];
    return lane.step[index] === step && name[other] === name[def] && layer[other] === layer[def];
  }

  orderInStep(row, n, def, step) {
    let order = 0;
    for (let k = n - 1; k >= 0 && row.lane.step[row.spans[k]] === step; k -= 1) {
      if (this.same(row.lane, row.spans[k], def, step)) order += 1;
    }
    return order;
  }

  nthInStep(row, def, step, order) {
    let left = order;
    for (let n = this.firstOfStep(row, step); n < row.spans.length && row.lane.step[row.spans[n]] === step; n += 1) {
      if (!this.same(row.lane, row.spans[n], def, step)) continue;
      if (left === 0) return n;
      left -= 1;
    }
    return -1;
  }

  firstOfStep(row, step) {
    const mark = this.window.steps.find((m) => m.rank === row.lane.rank && m.step === step);
    let n = mark ? row.firstAfter(mark.start) : 0;
    while (n < row.spans.length && row.lane.step[row.spans[n]] !== step) n += 1;
    return n;
  }

  drawAxis(pen) {
    pen.fillStyle = this.color.bg;
    pen.fillRect(0, 0, this.width, AXIS);
    drawDisturbances(this, pen, 0, AXIS, 1);
    pen.fillStyle = this.color.line2;
    pen.fillRect(0, AXIS - 1, this.width, 1);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    pen.fillStyle = this.color.ink2;
    for (const [time, text] of this.ticks()) {
      const x = this.x(time);
      pen.fillRect(Math.round(x), AXIS - 6, 1, 5);
      const half = pen.measureText(text).width / 2;
      pen.fillText(text, clamp(x, this.gutter + half, this.width - half - 4), AXIS - 14);
    }
    const steps = this.data.compared ? [] : [...this.window.whole.values()]; // headings name those of two runs
    steps.forEach((step, n) => this.drawStepName(pen, step, n + 1 < steps.length ? steps[n + 1].start : step.end));
    pen.textAlign = "left";
    pen.fillStyle = this.color.ink2;
    if (this.width >= 560) pen.fillText(this.data.compared ? "since the step's start" : "since window start", 12, AXIS - 14);
  }

  // Of all ranks. Where the first rank begins the next step before the last one ends this, the name stops there.
  drawStepName(pen, step, next) {
    const x0 = Math.max(this.x(step.start), this.gutter);
    const right = this.gutter + this.plotWidth;
    const [x1, end] = [step.end, Math.min(step.end, next)].map((time) => Math.min(this.x(time), right));
    if (x1 - x0 < 8) return;
    pen.fillStyle = this.color.line2;
    pen.fillRect(x0 + 1, 4, x1 - x0 - 2, 2);
    const text = `step ${step.step} · ${formatNs(step.end - step.start)}`;
    pen.fillStyle = this.color.ink;
    if (pen.measureText(text).width < end - x0 - 4) pen.fillText(text, (x0 + end) / 2, 15);
  }

  drawMinimap(pen) {
    const y = this.viewHeight - MINIMAP;
    pen.fillStyle = this.color.surface;
    pen.fillRect(0, y, this.width, MINIMAP);
    pen.fillStyle = this.color.line2;
    const x0 = this.gutter + (this.t0 / this.window.dur) * this.plotWidth;
    const width = ((this.t1 - this.t0) / this.window.dur) * this.plotWidth;
    pen.fillRect(x0, y + 3, Math.max(width, 6), MINIMAP - 6);
  }

  drawCursor(pen) {
    if (this.cursor === null || this.cursor < this.t0 || this.cursor > this.t1) return;
    const x = Math.round(this.x(this.cursor));
    pen.fillStyle = this.color.accent;
    pen.fillRect(x, AXIS - 8, 1, this.viewHeight - AXIS - MINIMAP + 8);
    const text = formatNs(this.cursor);
    pen.font = "600 12px system-ui, sans-serif";
    const width = pen.measureText(text).width + 10;
    const left = clamp(x - width / 2, this.gutter, this.width - width - 2);
    pen.fillRect(left, AXIS - 23, width, 17);
    pen.fillStyle = this.color.bg;
    pen.textBaseline = "middle";
    pen.fillText(text, left + 5, AXIS - 14);
  }

  // What the picture shows, for tests and for anyone who drives the page.
  tell() {
    const set = this.canvas.dataset;
    set.t0 = String(this.t0);
    set.t1 = String(this.t1);
    set.window = String(this.window.window);
    set.drawn = String(this.drawn);
    set.path = String(this.pathDrawn);
    set.ranks = this.ranks.map(({ rank }) => rank).join(" ");
    set.lanes = [...this.places.keys()].map(({ label }) => label).join("|");
    set.groups = this.headings.map(({ text }) => text).join("|");
    set.hover = this.hover ? this.spanName(this.hover) : "";
    set.picked = this.picked ? this.spanName(this.picked) : "";
  }

  spanName(span) {
    const def = span.row.lane.def[span.row.spans[span.n]];
    return `${rankName(this.data, span.row.lane.rank)} ${this.data.name(def)}`;
  }

  // The span at a point of the canvas, within two pixels; null where there is none.
  at(x, y) {
    if (x < this.gutter || y < AXIS) return null;
    const page = y + this.scroller.scrollTop;
    const row = this.rows.find((r) => page >= r.top && page < r.top + ROW);
    if (!row) return null;
    const slack = ((this.t1 - this.t0) / this.plotWidth) * 2;
    const time = this.time(x);
    const n = row.firstAfter(time);
    if (n < row.spans.length && row.start[n] <= time) return { row, n };
    const near = [n - 1, n].filter((k) => k >= 0 && k < row.spans.length);
    const gap = (k) => Math.max(row.start[k] - time, time - row.end[k]);
    const best = near.sort((a, b) => gap(a) - gap(b))[0];
    return best !== undefined && gap(best) <= slack ? { row, n: best } : null;
  }
}
