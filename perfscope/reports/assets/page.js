// Theme, section marker, tooltips, tables and the two still charts. All text goes in through textContent.

// Kept per browser. A page from a file may have no storage; then the choice lasts as long as the page.
function keptTheme(choice) {
  try {
    if (choice) localStorage.setItem("perfscope-theme", choice);
    return localStorage.getItem("perfscope-theme");
  } catch {
    return null;
  }
}

function setTheme(theme) {
  const { dataset } = document.documentElement;
  if ((theme !== "light" && theme !== "dark") || dataset.theme === theme) return;
  dataset.theme = theme;
  document.dispatchEvent(new Event("perfscope-theme"));
}

function startTheme() {
  const button = byId("theme");
  setTheme(keptTheme());
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    setTheme(isDark() ? "light" : "dark");
    keptTheme(document.documentElement.dataset.theme);
    document.dispatchEvent(new Event("perfscope-chosen-theme"));
  });
  document.addEventListener("perfscope-theme", label);
  dark.addEventListener("change", () => document.dispatchEvent(new Event("perfscope-theme")));
  // Paper is white.
  let chosen;
  addEventListener("beforeprint", () => {
    chosen = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    if (chosen === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
  });
  label();
}

// Sections fold by their titles; on a phone all but the first one are folded at first. Where a link leads is open.
function startFolding() {
  const narrow = window.matchMedia("(max-width: 620px)").matches;
  const sections = [...document.querySelectorAll("main > section")];
  const open = (section, isOpen) => {
    section.classList.toggle("folded", !isOpen);
    section.querySelector(".fold").setAttribute("aria-expanded", String(isOpen));
    if (isOpen) dispatchEvent(new Event("resize"));
  };
  sections.forEach((section, index) => {
    const title = section.querySelector("h2");
    const button = element("button", title.textContent, "fold");
    button.type = "button";
    title.replaceChildren(button);
    button.addEventListener("click", () => open(section, section.classList.contains("folded")));
    open(section, !narrow || index === 0);
  });
  const follow = () => {
    const target = byId(readFragment().id);
    const section = target && target.closest("main > section");
    if (!section) return;
    if (section.classList.contains("folded")) open(section, true);
    target.scrollIntoView();
  };
  addEventListener("hashchange", follow);
  follow();
}

function startSectionMarker() {
  const links = new Map();
  for (const link of document.querySelectorAll(".side nav a")) links.set(link.hash.slice(1), link);
  const seen = new Set();
  const mark = () => {
    const first = [...links.keys()].find((id) => seen.has(id));
    for (const [id, link] of links) {
      if (id === first) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) seen.add(entry.target.id);
      else seen.delete(entry.target.id);
    }
    mark();
  }, { rootMargin: "-60px 0px -45% 0px" });
  for (const id of links.keys()) watcher.observe(byId(id));
}

// rows: [[name, value], ...]
function showTip(title, rows, x, y) {
  const tip = byId("tip");
  tip.replaceChildren(element("strong", title));
  for (const [name, value] of rows) {
    const row = element("div", null, "row");
    row.append(element("span", name), element("span", value));
    tip.append(row);
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - box.width - 12 : x + 16;
  const top = y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18;
  tip.style.transform = `translate(${clamp(left, 4, Math.max(innerWidth - box.width - 4, 4))}px, ${Math.max(top, 4)}px)`;
}

function hideTip() {
  byId("tip").hidden = true;
}

function startStackedChart(chart) {
  const rows = [...chart.querySelectorAll(".row[data-label]")].map((row) => ({
    row,
    parts: [...row.querySelectorAll(".seg")],
  }));
  let active = null;
  const show = (part, x, y) => {
    if (active) active.classList.remove("active");
    active = part;
    if (!part) return hideTip();
    part.classList.add("active");
    const { label, total, note, whole } = part.closest(".row").dataset;
    const lines = [[part.dataset.part, part.dataset.value], ["share", part.dataset.share], [whole || "whole bar", total]];
    if (note) lines.push(["", note]);
    showTip(label, lines, x, y);
    return undefined;
  };
  const showAt = (line, column) => {
    const parts = rows[clamp(line, 0, rows.length - 1)].parts;
    const part = parts[clamp(column, 0, parts.length - 1)];
    if (!part) return;
    const box = part.getBoundingClientRect();
    show(part, box.left + box.width / 2, box.bottom - 8);
  };
  chart.addEventListener("pointermove", (event) => {
    const part = event.target.closest(".seg");
    show(part, event.clientX, event.clientY);
  });
  chart.addEventListener("pointerleave", () => show(null));
  chart.addEventListener("blur", () => show(null));
  chart.addEventListener("keydown", (event) => {
    const line = active ? rows.findIndex((r) => r.parts.includes(active)) : 0;
    const column = active ? rows[line].parts.indexOf(active) : -1;
    const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (event.key === "Escape") show(null);
    if (!moves[event.key]) return;
    event.preventDefault();
    showAt(line + moves[event.key][0], Math.max(column + moves[event.key][1], 0));
  });
}

function startSeries(chart, data) {
  const plot = chart.querySelector("svg.plot");
  const cursors = [...chart.querySelectorAll(".cursor")];
  const length = Math.max(...data.lines.map((line) => line.x.length));
  const longest = data.lines.find((line) => line.x.length === length);
  let at = -1;
  const show = (index, y) => {
    at = clamp(index, 0, length - 1);
    const x = longest.x[at];
    for (const cursor of cursors) {
      cursor.setAttribute("x1", `${(100 * x) / data.x_max}%`);
      cursor.setAttribute("x2", `${(100 * x) / data.x_max}%`);
      cursor.style.visibility = "visible";
    }
    const rows = data.lines.map((line) => [line.label, formatNs(line.y[at])]);
    if (data.slowest.length) rows.push(["slowest", `rank ${data.slowest[at]}`]);
    const box = plot.getBoundingClientRect();
    const title = data.steps.length ? `step ${formatCount(data.steps[at])}` : `${data.x_title} ${formatCount(x)}`;
    showTip(title, rows, box.left + (box.width * x) / data.x_max, y ?? box.top + 30);
  };
  const hide = () => {
    for (const cursor of cursors) cursor.style.visibility = "hidden";
    hideTip();
  };
  const panels = [...chart.querySelectorAll(".row:not(.axis-row)")];
  if (data.steps.length) for (const each of chart.querySelectorAll("svg.plot")) each.style.cursor = "pointer";
  // The steps of the point, on the panel's rank or on the slowest one.
  const go = (panel) => {
    if (at < 0 || !data.steps.length) return;
    const [first, last] = [data.steps[at], data.steps[at + 1] - 1];
    const [, own] = /^rank (\d+)$/.exec((data.lines[panels.indexOf(panel)] || {}).label) || [];
    showSteps(last > first ? `${first}-${last}` : String(first), String(own ?? data.slowest[at] ?? ""));
    hideTip();
  };
  chart.addEventListener("click", (event) => go(event.target.closest(".row")));
  chart.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * data.x_max;
    let index = longest.x.findIndex((value) => value >= x);
    if (index < 0) index = length - 1;
    if (index > 0 && x - longest.x[index - 1] < longest.x[index] - x) index -= 1;
    show(index, event.clientY);
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 };
    if (event.key === "Escape") hide();
    if (event.key === "Enter") go(null);
    if (!moves[event.key]) return;
    event.preventDefault();
    show(at + moves[event.key]);
  });
}

// A table that is wider than a narrow screen: each row becomes a card, as of tables that the page was made so with.
function cardsWhereNarrow(table, headers) {
  const box = table.parentElement;
  const narrow = window.matchMedia("(max-width: 620px)");
  const titles = headers.map((header) => (header.querySelector("button") || header).textContent);
  // A matrix, its columns numbered like its rows, is read across: it scrolls.
  if (titles.slice(1).every((title) => /^\d+$/.test(title))) return;
  const check = () => {
    if (!narrow.matches || box.classList.contains("cards") || box.scrollWidth <= box.clientWidth + 1) return;
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, column) => { cell.dataset.title = titles[column]; });
    }
    box.classList.add("cards");
  };
  narrow.addEventListener("change", check);
  check();
}

// Lists of choices above a table: each shows the rows that have the chosen value, with the number of such rows.
function startFacets(table, refresh) {
  const lists = [...document.querySelectorAll(`[data-facet="${table.dataset.table}"]`)];
  const values = new Map(lists.length ? [...table.tBodies[0].rows].map((row) => [row, JSON.parse(row.dataset.facets)]) : []);
  return lists.map((list, index) => {
    const counts = new Map();
    for (const facets of values.values()) {
      for (const value of new Set(facets[index])) counts.set(value, (counts.get(value) || 0) + 1);
    }
    const names = [...counts.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    for (const name of names) {
      const option = element("option", `${name} (${formatCount(counts.get(name))})`);
      option.value = name;
      list.append(option);
    }
    list.hidden = names.length < 2;
    list.addEventListener("change", refresh);
    return (row) => !list.value || values.get(row)[index].includes(list.value);
  });
}

const FOLDED_ROWS = window.matchMedia("(max-width: 620px)").matches ? 6 : 10;
const MANY_TABLES = 4; // a section with so many has room for fewer rows of each
const FEW_ROWS = 5;
const FEW_MORE = 2; // rows that are not worth a button
const PAPER_ROWS = 20;

function startTable(table) {
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  const beside = table.closest("section, main").querySelectorAll("[data-table]").length;
  const first = beside < MANY_TABLES ? FOLDED_ROWS : Math.min(FEW_ROWS, FOLDED_ROWS);
  let most = first;
  let folded = body.rows.length > first + FEW_MORE;
  let wanted = "";
  const choices = startFacets(table, () => refresh());
  const more = element("button", "", "more");
  const refresh = () => {
    const fits = (row) => {
      const text = () => `${row.textContent} ${row.dataset.facets || ""}`.toLowerCase();
      return choices.every((fitsChoice) => fitsChoice(row)) && (!wanted || text().includes(wanted));
    };
    const fitting = new Set([...body.rows].filter(fits));
    const hits = fitting.size;
    const limit = folded && hits > most + FEW_MORE ? most : hits;
    let shown = 0;
    for (const row of body.rows) {
      row.hidden = !fitting.has(row) || shown >= limit;
      if (!row.hidden) shown += 1;
    }
    more.textContent = folded ? `Show all ${formatCount(hits)} rows` : `Show the first ${first} rows`;
    more.hidden = hits <= first + FEW_MORE;
  };
  const key = (row, column) => {
    const text = row.cells[column].dataset.v;
    return headers[column].classList.contains("right") ? (text === "" ? null : Number(text)) : text;
  };
  const sort = (column) => {
    const header = headers[column];
    const numeric = header.classList.contains("right");
    const current = header.getAttribute("aria-sort");
    // Figures: largest first. Words: from A to Z.
    const next = current === "none" ? (numeric ? "descending" : "ascending")
      : current === "ascending" ? "descending" : "ascending";
    for (const other of headers) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row, index) => ({ row, index, value: key(row, column) }));
    rows.sort((a, b) => {
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null) || a.index - b.index;
      const order = numeric ? a.value - b.value : a.value.localeCompare(b.value, "en", { numeric: true });
      return sign * order || a.index - b.index;
    });
    body.append(...rows.map((item) => item.row));
    refresh();
  };
  headers.forEach((header, column) => {
    const button = header.querySelector("button");
    if (button) button.addEventListener("click", () => sort(column));
  });
  const filter = document.querySelector(`[data-filter="${table.dataset.table}"]`);
  if (filter) {
    filter.addEventListener("input", () => {
      wanted = filter.value.trim().toLowerCase();
      refresh();
    });
  }
  if (folded) {
    more.type = "button";
    more.addEventListener("click", () => {
      folded = !folded;
      refresh();
    });
    table.parentElement.after(more);
    // Paper takes the first rows, and says how many more there are.
    const left = element("p", "", "caption paper");
    more.after(left);
    addEventListener("beforeprint", () => {
      most = PAPER_ROWS;
      refresh();
      const hidden = [...body.rows].filter((row) => row.hidden).length;
      left.textContent = hidden ? `${formatCount(hidden)} more rows on the screen.` : "";
    });
    addEventListener("afterprint", () => {
      most = first;
      refresh();
    });
  }
  refresh();
  cardsWhereNarrow(table, headers);
}
