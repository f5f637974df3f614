// Lanes of data loaders: batches ready in the queue, and workers of which only a few are drawn at first.

const CURVE_ROW = 26;

function hasCurve(lane) {
  return lane.loader !== null && lane.loader.t.length > 0;
}

// Without the folded workers, or without the lane that stands for them.
function drawnLanes(view, lanes) {
  return lanes.filter((lane) => !lane.loader || (view.allWorkers ? lane.role !== "loader_fold" : !lane.loader.folded));
}

// Steps: a value holds until the next one.
function drawLoaderCurves(view, pen) {
  for (const { lane, curve } of view.places.values()) {
    if (curve === undefined) continue;
    const { t, value, top } = lane.loader;
    const base = curve + CURVE_ROW - 1;
    const y = (of) => base - (clamp(of / Math.max(top, 1), 0, 1) * (CURVE_ROW - 5));
    pen.beginPath();
    pen.moveTo(view.x(t[0]), base);
    let before = 0;
    t.forEach((time, n) => {
      pen.lineTo(view.x(time), y(before));
      pen.lineTo(view.x(time), y(value[n]));
      before = value[n];
    });
    const line = view.fill[lane.role === "loader_fold" ? "loading" : "compute"];
    pen.lineTo(view.x(Math.max(view.t1, t[t.length - 1])), y(before));
    pen.strokeStyle = line;
    pen.lineWidth = 1.4;
    pen.stroke();
    pen.lineTo(view.x(Math.max(view.t1, t[t.length - 1])), base);
    pen.fillStyle = line;
    pen.globalAlpha = 0.22;
    pen.fill();
    pen.globalAlpha = 1;
    pen.fillStyle = view.color.line2;
    pen.fillRect(view.gutter, base, view.plotWidth, 1);
  }
}

function drawCurveScale(view, pen, { lane, curve }) {
  if (curve === undefined || lane.role === "loader_fold") return;
  pen.fillText(fitted(pen, `ready, 0 to ${lane.loader.top}`, view.gutter - 22), 12, curve + CURVE_ROW / 2 + 1);
}

// Of a batch or a wait: [[name, value], ...].
function loaderFacts({ loader }, index, dur) {
  if (!loader) return [];
  const share = (ns) => `${formatNs(ns)} (${formatRatio(ns / Math.max(dur, 1))})`;
  const facts = [];
  if (loader.worker >= 0) facts.push(["Worker", String(loader.worker)]);
  if (loader.cpu) facts.push(["On a CPU", share(loader.cpu[index])]);
  if (loader.queued && loader.queued[index]) facts.push(["Waited for a CPU", share(loader.queued[index])]);
  const early = loader.early ? loader.early[index] : null;
  if (early !== null) facts.push(["Batch was finished", `${formatNs(Math.abs(early))} ${early < 0 ? "after" : "before"} the training asked`]);
  return facts;
}

// The value of a curve under the pointer: {title, facts}, or null.
function curveFacts(view, x, y) {
  const page = y + view.scroller.scrollTop;
  if (x < view.gutter || y < AXIS) return null;
  for (const { lane, curve } of view.places.values()) {
    if (curve === undefined || page < curve || page >= curve + CURVE_ROW) continue;
    const { t, value, top } = lane.loader;
    const time = view.time(x);
    const next = t.findIndex((at) => at > time);
    const n = next < 0 ? t.length - 1 : next - 1;
    if (n < 0) return null;
    const text = `${value[n]} of ${top}`;
    const where = ["Where", `${rankName(view.data, lane.rank)} · ${lane.label}`];
    if (lane.role === "loader_fold") return { title: `${text} workers make a batch`, facts: [where] };
    return { title: `${text} batches ready`, facts: [["When the training asked, at", formatNs(t[n])], where] };
  }
  return null;
}

// The button, hidden where no worker is folded.
class WorkerChoice {
  constructor(view) {
    this.view = view;
    this.button = document.querySelector('[data-act="workers"]');
    this.button.hidden = !view.data.raw.some((window) => window.lanes.some((lane) => lane.loader && lane.loader.folded));
  }

  toggle() {
    if (this.button.hidden) return;
    const { view } = this;
    view.allWorkers = !view.allWorkers;
    view.picked = null;
    view.hover = null;
    this.button.setAttribute("aria-pressed", String(view.allWorkers));
    view.layOut();
  }
}
