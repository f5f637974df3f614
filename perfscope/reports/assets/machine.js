// Counters over the run and rooflines: a cursor through all charts, figures under the pointer.

// Index of the reading nearest to `time`; -1 where there is none.
function nearestReading(times, time) {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < time) low = middle + 1;
    else high = middle;
  }
  if (low > 0 && (low === times.length || time - times[low - 1] < times[low] - time)) low -= 1;
  return times.length ? low : -1;
}

function readingText(unit, line, index) {
  const value = line.mean[index];
  if (value === null || value === undefined) return MISSING;
  const [low, high] = [line.low[index], line.high[index]];
  const text = formatUnit(unit, value);
  return low === null || low === high ? text : `${text} (${formatUnit(unit, low)} to ${formatUnit(unit, high)})`;
}

function startCounters(figure, data) {
  const charts = [...figure.querySelectorAll(".ct-chart")];
  const plots = charts.map((chart) => chart.querySelector(".ct-plot"));
  const cursors = plots.map((plot) => plot.querySelector(".cursor"));
  const step = data.span / 200;
  let at = 0;
  let which = 0;
  const show = (time, chart, y) => {
    at = clamp(time, 0, data.span);
    which = clamp(chart, 0, charts.length - 1);
    const share = at / data.span;
    for (const cursor of cursors) {
      cursor.setAttribute("x1", `${100 * share}%`);
      cursor.setAttribute("x2", `${100 * share}%`);
      cursor.style.visibility = "visible";
    }
    const { title, unit, lines } = data.charts[which];
    const rows = lines.map((line) => {
      const times = data.times[line.t];
      const index = nearestReading(times, at);
      return [line.label, index < 0 ? MISSING : readingText(unit, line, index)];
    });
    const during = data.marks.filter((mark) => mark.start <= at && at <= mark.end).map((mark) => ["", mark.title]);
    const box = plots[which].getBoundingClientRect();
    showTip(`${title}, at ${formatNs(at)}`, [...rows, ...during], box.left + box.width * share, y ?? box.top + 20);
  };
  const hide = () => {
    for (const cursor of cursors) cursor.style.visibility = "hidden";
    hideTip();
  };
  figure.addEventListener("pointermove", (event) => {
    const box = plots[0].getBoundingClientRect();
    const over = charts.findIndex((chart) => chart.contains(event.target));
    if (over < 0 || event.clientX < box.left) return hide();
    return show(((event.clientX - box.left) / box.width) * data.span, over, event.clientY);
  });
  figure.addEventListener("pointerleave", hide);
  figure.addEventListener("blur", hide);
  figure.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: [step, 0], ArrowLeft: [-step, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (event.key === "Escape") hide();
    if (!moves[event.key]) return;
    event.preventDefault();
    show(at + moves[event.key][0], which + moves[event.key][1]);
  });
}

function startRoofline(figure) {
  const points = [...figure.querySelectorAll(".rf-point")]; // longest first
  let active = null;
  const show = (point, x, y) => {
    if (active) active.classList.remove("active");
    active = point;
    if (!point) return hideTip();
    point.classList.add("active");
    const { label, phase, time, rate, intensity, fraction, bound } = point.dataset;
    const rows = [
      ["Traced time per step", time], ["FLOP/s, modeled", rate], ["FLOP/byte, modeled", intensity],
      ["Of attainable", fraction], ["Bound by", bound],
    ];
    return showTip(`${label}, ${phase}`, rows, x, y);
  };
  figure.addEventListener("pointermove", (event) => show(event.target.closest(".rf-point"), event.clientX, event.clientY));
  figure.addEventListener("pointerleave", () => show(null));
  figure.addEventListener("blur", () => show(null));
  figure.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.key === "Escape") show(null);
    if (!moves[event.key]) return;
    event.preventDefault();
    const next = points[clamp((active ? points.indexOf(active) : -1) + moves[event.key], 0, points.length - 1)];
    const box = next.firstElementChild.getBoundingClientRect();
    show(next, box.right, box.bottom);
  });
}
