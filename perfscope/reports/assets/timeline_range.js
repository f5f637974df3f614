// A selected range of the timeline: drawn over the lanes, and per rank what its time went to.

// In this order each part takes what the ones before it have left; what remains of the range is idle.
const RANGE_PARTS = [
  ["compute", "Compute"], ["exposed_comm", "Exposed communication"], ["copy", "Copy"],
  ["input_wait", "Input"], ["optimizer", "Optimizer"],
];

// Sorted [start, end] pairs without overlaps.
function unionOf(pairs) {
  const union = [];
  for (const [start, end] of pairs.sort((a, b) => a[0] - b[0])) {
    const last = union[union.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else union.push([start, end]);
  }
  return union;
}

function lengthOf(union) {
  return union.reduce((sum, [start, end]) => sum + end - start, 0);
}

// Which part a span counts for; "" = none: marks, and calls of the host.
function rangePart(data, def) {
  const key = data.colors[def];
  if (data.kind(def) === "annotation") return "";
  return key === "forward" || key === "backward" ? "compute" : key;
}

// Of one rank between two times: part -> ns, and `idle`. `lanes` are the rank's.
function rangeSums(data, lanes, t0, t1) {
  const pairs = new Map(RANGE_PARTS.map(([key]) => [key, []]));
  for (const lane of lanes) {
    for (const row of lane.rows) {
      for (let n = row.firstAfter(t0); n < row.spans.length && row.start[n] < t1; n += 1) {
        const part = pairs.get(rangePart(data, lane.def[row.spans[n]]));
        if (part) part.push([Math.max(row.start[n], t0), Math.min(row.end[n], t1)]);
      }
    }
  }
  const sums = {};
  let covered = [];
  let before = 0;
  for (const [key] of RANGE_PARTS) {
    covered = unionOf([...covered, ...pairs.get(key)]);
    const now = lengthOf(covered);
    sums[key] = now - before;
    before = now;
  }
  sums.idle = t1 - t0 - before;
  return sums;
}

function drawRange(view, pen) {
  view.canvas.dataset.range = view.range ? `${view.range[0]} ${view.range[1]}` : "";
  if (!view.range) return;
  const [x0, x1] = view.range.map((time) => clamp(view.x(time), view.gutter, view.gutter + view.plotWidth));
  if (x1 <= x0) return;
  const height = view.viewHeight - AXIS - MINIMAP;
  pen.fillStyle = view.color.accent;
  pen.globalAlpha = 0.12;
  pen.fillRect(x0, AXIS, x1 - x0, height);
  pen.globalAlpha = 1;
  for (const x of [x0, x1 - 1]) pen.fillRect(x, AXIS - 8, 1.5, height + 8);
}

class TimelineRange {
  constructor(view) {
    this.view = view;
    this.panel = byId("tl-range");
    this.live = byId("tl-live");
    this.isDragging = false;
    this.button = document.querySelector('[data-act="range"]');
  }

  get isOn() {
    return this.button.getAttribute("aria-pressed") === "true";
  }

  toggle() {
    this.button.setAttribute("aria-pressed", String(!this.isOn));
  }

  // Whether a press at `x` begins a selection: with Shift, or while the button is on.
  begin(event, x) {
    this.isDragging = (event.shiftKey || this.isOn) && x >= this.view.gutter;
    if (this.isDragging) this.from = this.inside(x);
    return this.isDragging;
  }

  inside(x) {
    return clamp(this.view.time(x), 0, this.view.window.dur);
  }

  drag(x) {
    this.view.range = [this.from, this.inside(x)].sort((a, b) => a - b);
    this.view.redraw();
  }

  end() {
    this.isDragging = false;
    this.select(this.view.range);
  }

  // `range`: [start, end] in ns since the window's start; null clears.
  select(range) {
    const { view } = this;
    view.range = range && range[1] - range[0] >= 1 ? range : null;
    this.tell();
    document.dispatchEvent(new Event("perfscope-view"));
    view.redraw();
  }

  tell() {
    const { view } = this;
    this.panel.hidden = !view.range;
    if (!view.range) return;
    const [t0, t1] = view.range;
    const ranks = view.ranks.map(({ rank, lanes }) => (
      { rank, sums: rangeSums(view.data, lanes.map(({ lane }) => lane), t0, t1) }));
    const parts = [...RANGE_PARTS.filter(([key]) => ranks.some(({ sums }) => sums[key] > 0)), ["idle", "Idle"]];
    const title = `Selected: ${formatNs(t1 - t0)}, from ${formatNs(t0)} to ${formatNs(t1)}`;
    const means = parts.map(([key]) => ranks.reduce((sum, { sums }) => sum + sums[key], 0) / ranks.length);
    const head = element("div", null, "tl-range-head");
    head.append(detailsTitle(title), this.act("Zoom to it", () => view.show(t0, t1)), this.act("Clear", () => this.select(null)));
    this.panel.replaceChildren(head, this.table(parts, ranks, means, t1 - t0));
    const said = parts.map(([, name], n) => `${name} ${formatNs(means[n])}`).join(", ");
    this.live.textContent = `${title}. ${ranks.length > 1 ? "Mean rank" : `Rank ${ranks[0].rank}`}: ${said}.`;
  }

  nameOf(rank) {
    const { compared } = this.view.data;
    return compared ? `${compared.runs[compared.ranks[rank][0]]}, ${compared.ranks[rank][1]}` : String(rank);
  }

  act(text, action) {
    const button = element("button", text);
    button.type = "button";
    button.addEventListener("click", action);
    return button;
  }

  table(parts, ranks, means, whole) {
    const table = element("table");
    const head = table.createTHead().insertRow();
    for (const name of ["Rank", ...parts.map(([, title]) => title)]) {
      const cell = element("th", name, "right");
      cell.scope = "col";
      head.append(cell);
    }
    const body = table.createTBody();
    const add = (name, values) => {
      const row = body.insertRow();
      const first = element("th", name, "right");
      first.scope = "row";
      row.append(first);
      for (const value of values) {
        const cell = element("td", formatNs(value), "right");
        cell.append(element("span", ` ${formatRatio(value / whole)}`, "quiet"));
        row.append(cell);
      }
    };
    if (ranks.length > 1) add("mean", means);
    for (const { rank, sums } of ranks) add(this.nameOf(rank), parts.map(([key]) => sums[key]));
    const box = element("div", null, "table-scroll dense");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Sums of the selected range, per rank");
    box.append(table);
    return box;
  }
}
