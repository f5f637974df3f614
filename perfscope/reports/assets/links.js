// Where a link leads: `#layers&filter=blocks.0`, `#layers-table&row=features.3.conv`,
// `#timeline&window=0&t0=0&t1=9000&find=all_reduce&rank=3&pin=3`, `#timeline&steps=40-44&ranks=3`. The page keeps its state in its address (place,
// zoom, filters, theme), so that the address is a link to what is shown.

function readFragment() {
  const [id, ...rest] = location.hash.slice(1).split("&");
  return { id: decodeURIComponent(id), params: new URLSearchParams(rest.join("&")) };
}

const FILTER = "f.";
const CHOICE = "c.";

// Everything that differs from the page as it opens, as parameters.
function pageState(timeline) {
  const params = new URLSearchParams(timeline && timeline.isMoved ? timeline.link : "");
  for (const field of document.querySelectorAll("[data-filter]")) {
    if (field.value) params.set(FILTER + field.dataset.filter, field.value);
  }
  for (const list of document.querySelectorAll("[data-facet]")) {
    const number = [...document.querySelectorAll(`[data-facet="${list.dataset.facet}"]`)].indexOf(list);
    if (list.value) params.set(`${CHOICE}${number}.${list.dataset.facet}`, list.value);
  }
  for (const [id, icicle] of icicles) if (icicle.zoomed) params.set(ZOOM + id, icicle.zoomed);
  const { theme } = document.documentElement.dataset;
  if (theme) params.set("theme", theme);
  return params;
}

// The rest of a place is as the page opens it: a link says all that it changes.
function restore(timeline, id, params) {
  const place = byId(id);
  setTheme(params.get("theme"));
  if (params.has("filter") && place) filterTables(place, params.get("filter"));
  for (const [name, value] of params) {
    if (name.startsWith(FILTER)) enter(`[data-filter="${CSS.escape(name.slice(FILTER.length))}"]`, value, "input");
    if (name.startsWith(CHOICE)) choose(name.slice(CHOICE.length), value);
    if (name.startsWith(ZOOM)) zoomIcicle(name.slice(ZOOM.length), value);
  }
  if (timeline && (id === "timeline" || params.has("t0"))) timeline.goTo(params);
  if (params.has("row") && place) revealNamed(place, params.get("row"));
}

function enter(selector, value, event) {
  for (const field of document.querySelectorAll(selector)) {
    field.value = value;
    field.dispatchEvent(new Event(event));
  }
}

function choose(name, value) {
  const at = name.indexOf(".");
  const list = document.querySelectorAll(`[data-facet="${CSS.escape(name.slice(at + 1))}"]`)[Number(name.slice(0, at))];
  if (!list || ![...list.options].some((option) => option.value === value)) return;
  list.value = value;
  list.dispatchEvent(new Event("change"));
}

function revealNamed(place, name) {
  const rows = [...place.querySelectorAll("[data-table] tbody tr")];
  const names = (row) => [...row.cells].filter((cell) => cell.matches(".code, .text, [data-rank]"));
  const row = rows.find((one) => names(one).some((cell) => cell.dataset.v === name));
  if (row) revealRow(row.closest("table"), row);
}

function startLinks(timeline) {
  for (const link of document.querySelectorAll("a.jump")) {
    link.hidden = !byId(link.hash.slice(1).split("&")[0]);
  }
  linkPlaces(timeline);
  let following = false;
  let timer = 0;
  const follow = () => {
    const { id, params } = readFragment();
    if (id && !byId(id)) return;
    following = true;
    clearTimeout(timer);
    restore(timeline, id, params);
    following = false;
  };
  addEventListener("hashchange", follow);
  follow();
  const keep = (id) => {
    if (following) return;
    clearTimeout(timer);
    timer = setTimeout(() => keepPlace(id ?? readFragment().id, pageState(timeline)), 300);
  };
  document.addEventListener("perfscope-view", () => {
    if (timeline) timeline.isMoved = true;
    keep("timeline");
  });
  document.addEventListener("perfscope-zoom", (event) => keep(event.detail));
  document.addEventListener("perfscope-chosen-theme", () => keep());
  for (const name of ["input", "change"]) {
    document.addEventListener(name, ({ target }) => {
      const table = target.dataset && (target.dataset.filter || target.dataset.facet);
      if (table) keep(table);
    });
  }
  startCopying(timeline);
  startCopyingCommands();
}

function filterTables(section, text) {
  for (const field of section.querySelectorAll("[data-filter]")) {
    field.value = text;
    field.dispatchEvent(new Event("input"));
  }
}

// A page from a file may refuse; then the address stays as it is.
function keepPlace(id, params) {
  try {
    const query = String(params);
    history.replaceState(null, "", `#${id}${query ? `&${query}` : ""}`);
  } catch {
    return;
  }
}

// The place on the screen: that of the address, unless another section has been scrolled to.
function placeShown() {
  const { id } = readFragment();
  const current = document.querySelector(".side nav a[aria-current]");
  const section = current ? current.hash.slice(1) : "";
  const target = id && byId(id);
  const holder = target && target.closest("main > section");
  return target && (!section || (holder && holder.id === section)) ? id : section;
}

function startCopying(timeline) {
  const button = byId("copy-link");
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", async () => {
    keepPlace(placeShown(), pageState(timeline));
    const done = await copied(location.href);
    button.textContent = done ? "Link copied" : "Link is in the address bar";
    setTimeout(() => { button.textContent = "Copy link"; }, 2500);
  });
}

// Beside each command or setting of an action.
function startCopyingCommands() {
  for (const code of document.querySelectorAll(".todo ~ code")) {
    const text = code.textContent;
    const button = element("button", "Copy", "copy");
    button.type = "button";
    button.title = `Copy ${text}`;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      button.textContent = (await copied(text)) ? "Copied" : "Not copied";
      button.focus(); // the fallback of copied() took it
      setTimeout(() => { button.textContent = "Copy"; }, 2500);
    });
    code.after(button);
  }
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", text);
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
