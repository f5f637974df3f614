// What the machine did meanwhile: counters under the spans, and bands where something disturbed the run.

const COUNTER_ROW = 38;
const COUNTER_GAP = 8;

// Places the window's counters below `y` and gives the new bottom.
function layOutCounters(view, y) {
  let top = y;
  view.counters = (view.window.counters || []).map((lane) => {
    const placed = { lane, top };
    top += COUNTER_ROW + COUNTER_GAP;
    return placed;
  });
  return top;
}

function bandOf(view, mark) {
  const x0 = Math.max(view.x(mark.start), view.gutter);
  const x1 = Math.min(view.x(mark.end), view.gutter + view.plotWidth);
  return x1 >= x0 ? [x0, Math.max(x1 - x0, 2)] : null;
}

// Strong on the axis, faint behind spans and counters: those are to be read.
function drawDisturbances(view, pen, top, height, strength = 0.4) {
  for (const mark of view.window.disturbed || []) {
    const band = bandOf(view, mark);
    if (!band) continue;
    pen.globalAlpha = 0.13;
    pen.fillStyle = view.fill.input_wait;
    pen.fillRect(band[0], top, band[1], height);
    pen.globalAlpha = 0.5 * strength;
    pen.fillStyle = view.warning;
    pen.fillRect(band[0], top, band[1], height);
    pen.globalAlpha = 1;
  }
}

function drawCounters(view, pen) {
  for (const { lane, top } of view.counters) {
    const base = top + COUNTER_ROW;
    const y = (value) => base - clamp(value / lane.top, 0, 1) * (COUNTER_ROW - 4);
    pen.fillStyle = view.color.bg;
    pen.fillRect(view.gutter, top, view.plotWidth, COUNTER_ROW);
    pen.fillStyle = view.color.surface;
    pen.fillRect(view.gutter, top, view.plotWidth, COUNTER_ROW);
    drawDisturbances(view, pen, top, COUNTER_ROW);
    pen.beginPath();
    lane.t.forEach((time, n) => {
      if (n) pen.lineTo(view.x(time), y(lane.mean[n]));
      else pen.moveTo(view.x(time), y(lane.mean[n]));
    });
    pen.strokeStyle = view.fill.compute;
    pen.lineWidth = 1.6;
    pen.stroke();
    pen.fillStyle = view.fill.compute;
    lane.t.forEach((time, n) => {
      pen.beginPath();
      pen.arc(view.x(time), y(lane.mean[n]), 2.4, 0, 2 * Math.PI);
      pen.fill();
    });
  }
}

function drawCounterNames(view, pen) {
  pen.textBaseline = "middle";
  view.counters.forEach(({ lane, top }, n) => {
    if (!n) {
      pen.fillStyle = view.color.line;
      pen.fillRect(0, top - RANK_GAP / 2 - 2, view.width, 1);
    }
    pen.font = "600 12px system-ui, sans-serif";
    pen.fillStyle = view.color.ink;
    pen.fillText(fitted(pen, lane.label, view.gutter - 22), 12, top + 11);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = view.color.ink2;
    pen.fillText(fitted(pen, `0 to ${formatUnit(lane.unit, lane.top)}`, view.gutter - 22), 12, top + 27);
  });
}

// The figures under the pointer where there is no span: {title, facts}, or null.
function machineFacts(view, x, y) {
  if (x < view.gutter) return null;
  const time = view.time(x);
  const page = y + view.scroller.scrollTop;
  const facts = disturbanceFacts(view, time, time);
  const over = y < AXIS ? null : view.counters.find(({ top }) => page >= top && page < top + COUNTER_ROW);
  if (!over) return facts.length ? { title: "Disturbed", facts } : null;
  const { lane } = over;
  const n = nearestReading(lane.t, time);
  return { title: lane.label, facts: [[`At ${formatNs(lane.t[n])}`, formatUnit(lane.unit, lane.mean[n])], ["Host", lane.host], ...facts] };
}

function disturbanceFacts(view, start, end) {
  return (view.window.disturbed || []).filter((mark) => mark.start <= end && mark.end >= start)
    .map((mark) => ["Disturbed by", mark.detail ? `${mark.title} (${mark.detail})` : mark.title]);
}
