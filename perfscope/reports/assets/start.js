// Everything still is ready in the HTML; this adds what moves, the timeline last and after the first paint.

function startTimeline(raw) {
  performance.mark("perfscope-timeline");
  document.querySelector(".tl").hidden = false;
  const data = new TimelineData(raw);
  const view = new TimelineView(byId("tl-canvas"), data);
  const input = new TimelineInput(view);
  document.querySelector('[data-act="dense"]').setAttribute("aria-pressed", String(view.startCompact()));
  const select = byId("tl-window");
  data.raw.forEach((window, index) => {
    const numbers = window.steps.map((mark) => mark[1]);
    const range = !numbers.length ? "" : Math.min(...numbers) === Math.max(...numbers)
      ? `, step ${numbers[0]}` : `, steps ${Math.min(...numbers)}–${Math.max(...numbers)}`;
    const pair = data.compared && data.compared.steps[index].map(([step]) => step);
    const option = element("option", pair ? `Steps ${pair.join(" and ")}` : `Window ${window.window}${range}`);
    option.value = String(index);
    select.append(option);
  });
  select.hidden = data.raw.length < 2;
  select.addEventListener("change", () => {
    view.openWindow(Number(select.value));
    input.pick(null);
    input.range.select(null);
    input.search(byId("tl-search").value);
  });
  const legend = byId("tl-legend");
  const used = new Set(data.colors);
  for (const [key, title] of LEGEND) {
    if (!used.has(key)) continue;
    const item = element("li", title);
    item.prepend(swatch(key));
    legend.append(item);
  }
  if (data.raw.some((window) => window.disturbed.length)) {
    const item = element("li", "Disturbance");
    item.prepend(swatch("disturbed"));
    legend.append(item);
  }
  startPath(view);
  view.canvas.dataset.ready = "1";
  return input;
}

function swatch(key) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("class", "swatch");
  svg.setAttribute("aria-hidden", "true");
  for (const [kind, fill] of [[`f-${key}`, null], ["over", `url(#p-${key})`]]) {
    if (fill && !byId(`p-${key}`)) continue;
    const box = document.createElementNS(space, "rect");
    box.setAttribute("class", kind);
    box.setAttribute("width", "100%");
    box.setAttribute("height", "100%");
    if (fill) box.setAttribute("fill", fill);
    svg.append(box);
  }
  return svg;
}

function once(action) {
  let done = false;
  return () => {
    if (done) return;
    done = true;
    action();
  };
}

// Runs `action` when verdict and figures are on the screen. A page in the background is never painted, hence the timer.
function afterFirstPaint(action) {
  const go = once(action);
  setTimeout(go, 500);
  try {
    new PerformanceObserver(() => setTimeout(go, 0)).observe({ type: "paint", buffered: true });
  } catch {
    setTimeout(go, 50);
  }
}

function start() {
  const data = JSON.parse(byId("perfscope-data").textContent);
  for (const part of document.querySelectorAll(".js:not(.tl)")) part.hidden = false;
  startTheme();
  startSectionMarker();
  for (const chart of document.querySelectorAll("[data-chart]")) startStackedChart(chart);
  for (const chart of document.querySelectorAll("[data-series]")) startSeries(chart, data.series[chart.dataset.series]);
  for (const chart of document.querySelectorAll("[data-heat]")) startHeatMap(chart, data.heat[chart.dataset.heat]);
  for (const figure of document.querySelectorAll("[data-counters]")) startCounters(figure, data.counters[figure.dataset.counters]);
  for (const figure of document.querySelectorAll("[data-roofline]")) startRoofline(figure);
  for (const figure of document.querySelectorAll("[data-curves]")) startCurves(figure, data.curves[figure.dataset.curves]);
  for (const chart of document.querySelectorAll("[data-icicle]")) startIcicle(chart);
  for (const table of document.querySelectorAll("[data-table]")) startTable(table);
  document.documentElement.dataset.tables = "1"; // are as short as they open
  const timeline = data.timeline ? startTimeline(data.timeline) : null;
  startFolding();
  startLinks(timeline);
  startPlaces();
  startSearch(timeline);
  document.documentElement.dataset.ready = "1";
}

// What the browser test compares with perfscope/units.py.
window.perfscopeFormat = { formatNs, formatBytes, formatSi, formatCount, formatUnit };
afterFirstPaint(start);
