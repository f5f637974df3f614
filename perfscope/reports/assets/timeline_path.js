// The critical path: a strong line above the lanes it runs on, arrows where it goes from one to another.

const PATH_LINE = 3.5;
const PATH_ABOVE = 3.5; // pixels from a lane's top edge to the middle of the line

// Columns of equal length: lane (index into the window's lanes; -1 = not drawn), start, dur, step, reason.
function unpackPath(raw) {
  if (!raw) return null;
  // Steps overlap where ranks begin them apart: how far any piece until then reaches is what can be searched.
  let most = -Infinity;
  const end = raw.start.map((time, n) => time + raw.dur[n]);
  const reach = end.map((time) => (most = Math.max(most, time)));
  return { ...raw, end, reach };
}

// Places of the window's lanes, in the order of its data.
function lanePlaces(view) {
  return view.window.lanes.map((lane) => view.places.get(lane));
}

function firstPathPiece(path, time) {
  let low = 0;
  let high = path.end.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (path.reach[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

function drawPath(view, pen) {
  const { path } = view.window;
  view.pathDrawn = 0;
  if (!path || !view.showPath) return;
  const places = lanePlaces(view);
  const lines = new Path2D();
  const links = [];
  const y = (lane) => places[lane].top - PATH_ABOVE;
  let run = null; // pieces of one lane that touch on the screen
  const flush = () => {
    if (!run) return;
    lines.moveTo(run.x0, y(run.lane));
    lines.lineTo(Math.max(run.x1, run.x0 + 1.5), y(run.lane));
    view.pathDrawn += 1;
    run = null;
  };
  for (let n = firstPathPiece(path, view.t0); n < path.start.length; n += 1) {
    if (path.start[n] > view.t1) {
      if (path.step[n] === path.step[n - 1]) break;
      continue;
    }
    const lane = path.lane[n];
    const follows = n > 0 && path.step[n - 1] === path.step[n];
    if (follows && lane !== path.lane[n - 1] && path.start[n] >= view.t0) links.push(n);
    if (lane < 0 || path.end[n] < view.t0) {
      flush();
      continue;
    }
    const x0 = Math.max(view.x(path.start[n]), view.gutter - 3);
    const x1 = Math.min(view.x(path.end[n]), view.gutter + view.plotWidth + 3);
    if (run && run.lane === lane && x0 - run.x1 < 1) run.x1 = Math.max(run.x1, x1);
    else {
      flush();
      run = { lane, x0, x1 };
    }
  }
  flush();
  pen.lineCap = "butt";
  for (const [color, wide] of [[view.color.bg, PATH_LINE + 3], [view.color.ink, PATH_LINE]]) {
    pen.strokeStyle = color;
    pen.lineWidth = wide;
    pen.stroke(lines);
  }
  drawPathLinks(view, pen, links.map((n) => ({ x: view.x(path.start[n]), from: path.lane[n - 1], to: path.lane[n] })), y);
}

// Links closer than the eye can part become one, from where the first begins to where the last leads.
function joinedLinks(links) {
  const joined = [];
  for (const link of links) {
    const last = joined[joined.length - 1];
    if (last && link.x - last.x < 2.5 && link.from === last.to) last.to = link.to;
    else if (!last || link.x - last.x >= 2.5) joined.push({ ...link });
  }
  return joined.filter(({ from, to }) => from !== to && from >= 0 && to >= 0);
}

// Arrows point the way time runs: from what had to end to what then could go on.
function drawPathLinks(view, pen, links, y) {
  let last = -Infinity;
  for (const { x, from, to } of joinedLinks(links)) {
    const roomy = x - last > 7;
    last = x;
    const [top, tip] = [y(from), y(to)];
    const way = Math.sign(tip - top);
    for (const [color, wide] of [[view.color.bg, 4.5], [view.color.ink, roomy ? 2 : 1]]) {
      pen.strokeStyle = color;
      pen.lineWidth = wide;
      pen.beginPath();
      pen.moveTo(x, top);
      pen.lineTo(x, tip - way * (roomy ? 5 : 0));
      if (roomy || color !== view.color.bg) pen.stroke();
    }
    if (!roomy) continue;
    pen.fillStyle = view.color.ink;
    pen.beginPath();
    pen.moveTo(x, tip);
    pen.lineTo(x - 4.5, tip - way * 8);
    pen.lineTo(x + 4.5, tip - way * 8);
    pen.fill();
  }
}

// What the path has to do with a span: [[name, value], ...].
function pathFacts(view, lane, start, end) {
  const { path, lanes } = view.window;
  if (!path) return [];
  const own = lanes.indexOf(lane);
  let [time, reason] = [0, ""];
  for (let n = firstPathPiece(path, start); n < path.start.length; n += 1) {
    if (path.start[n] >= end && path.step[n] === path.step[n - 1]) break;
    const shared = Math.min(path.end[n], end) - Math.max(path.start[n], start);
    if (path.lane[n] !== own || shared <= 0) continue;
    time += shared;
    reason = path.end[n] <= end ? path.reasons[path.reason[n]] : "";
  }
  if (!time) return [["Critical path", "not on it"]];
  const share = formatRatio(time / Math.max(end - start, 1));
  const said = reason && reason !== "program order" && reason !== "stream order" ? `; then: ${reason}` : "";
  return [["Critical path", `${formatNs(time)} of this (${share})${said}`]];
}

function startPath(view) {
  const button = document.querySelector('[data-act="path"]');
  const any = view.data.raw.some((window) => window.path);
  button.hidden = !any;
  if (!any) return;
  const item = element("li", "Critical path ");
  const line = element("span", "", "path-swatch");
  line.setAttribute("aria-hidden", "true");
  item.prepend(line);
  item.append(element("kbd", "C"));
  byId("tl-legend").prepend(item);
}
