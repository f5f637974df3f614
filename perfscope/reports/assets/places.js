// Where else a layer or a rank appears: its lane, its rows, its operators. Names in tables lead there.

let opener = null; // the button whose menu is open

// [[text, fragment], ...] of a layer, but not of the table that asks.
function placesOfLayer(name, timeline, asking) {
  const places = [];
  if (timeline) places.push(["Timeline", `timeline&${new URLSearchParams({ find: name })}`]);
  for (const [id, icicle] of icicles) {
    const path = icicle.pathOf(name);
    if (path) places.push([icicle.title, `${id}&${new URLSearchParams({ [ZOOM + id]: path })}`]);
  }
  for (const table of document.querySelectorAll("main [data-table]")) {
    if (table === asking) continue;
    const isNamed = [...table.querySelectorAll("td[data-layer]")].some((cell) => cell.dataset.v === name);
    if (!isNamed) continue;
    const section = table.closest("section").querySelector("h2").textContent;
    const title = byId(table.dataset.table).querySelector("h3").textContent;
    const text = title === section ? title : `${section}: ${title}`;
    places.push([text, `${table.dataset.table}&${new URLSearchParams({ row: name })}`]);
  }
  return places;
}

function linksOf(places) {
  return places.map(([text, fragment]) => {
    const link = element("a", text);
    link.href = `#${fragment}`;
    return link;
  });
}

function linkPlaces(timeline) {
  const ranks = new Set(timeline ? timeline.ranks : []);
  for (const cell of document.querySelectorAll("td[data-layer]")) {
    if (timeline) linkContent(cell, { find: cell.dataset.v }, "Show in the timeline");
    addMenu(cell, timeline);
  }
  for (const cell of document.querySelectorAll("td[data-rank]")) {
    const rank = Number(cell.dataset.v);
    if (cell.dataset.v !== "" && ranks.has(rank)) linkContent(cell, { rank, pin: rank }, "Show its lanes in the timeline");
  }
  for (const row of document.querySelectorAll(".row[data-label]")) {
    const [, rank] = /^rank (\d+)$/i.exec(row.dataset.label) || [];
    const label = row.querySelector(".bar-label");
    if (label && rank !== undefined && ranks.has(Number(rank))) {
      linkContent(label, { rank, pin: rank }, "Show its lanes in the timeline");
    }
  }
}

function linkContent(holder, params, title) {
  const link = element("a", null, "quiet-link");
  link.href = `#timeline&${new URLSearchParams(params)}`;
  link.title = title;
  link.append(...holder.childNodes);
  holder.append(link);
}

function addMenu(cell, timeline) {
  const button = element("button", "⋯", "places-open");
  button.type = "button";
  button.setAttribute("aria-label", `Where ${cell.dataset.v} appears`);
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    const isOpen = button.getAttribute("aria-expanded") === "true";
    closePlaces();
    if (!isOpen) openPlaces(button, placesOfLayer(cell.dataset.v, timeline, cell.closest("table")));
  });
  cell.append(button);
}

function openPlaces(button, places) {
  const menu = element("div", null, "places");
  menu.id = "places";
  menu.setAttribute("role", "group");
  menu.setAttribute("aria-label", button.getAttribute("aria-label"));
  menu.append(...(places.length ? linksOf(places) : [element("p", "Nowhere else on this page.", "quiet")]));
  document.querySelector("main").append(menu); // a cell that sticks would lie under the next one
  opener = button;
  button.setAttribute("aria-expanded", "true");
  const box = button.getBoundingClientRect();
  menu.style.left = `${clamp(box.left, 8, Math.max(innerWidth - menu.offsetWidth - 8, 8))}px`;
  const below = box.bottom + 4 + menu.offsetHeight < innerHeight;
  menu.style.top = `${below ? box.bottom + 4 : Math.max(box.top - menu.offsetHeight - 4, 8)}px`;
  const first = menu.querySelector("a");
  if (first) first.focus({ preventScroll: true });
  menu.addEventListener("click", (event) => event.target.closest("a") && closePlaces());
  menu.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && !menu.contains(relatedTarget)) closePlaces();
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    closePlaces();
    button.focus();
  });
}

function closePlaces() {
  const menu = byId("places");
  if (!menu) return;
  opener.setAttribute("aria-expanded", "false");
  opener = null;
  menu.remove();
}

function startPlaces() {
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest(".places, .places-open")) closePlaces();
  });
  document.addEventListener("scroll", closePlaces, { passive: true });
}
