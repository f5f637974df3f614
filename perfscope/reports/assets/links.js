// Where a link leads: `#layers&filter=blocks.0`, `#timeline&window=1&t0=0&t1=9000&find=all_reduce&rank=3`. The
// timeline keeps its place in the page's address, so that the address is a link to it.

function readFragment() {
  const [id, ...rest] = location.hash.slice(1).split("&");
  return { id: decodeURIComponent(id), params: new URLSearchParams(rest.join("&")) };
}

function startLinks(timeline) {
  for (const link of document.querySelectorAll("a.jump")) {
    link.hidden = !byId(link.hash.slice(1).split("&")[0]);
  }
  if (timeline) linkLayers();
  let following = false;
  const follow = () => {
    const { id, params } = readFragment();
    if (!byId(id)) return;
    following = true;
    if (params.has("filter")) filterTables(byId(id), params.get("filter"));
    if (timeline && id === "timeline") timeline.goTo(params);
    following = false;
  };
  addEventListener("hashchange", follow);
  follow();
  let timer = 0;
  document.addEventListener("perfscope-view", () => {
    if (following) return;
    clearTimeout(timer);
    timer = setTimeout(() => keepPlace(timeline.link), 300);
  });
}

// Names of layers in tables lead to their spans.
function linkLayers() {
  for (const cell of document.querySelectorAll("td[data-layer]")) {
    const link = element("a", null, "quiet-link");
    link.href = `#timeline&${new URLSearchParams({ find: cell.dataset.v })}`;
    link.title = "Show in the timeline";
    link.append(...cell.childNodes);
    cell.append(link);
  }
}

function filterTables(section, text) {
  for (const field of section.querySelectorAll("[data-filter]")) {
    field.value = text;
    field.dispatchEvent(new Event("input"));
  }
}

// A page from a file may refuse; then the address stays as it is.
function keepPlace(params) {
  try {
    history.replaceState(null, "", `#timeline&${params}`);
  } catch {
    return;
  }
}
