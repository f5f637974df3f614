// The search of the whole page: sections, findings and rows of tables by name; "/" goes to its field.

const MOST_FOUND = 12;

function startSearch(timeline) {
  const field = byId("find");
  const list = byId("find-list");
  let entries = null;
  let found = [];
  let at = -1;

  const close = () => {
    list.hidden = true;
    at = -1;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  };
  const mark = (index) => {
    at = (index + found.length) % found.length;
    [...list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === at)));
    field.setAttribute("aria-activedescendant", `find-${at}`);
    list.children[at].scrollIntoView({ block: "nearest" });
  };
  const go = (entry) => {
    close();
    entry.go();
  };
  const show = () => {
    const wanted = field.value.trim().toLowerCase();
    entries = entries || searchEntries(timeline);
    found = wanted ? bestEntries(entries, wanted) : [];
    if (wanted && timeline) found.push(timelineEntry(field.value.trim(), `find=${encodeURIComponent(field.value.trim())}`));
    list.replaceChildren(...found.map((entry, index) => {
      const item = element("li", entry.text);
      item.id = `find-${index}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      item.append(element("span", entry.kind, "quiet"));
      item.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        go(entry);
      });
      return item;
    }));
    if (!found.length) return close();
    list.hidden = false;
    field.setAttribute("aria-expanded", "true");
    mark(0);
    return undefined;
  };
  field.addEventListener("input", show);
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (list.hidden) return;
    if (event.key === "Enter") go(found[at]);
    else if (event.key === "ArrowDown") mark(at + 1);
    else if (event.key === "ArrowUp") mark(at - 1);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
}

// Names that begin with what is wanted come first.
function bestEntries(entries, wanted) {
  const first = [];
  const others = [];
  for (const entry of entries) {
    const place = entry.text.toLowerCase().indexOf(wanted);
    if (place === 0) first.push(entry);
    else if (place > 0) others.push(entry);
    if (first.length === MOST_FOUND) break;
  }
  return [...first, ...others].slice(0, MOST_FOUND);
}

function timelineEntry(text, place) {
  return { text, kind: "in the timeline", go: () => { location.hash = `timeline&${place}`; } };
}

function searchEntries(timeline) {
  const entries = [];
  const findings = [];
  for (const section of document.querySelectorAll("main > section")) {
    const title = section.querySelector("h2").textContent;
    entries.push({ text: title, kind: "section", go: () => reveal(section.querySelector("h2"), section) });
    for (const finding of section.querySelectorAll(".finding")) {
      findings.push({ text: finding.querySelector("h3").textContent, kind: "finding", go: () => reveal(finding, finding) });
    }
    for (const table of section.querySelectorAll("[data-table]")) entries.push(...rowEntries(table, title, timeline));
  }
  return [...entries, ...findings];
}

function rowEntries(table, title, timeline) {
  const header = table.tHead.rows[0].cells[0].textContent;
  const isRank = /^rank$/i.test(header);
  const entries = [];
  for (const row of table.tBodies[0].rows) {
    const names = [...row.cells].filter((cell, index) => index === 0 || cell.classList.contains("code"));
    for (const cell of names) {
      const name = cell.dataset.v;
      if (!name) continue;
      const isNumber = !cell.matches(".code, .text");
      const text = isNumber ? `${header.toLowerCase()} ${name}` : name;
      entries.push({ text, kind: title, go: () => revealRow(table, row) });
      if (isRank && isNumber && timeline) entries.push(timelineEntry(text, `rank=${name}`));
    }
  }
  return entries;
}

function revealRow(table, row) {
  document.querySelectorAll(`[data-facet="${table.dataset.table}"]`).forEach((list, index) => {
    if (!list.value || JSON.parse(row.dataset.facets)[index].includes(list.value)) return;
    list.value = "";
    list.dispatchEvent(new Event("change"));
  });
  const filter = document.querySelector(`[data-filter="${table.dataset.table}"]`);
  if (row.hidden && filter && filter.value) {
    filter.value = "";
    filter.dispatchEvent(new Event("input"));
  }
  const more = table.parentElement.nextElementSibling;
  if (row.hidden && more && more.classList.contains("more")) more.click();
  reveal(row, row);
}

// Opens the section, goes there, and marks the place until another one is found.
function reveal(place, marked) {
  const section = place.closest("main > section");
  if (section.classList.contains("folded")) section.querySelector(".fold").click();
  for (const other of document.querySelectorAll(".found")) other.classList.remove("found");
  marked.classList.add("found");
  place.tabIndex = -1;
  place.scrollIntoView({ block: "center" });
  place.focus({ preventScroll: true });
}
