// Icicles: pointing and keys tell of a box, a click or Enter makes it as wide as the picture.

const ZOOM = "zoom.";
const icicles = new Map(); // id -> Icicle

class Icicle {
  constructor(chart) {
    this.chart = chart;
    this.id = chart.dataset.icicle;
    this.title = byId(this.id).querySelector("h3").textContent;
    this.plot = chart.querySelector("svg.plot");
    this.boxes = [...chart.querySelectorAll("g.ic")].map((group) => {
      const [depth, left, width] = group.dataset.at.split(" ").map(Number);
      const [rect, text] = [group.querySelector("rect"), group.querySelector("text")];
      return { group, rect, text, depth, left, width, ...group.dataset, path: group.dataset.path || "" };
    });
    this.top = this.boxes[0];
    this.active = null;
    this.pen = document.createElement("canvas").getContext("2d");
    this.live = element("p", null, "visually-hidden");
    this.live.setAttribute("aria-live", "polite");
    this.out = element("button", "Zoom out", "more");
    this.out.type = "button";
    this.out.addEventListener("click", () => this.go(this.parentOf(this.root)));
    chart.after(this.out, this.live);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.zoom("");
  }

  listen() {
    const { chart } = this;
    const boxOf = (event) => this.boxes.find(({ group }) => group === event.target.closest("g.ic"));
    chart.addEventListener("pointermove", (event) => this.tell(boxOf(event), event.clientX, event.clientY));
    chart.addEventListener("pointerleave", () => this.tell(null));
    chart.addEventListener("blur", () => this.tell(null));
    chart.addEventListener("click", (event) => {
      const box = boxOf(event);
      if (box) this.go(box === this.root ? this.parentOf(box) : box);
    });
    chart.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const now = this.active || this.root;
    const inView = this.boxes.filter((box) => this.isShown(box));
    const row = inView.filter(({ depth }) => depth === now.depth);
    const at = row.indexOf(now);
    const moves = {
      ArrowDown: () => inView.find((box) => box.depth === now.depth + 1 && this.holds(now, box)),
      ArrowUp: () => this.parentOf(now),
      ArrowRight: () => row[at + 1],
      ArrowLeft: () => row[at - 1],
    };
    if (event.key === "Enter") this.go(now);
    else if (event.key === "Escape") this.go(this.parentOf(this.root));
    else if (moves[event.key]) this.point(moves[event.key]() || now);
    else return;
    event.preventDefault();
  }

  point(box) {
    const place = box.rect.getBoundingClientRect();
    this.tell(box, place.left + Math.min(place.width / 2, 200), place.bottom);
    this.live.textContent = `${box.full}: ${box.value}, ${box.share}`;
  }

  holds(outer, inner) {
    return inner.left >= outer.left - 1e-3 && inner.left + inner.width <= outer.left + outer.width + 2e-3;
  }

  isShown(box) {
    return this.holds(this.root, box) || (box.depth < this.root.depth && this.holds(box, this.root));
  }

  parentOf(box) {
    return this.boxes.find((other) => other.depth === box.depth - 1 && this.holds(other, box)) || this.top;
  }

  // Of a layer by its name, "" where it has no box.
  pathOf(name) {
    const box = this.boxes.find(({ full, path }) => full === name && path);
    return box ? box.path : "";
  }

  get zoomed() {
    return this.root.path;
  }

  go(box) {
    this.zoom(box.path);
    document.dispatchEvent(new CustomEvent("perfscope-zoom", { detail: this.id }));
  }

  zoom(path) {
    this.root = this.boxes.find((box) => box.path === path) || this.top;
    this.out.hidden = this.root === this.top;
    this.chart.dataset.zoomed = this.root.path;
    this.tell(null);
    this.draw();
  }

  draw() {
    const { left, width } = this.root;
    this.pen.font = "12px system-ui, sans-serif";
    for (const box of this.boxes) {
      const isShown = this.isShown(box);
      box.group.style.display = isShown ? "" : "none";
      if (!isShown) continue;
      const x = clamp((100 * (box.left - left)) / width, 0, 100);
      const end = clamp((100 * (box.left + box.width - left)) / width, 0, 100);
      box.rect.setAttribute("x", `${x}%`);
      box.rect.setAttribute("width", `${end - x}%`);
      box.text.setAttribute("x", `${x}%`);
      const room = ((end - x) * this.plot.clientWidth) / 100 - 9;
      box.text.textContent = room > 20 ? fittedWord(this.pen, box.label, room) : "";
    }
  }

  tell(box, x, y) {
    if (this.active) this.active.rect.classList.remove("active");
    this.active = box || null;
    if (!box) return hideTip();
    box.rect.classList.add("active");
    return showTip(box.full, [["time", box.value], ["share", box.share]], x, y);
  }
}

function fittedWord(pen, text, width) {
  let cut = text.length;
  if (pen.measureText(text).width <= width) return text;
  while (cut > 1 && pen.measureText(`${text.slice(0, cut)}…`).width > width) cut -= 1;
  return cut > 1 ? `${text.slice(0, cut)}…` : "";
}

function startIcicle(chart) {
  icicles.set(chart.dataset.icicle, new Icicle(chart));
}

function zoomIcicle(id, path) {
  if (icicles.has(id)) icicles.get(id).zoom(path);
}
