// Lanes in groups with headings: by host, along an axis of the mesh, or by run where two runs are compared.

const GROUP_HEADING = 24; // pixels

// [{text, lanes}, ...] in the order in which they are drawn; text "" = no heading.
function groupedLanes(view) {
  const { lanes } = view.window;
  const pinned = lanes.filter((lane) => view.pinned.has(lane.rank));
  const others = lanes.filter((lane) => !view.pinned.has(lane.rank));
  const { grouping } = view;
  if (!grouping) return [{ text: "", lanes: [...pinned, ...others] }];
  const groups = headingsOf(view, grouping).map((text) => ({ text, lanes: [] }));
  const none = { text: "in no group", lanes: [] };
  for (const lane of others) (groups[grouping.of[lane.rank]] ?? none).lanes.push(lane);
  return [{ text: "pinned", lanes: pinned }, ...groups, none].filter((group) => group.lanes.length);
}

// Of two runs each heading says which step it is and how long it took.
function headingsOf(view, grouping) {
  const { compared } = view.data;
  if (!compared) return grouping.names;
  return compared.steps[view.window.window].map(([step, dur], run) => `${compared.runs[run]}: step ${step}, ${formatNs(dur)}`);
}

function drawHeadings(view, pen) {
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  for (const { text, top } of view.headings) {
    pen.fillStyle = view.color.surface;
    pen.fillRect(0, top, view.width, GROUP_HEADING - 4);
    pen.fillStyle = view.color.line2;
    pen.fillRect(0, top + GROUP_HEADING - 5, view.width, 1);
    pen.fillStyle = view.color.ink;
    pen.font = "650 12.5px system-ui, sans-serif";
    pen.fillText(fitted(pen, text, view.width - 20), 12, top + (GROUP_HEADING - 4) / 2);
  }
}

function rankName(data, rank) {
  return `rank ${data.compared ? data.compared.ranks[rank][1] : rank}`;
}

// Which of two runs a rank is of; 0 where there is one.
function runOf(data, rank) {
  return data.compared ? data.compared.ranks[rank][0] : 0;
}

// A step over the ranks of the lane's run.
function stepAround(view, lane, number) {
  const { data, window } = view;
  if (!data.compared) return window.whole.get(number);
  const run = runOf(data, lane.rank);
  return wholeSteps(window.steps.filter(({ rank }) => runOf(data, rank) === run)).get(number);
}

// How long the same work took in the other run: [[name, value]], [] where it is not there.
function otherRunFacts(view, span) {
  const { compared } = view.data;
  if (!compared) return [];
  const { lane } = span.row;
  const [run, number] = compared.ranks[lane.rank];
  const def = lane.def[span.row.spans[span.n]];
  const step = lane.step[span.row.spans[span.n]];
  const order = view.orderInStep(span.row, span.n, def, step);
  const isTwin = (row) => row.lane.role === lane.role && row.depth === span.row.depth && runOf(view.data, row.lane.rank) !== run;
  const own = span.row.end[span.n] - span.row.start[span.n];
  const rows = view.rows.filter(isTwin).sort((a, b) => apart(a) - apart(b));
  function apart(row) {
    return Math.abs(compared.ranks[row.lane.rank][1] - number);
  }
  for (const row of rows) {
    const twin = view.nthInStep(row, def, step, order);
    if (twin < 0) continue;
    const other = row.end[twin] - row.start[twin];
    const change = `; here ${formatNs(Math.abs(own - other))} ${own < other ? "less" : "more"}`;
    return [[`In ${compared.runs[1 - run]}, ${rankName(view.data, row.lane.rank)}`, `${formatNs(other)}${own === other ? "" : change}`]];
  }
  return [[`In ${compared.runs[1 - run]}`, "not there, or merged with its neighbors"]];
}

// The list to choose from; hidden where there is nothing to choose.
class GroupChoice {
  constructor(view) {
    this.view = view;
    this.select = byId("tl-group");
    const { groupings, compared } = view.data;
    this.groupings = compared ? [] : groupings;
    if (compared) view.group(groupings[0]);
    if (!this.groupings.length) return;
    this.select.hidden = false;
    for (const { key, title } of this.groupings) {
      const option = element("option", `By ${title}`);
      option.value = key;
      this.select.append(option);
    }
    this.select.addEventListener("change", () => this.choose(this.select.value));
  }

  get key() {
    return this.select.value;
  }

  // `key`: of a grouping; anything else ungroups.
  choose(key) {
    if (!this.groupings.length) return;
    const grouping = this.groupings.find((one) => one.key === key) ?? null;
    this.select.value = grouping ? key : "";
    if (this.view.grouping === grouping) return;
    this.view.group(grouping);
    byId("tl-live").textContent = grouping ? `Lanes are grouped by ${grouping.title}.` : "Lanes are not grouped.";
    document.dispatchEvent(new Event("perfscope-view"));
  }

  next() {
    const keys = ["", ...this.groupings.map(({ key }) => key)];
    this.choose(keys[(keys.indexOf(this.key) + 1) % keys.length]);
  }
}
