// Pointer, wheel, touch, keyboard, search and the details panel of the timeline.

function spanFacts(view, span) {
  const { data } = view;
  const { lane } = span.row;
  const index = span.row.spans[span.n];
  const def = lane.def[index];
  const start = span.row.start[span.n];
  const dur = span.row.end[span.n] - start;
  const known = (value) => (value < 0 ? null : value);
  const [flops, bytes] = [known(data.definitions.flops[def]), known(data.definitions.bytes[def])];
  const step = stepAround(view, lane, lane.step[index]);
  const facts = [["Duration", formatNs(dur)], ...loaderFacts(lane, index, dur), ...otherRunFacts(view, span)];
  const whose = data.compared ? "its step" : `step ${lane.step[index]}`;
  if (step) facts.push([`Share of ${whose}`, formatRatio(dur / (step.end - step.start))]);
  const reason = data.word("reason", def);
  if (data.layer(def) || reason) facts.push(["Layer", data.layer(def) || `none: ${reason}`]);
  for (const [title, column] of [["Axis", "axis"], ["Process group", "group"]]) {
    if (data.word(column, def)) facts.push([title, data.word(column, def)]);
  }
  const phase = data.phase(def);
  const kind = data.kind(def) === "annotation" ? (data.layer(def) ? "layer" : "mark") : data.kind(def);
  facts.push(["Kind", kind + (phase && phase !== "other" && phase !== kind ? `, ${phase}` : "")]);
  const run = data.compared ? `${data.compared.runs[runOf(data, lane.rank)]} · ` : "";
  facts.push(["Where", `${run}${rankName(data, lane.rank)} · ${lane.label}`], ["Starts at", formatNs(start)]);
  if (lane.host) facts.push(["Host", lane.host]);
  if (flops !== null) facts.push(["FLOPs, modeled", formatSi(flops, "FLOP")]);
  if (flops && dur > 0) facts.push(["Rate, modeled", formatSi((flops * 1e9) / dur, "FLOP/s")]);
  const comm = data.kind(def) === "comm";
  if (bytes !== null) facts.push([comm ? "Bytes" : "Bytes, modeled", formatBytes(bytes)]);
  if (bytes && dur > 0) facts.push([comm ? "Bytes / duration" : "Rate, modeled", formatSi((bytes * 1e9) / dur, "B/s")]);
  const count = data.definitions.count[def];
  if (count > 1) facts.push(["Stands for", `${formatCount(count)} merged spans`]);
  if (!lane.loader) facts.splice(2, 0, ...pathFacts(view, lane, start, start + dur));
  facts.push(...disturbanceFacts(view, start, start + dur));
  return { title: data.name(def), facts };
}

// Right below the section's title in the order of headings.
function detailsTitle(text) {
  const title = element("h4", text);
  title.setAttribute("aria-level", "3");
  return title;
}

// [first, last] of `5` or `3-5`; null: it is neither.
function rangeOf(text) {
  const [, first, last] = /^(\d+)(?:-(\d+))?$/.exec(text ?? "") || [];
  const range = [Number(first), Number(last ?? first)];
  return range[0] <= range[1] ? range : null;
}

const isWithin = (range, number) => Boolean(range) && number >= range[0] && number <= range[1];

class TimelineInput {
  constructor(view) {
    this.view = view;
    this.range = new TimelineRange(view);
    this.groups = new GroupChoice(view);
    this.workers = new WorkerChoice(view);
    this.pointers = new Map();
    this.moved = 0;
    this.hintTimer = 0;
    this.isMoved = false; // whether it shows anything else than at first
    this.listen();
  }

  listen() {
    const { canvas, scroller } = this.view;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", () => this.view.picked && this.zoomTo(this.view.picked));
    canvas.addEventListener("keydown", (event) => this.key(event));
    scroller.addEventListener("scroll", () => this.view.redraw(), { passive: true });
    document.addEventListener("perfscope-theme", () => {
      this.view.readTheme();
      this.view.redraw();
    });
    for (const [name, onPaper] of [["beforeprint", true], ["afterprint", false]]) {
      addEventListener(name, () => {
        this.view.onPaper = onPaper;
        this.view.readTheme();
        this.view.resize();
      });
    }
    new ResizeObserver(() => this.view.resize()).observe(scroller);
    for (const button of document.querySelectorAll(".tl-tools [data-act]")) {
      button.addEventListener("click", () => this.act(button.dataset.act, button));
    }
    byId("tl-search").addEventListener("input", (event) => this.search(event.target.value));
    byId("tl-search").addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.nextHit(event.shiftKey ? -1 : 1);
    });
  }

  // What a link needs to come back to.
  get link() {
    const { view } = this;
    const params = new URLSearchParams({ window: view.index, t0: Math.round(view.t0), t1: Math.round(view.t1) });
    const find = byId("tl-search").value;
    if (find) params.set("find", find);
    if (this.groups.key) params.set("group", this.groups.key);
    if (view.pinned.size) params.set("pin", [...view.pinned].join(","));
    if (view.picked) params.set("rank", view.picked.row.lane.rank);
    if (view.range) [["from", 0], ["to", 1]].forEach(([name, n]) => params.set(name, Math.round(view.range[n])));
    return params;
  }

  // Ranks that have lanes in any window; of two runs none, because the page does not say which run's rank it means.
  get ranks() {
    if (this.view.data.compared) return [];
    return [...new Set(this.view.data.raw.flatMap((window) => window.lanes.map((lane) => lane.rank)))];
  }

  // Follows a link: the window, the ranks on top, then steps, the longest span of what is looked for, on a rank if
  // one is named, or a range.
  goTo(params) {
    if (!params.size) return;
    const { view } = this;
    const number = (name) => (params.has(name) ? Number(params.get(name)) : NaN);
    const ranks = rangeOf(params.get("ranks"));
    const steps = this.stepsNear(rangeOf(params.get("steps")), ranks);
    const select = byId("tl-window");
    const index = steps ? steps.index : number("window");
    if (index in view.data.raw && index !== view.index) {
      select.value = String(index);
      select.dispatchEvent(new Event("change"));
    }
    if (params.has("group") || params.has("t0")) this.groups.choose(params.get("group"));
    const pins = (params.get("pin") || "").split(",").filter(Boolean).map(Number);
    const drawn = view.ranks.map((entry) => entry.rank);
    const meant = drawn.filter((one) => isWithin(ranks, one));
    view.pin([...pins.filter((pinned) => drawn.includes(pinned)), ...meant]);
    this.tellOf(rangeOf(params.get("steps")), steps, meant.length ? null : ranks);
    const text = params.get("find") || "";
    byId("tl-search").value = text;
    this.search(text);
    const rank = params.has("rank") ? number("rank") : meant[0] ?? NaN;
    const at = text ? this.longestHit(rank) : -1;
    const hasRange = number("t1") > number("t0");
    if (hasRange) view.show(number("t0"), number("t1"));
    else if (steps) view.show(steps.start - (steps.end - steps.start) * 0.02, steps.end + (steps.end - steps.start) * 0.02);
    if (number("to") > number("from")) this.range.select([number("from"), Math.min(number("to"), view.window.dur)]);
    if (at >= 0) {
      this.hitAt = at;
      this.pick(this.hits[at]);
      if (!hasRange) this.zoomTo(this.hits[at], 2);
    }
    const lanes = view.ranks.find((entry) => entry.rank === rank);
    if (lanes && at < 0) view.scroller.scrollTop = lanes.top - AXIS - 6;
  }

  // Traced steps within a range, or the nearest one: window, numbers, and times of the ranks that are meant, or of
  // all. null: there is none.
  stepsNear(range, ranks) {
    if (!range) return null;
    const away = (step) => Math.max(range[0] - step, step - range[1], 0);
    let best = null;
    this.view.data.raw.forEach((window, index) => {
      for (const [, step] of window.steps) if (!best || away(step) < away(best.step)) best = { index, step };
    });
    if (!best) return null;
    const marks = this.view.data.raw[best.index].steps.filter(([, step]) => (away(best.step) ? step === best.step : !away(step)));
    const own = marks.filter(([rank]) => isWithin(ranks, rank));
    const chosen = own.length ? own : marks;
    return {
      index: best.index,
      first: Math.min(...chosen.map(([, step]) => step)),
      isTraced: !away(best.step),
      start: Math.min(...chosen.map(([, , start]) => start)),
      end: Math.max(...chosen.map(([, , start, dur]) => start + dur)),
    };
  }

  // What of a link the timeline does not have.
  tellOf(range, steps, ranks) {
    const texts = [];
    const several = ([first, last]) => last > first;
    const name = (what, pair) => (several(pair) ? `${what}s ${pair.map(formatCount).join(" to ")}` : `${what} ${formatCount(pair[0])}`);
    if (range && steps && !steps.isTraced) {
      texts.push(`${name("Step", range)} ${several(range) ? "were" : "was"} not traced: this is step ${formatCount(steps.first)}, the nearest traced one.`);
    }
    if (range && !steps) texts.push("The traces have no step marks.");
    if (ranks) texts.push(`${name("Rank", ranks)} ${several(ranks) ? "have" : "has"} no lanes here.`);
    const note = byId("tl-note");
    note.hidden = !texts.length;
    note.textContent = texts.join(" ");
  }

  // Index of the longest hit, on `rank` unless that is NaN; -1: there is none.
  longestHit(rank) {
    let best = -1;
    let longest = -1;
    this.hits.forEach(({ row, n }, index) => {
      const dur = row.end[n] - row.start[n];
      if ((!Number.isNaN(rank) && row.lane.rank !== rank) || dur <= longest) return;
      best = index;
      longest = dur;
    });
    return best;
  }

  togglePin(rank) {
    const pinned = new Set(this.view.pinned);
    if (!pinned.delete(rank)) pinned.add(rank);
    this.view.pin([...pinned]);
    byId("tl-live").textContent = `R${rankName(this.view.data, rank).slice(1)} ${pinned.has(rank) ? "is pinned on top" : "is in its place"}.`;
    document.dispatchEvent(new Event("perfscope-view"));
  }

  place(event) {
    const box = this.view.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  // The wheel zooms once the timeline has been clicked, or with Ctrl; until then the page scrolls on.
  wheel(event) {
    const { view } = this;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    const active = document.activeElement === view.canvas || event.ctrlKey || event.metaKey;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const shift = (sideways / view.plotWidth) * (view.t1 - view.t0);
      view.show(view.t0 + shift, view.t1 + shift);
    } else if (active) {
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 20 : 1;
      const factor = Math.exp(clamp(event.deltaY * unit, -240, 240) * 0.0022);
      view.zoom(factor, view.time(Math.max(this.place(event)[0], view.gutter)));
    } else {
      this.hint();
    }
  }

  hint() {
    const hint = byId("tl-hint");
    hint.classList.add("shown");
    clearTimeout(this.hintTimer);
    this.hintTimer = setTimeout(() => hint.classList.remove("shown"), 1600);
  }

  down(event) {
    this.pointers.set(event.pointerId, this.place(event));
    this.view.canvas.setPointerCapture(event.pointerId);
    this.moved = 0;
    if (this.pointers.size === 1) this.range.begin(event, this.place(event)[0]);
    else this.range.isDragging = false;
  }

  move(event) {
    const now = this.place(event);
    const before = this.pointers.get(event.pointerId);
    const { view } = this;
    if (before && this.pointers.size === 2) {
      this.pinch(event.pointerId, now);
    } else if (before) {
      const shift = ((before[0] - now[0]) / view.plotWidth) * (view.t1 - view.t0);
      this.moved += Math.abs(before[0] - now[0]) + Math.abs(before[1] - now[1]);
      if (this.moved > 3 && this.range.isDragging) {
        this.range.drag(now[0]);
      } else if (this.moved > 3) {
        view.canvas.classList.add("dragging");
        if (event.pointerType === "mouse") view.scroller.scrollTop += before[1] - now[1];
        view.show(view.t0 + shift, view.t1 + shift);
      }
      this.pointers.set(event.pointerId, now);
    }
    this.point(now[0], now[1], event.clientX, event.clientY);
  }

  pinch(id, now) {
    const { view } = this;
    const [a, b] = [...this.pointers.values()].map((p) => p[0]);
    const [t0, t1] = [view.time(a), view.time(b)];
    this.pointers.set(id, now);
    const [c, d] = [...this.pointers.values()].map((p) => p[0]);
    if (Math.abs(d - c) < 8) return;
    const perPixel = (t1 - t0) / (d - c);
    if (perPixel <= 0) return;
    const start = t0 - (c - view.gutter) * perPixel;
    view.show(start, start + perPixel * view.plotWidth);
  }

  point(x, y, clientX, clientY) {
    const { view } = this;
    view.cursor = x >= view.gutter ? view.time(x) : null;
    view.hover = view.at(x, y);
    const tip = this.moved > 3 ? null : view.hover ? spanFacts(view, view.hover) : curveFacts(view, x, y) || machineFacts(view, x, y);
    if (tip) {
      const { title, facts } = tip;
      showTip(title, facts.slice(0, 6), clientX, clientY);
    } else {
      hideTip();
    }
    view.redraw();
  }

  up(event) {
    const had = this.pointers.delete(event.pointerId);
    this.view.canvas.classList.remove("dragging");
    if (had && event.type === "pointerup" && this.moved <= 3 && !this.pointers.size) {
      this.press(...this.place(event));
    } else if (had && this.range.isDragging && this.moved > 3) {
      this.range.end();
    }
    this.range.isDragging = false;
    this.moved = 0;
  }

  // A click on a rank's name pins it; one on a span keeps its figures.
  press(x, y) {
    const { view } = this;
    const rank = view.rankAt(x, y);
    if (rank === null) this.pick(view.at(x, y));
    else this.togglePin(rank);
  }

  leave() {
    this.view.cursor = null;
    this.view.hover = null;
    hideTip();
    this.view.redraw();
  }

  // Shows a span's figures below the picture and reads them out.
  pick(span) {
    const { view } = this;
    view.picked = span;
    const panel = byId("tl-details");
    if (!span) {
      panel.replaceChildren(element("p", "Point at a span for its figures; click it to keep them here.", "quiet"));
      byId("tl-live").textContent = "";
    } else {
      const { title, facts } = spanFacts(view, span);
      const list = element("dl");
      for (const [name, value] of facts) {
        const pair = element("div");
        pair.append(element("dt", name), element("dd", value));
        list.append(pair);
      }
      panel.replaceChildren(detailsTitle(title), list, ...this.placesOf(span));
      byId("tl-live").textContent = `${title}. ${facts.map(([name, value]) => `${name}: ${value}`).join(". ")}`;
      this.reveal(span);
    }
    view.redraw();
  }

  // Links to where the span's layer appears in the page; none without a layer.
  placesOf(span) {
    const layer = this.view.data.layer(span.row.lane.def[span.row.spans[span.n]]);
    const links = layer ? linksOf(placesOfLayer(layer, null, null)) : [];
    if (!links.length) return [];
    const line = element("p", null, "jumps");
    line.append(element("span", `${layer} in`, "quiet"), ...links);
    return [line];
  }

  reveal(span) {
    const { view } = this;
    const [start, end] = [span.row.start[span.n], span.row.end[span.n]];
    const width = view.t1 - view.t0;
    if (end < view.t0 || start > view.t1) view.show((start + end - width) / 2, (start + end + width) / 2);
    const top = span.row.top - view.scroller.scrollTop;
    if (top < AXIS + 4) view.scroller.scrollTop = span.row.top - AXIS - 20;
    else if (top + ROW > view.viewHeight - MINIMAP) view.scroller.scrollTop = span.row.top - view.viewHeight + 60;
  }

  // `margin`: times its duration, on either side.
  zoomTo(span, margin = 0.15) {
    const dur = Math.max(span.row.end[span.n] - span.row.start[span.n], 1);
    this.view.show(span.row.start[span.n] - dur * margin, span.row.end[span.n] + dur * margin);
  }

  act(name, button) {
    const { view } = this;
    if (name === "in") view.zoom(0.6);
    if (name === "out") view.zoom(1 / 0.6);
    if (name === "fit") view.show(0, view.window.dur);
    if (name === "step") this.nextStep();
    if (name === "path") this.togglePath();
    if (name === "workers") this.workers.toggle();
    if (name === "range") this.range.toggle();
    if (name === "dense") {
      view.dense = !view.dense;
      view.picked = null;
      view.hover = null;
      button.setAttribute("aria-pressed", String(view.dense));
      view.layOut();
    }
  }

  togglePath() {
    const { view } = this;
    view.showPath = !view.showPath;
    document.querySelector('[data-act="path"]').setAttribute("aria-pressed", String(view.showPath));
    view.redraw();
  }

  // Fits the next step of all ranks into the picture, then starts over.
  nextStep() {
    const { view } = this;
    const numbers = [...view.window.whole.keys()];
    if (!numbers.length) return;
    const at = numbers.indexOf(this.step ?? NaN);
    this.step = numbers[(at + 1) % numbers.length];
    const { start, end } = view.window.whole.get(this.step);
    view.show(start - (end - start) * 0.01, end + (end - start) * 0.01);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this;
    const shift = (view.t1 - view.t0) * 0.2;
    const picked = view.picked;
    const actions = {
      ArrowLeft: () => view.show(view.t0 - shift, view.t1 - shift),
      ArrowRight: () => view.show(view.t0 + shift, view.t1 + shift),
      ArrowUp: () => this.nextRow(-1),
      ArrowDown: () => this.nextRow(1),
      "+": () => view.zoom(0.6),
      "=": () => view.zoom(0.6),
      "-": () => view.zoom(1 / 0.6),
      0: () => view.show(0, view.window.dur),
      Home: () => view.show(0, view.t1 - view.t0),
      End: () => view.show(view.window.dur - (view.t1 - view.t0), view.window.dur),
      s: () => this.nextStep(),
      c: () => this.togglePath(),
      g: () => this.groups.next(),
      w: () => this.workers.toggle(),
      p: () => picked && this.togglePin(picked.row.lane.rank),
      r: () => this.range.select(view.range ? null : [view.t0, view.t1]),
      Enter: () => (picked ? this.zoomTo(picked) : this.pickFirst()),
    };
    if (picked) {
      // Tab belongs to the page until a span is picked; Esc gives it back.
      actions.Tab = () => this.nextSpan(event.shiftKey ? -1 : 1);
      actions.Escape = () => this.pick(null);
    }
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  pickFirst() {
    const { view } = this;
    for (const row of view.rows) {
      const n = row.firstAfter(view.t0);
      if (n < row.spans.length && row.start[n] < view.t1) return this.pick({ row, n });
    }
    return undefined;
  }

  nextSpan(direction) {
    const { row, n } = this.view.picked;
    this.pick({ row, n: clamp(n + direction, 0, row.spans.length - 1) });
  }

  nextRow(direction) {
    const { view } = this;
    if (!view.picked) {
      view.scroller.scrollTop += direction * ROW * 4;
      return;
    }
    const { row, n } = view.picked;
    const middle = (row.start[n] + row.end[n]) / 2;
    const next = view.rows[view.rows.indexOf(row) + direction];
    if (next && next.spans.length) this.pick({ row: next, n: clamp(next.firstAfter(middle), 0, next.spans.length - 1) });
  }

  search(text) {
    const { view } = this;
    view.data.search(text);
    this.hitAt = -1;
    this.hits = [];
    if (view.data.hits) {
      for (const row of view.rows) {
        row.spans.forEach((index, n) => {
          if (view.data.hits[row.lane.def[index]]) this.hits.push({ row, n });
        });
      }
    }
    this.hits.sort((a, b) => a.row.start[a.n] - b.row.start[b.n]);
    byId("tl-found").textContent = view.data.hits
      ? `${formatCount(this.hits.length)} span${this.hits.length === 1 ? "" : "s"}; Enter for the next` : "";
    document.dispatchEvent(new Event("perfscope-view"));
    view.redraw();
  }

  nextHit(direction) {
    if (!this.hits || !this.hits.length) return;
    this.hitAt = (this.hitAt + direction + this.hits.length) % this.hits.length;
    this.pick(this.hits[this.hitAt]);
  }
}
