// Maps by color: pointing and arrow keys tell of a cell, a click or Enter shows it in the timeline.

// "3 to 5" of the name of several numbers.
const spanText = (name) => name.replace(/^(\d+)-(\d+)$/, "$1 to $2");

// The same place again: the page may have been scrolled since.
function show(fragment) {
  if (location.hash === `#${fragment}`) dispatchEvent(new Event("hashchange"));
  else location.hash = fragment;
}

// `steps`, `ranks`: a number, or `first-last`; "" for all ranks. Without a timeline, the ranks' row of step times.
function showSteps(steps, ranks) {
  if (byId("tl-canvas")) show(`timeline&${new URLSearchParams(ranks ? { steps, ranks } : { steps })}`);
  else show(ranks ? `steps-table&row=${ranks.split("-")[0]}` : "steps");
}

function showLayer(layer, ranks) {
  if (byId("tl-canvas")) show(`timeline&${new URLSearchParams({ find: layer, ranks })}`);
  else show(`layers-table&${new URLSearchParams({ row: layer })}`);
}

function startHeatMap(chart, data) {
  const plot = chart.querySelector("svg.plot");
  const size = [data.x.length, data.y.length];
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  cursor.setAttribute("class", "hm-cursor");
  cursor.setAttribute("width", `${100 / size[0]}%`);
  cursor.setAttribute("height", `${100 / size[1]}%`);
  plot.append(cursor);
  const live = element("p", null, "visually-hidden");
  live.setAttribute("aria-live", "polite");
  chart.append(live);
  let at = null; // [column, row]
  const point = (cell, x, y) => {
    at = cell;
    cursor.style.visibility = cell ? "visible" : "hidden";
    if (!cell) return hideTip();
    const [column, row] = cell;
    cursor.setAttribute("x", `${(100 * column) / size[0]}%`);
    cursor.setAttribute("y", `${(100 * row) / size[1]}%`);
    const level = data.cells[row][column];
    const title = data.to === "layer" ? data.y[row] : `${data.y_title} ${spanText(data.y[row])}`;
    const facts = [[data.x_title, spanText(data.x[column])], ["time", level === "." ? "not known" : data.levels[level]]];
    showTip(title, facts, x, y);
    return `${title}, ${facts.map((fact) => fact.join(" ")).join(", ")}`;
  };
  const go = () => {
    if (!at) return;
    const [x, y] = [data.x[at[0]], data.y[at[1]]];
    if (data.to === "layer") showLayer(y, x);
    else showSteps(x, y);
    hideTip();
  };
  const cellAt = (event) => {
    const box = plot.getBoundingClientRect();
    const cell = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((share, n) => Math.floor(share * size[n]));
    return cell.every((number, n) => number >= 0 && number < size[n]) ? cell : null;
  };
  const step = (moves) => {
    const cell = at ? at.map((number, n) => clamp(number + moves[n], 0, size[n] - 1)) : [0, 0];
    const box = plot.getBoundingClientRect();
    const [x, y] = cell.map((number, n) => ((number + 0.5) / size[n]) * [box.width, box.height][n]);
    live.textContent = point(cell, box.left + x, box.top + y);
  };
  chart.addEventListener("pointermove", (event) => point(cellAt(event), event.clientX, event.clientY));
  chart.addEventListener("pointerleave", () => point(null));
  chart.addEventListener("blur", () => point(null));
  chart.addEventListener("click", (event) => {
    point(cellAt(event), event.clientX, event.clientY);
    go();
  });
  chart.addEventListener("keydown", (event) => {
    const moves = {
      ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], PageDown: [10, 0], PageUp: [-10, 0],
    };
    if (event.key === "Escape") point(null);
    else if (event.key === "Enter") go();
    else if (moves[event.key]) step(moves[event.key]);
    else return;
    event.preventDefault();
  });
}
