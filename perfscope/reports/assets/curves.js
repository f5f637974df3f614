// Curve charts: a cursor, and every curve's figure at its place.

function startCurves(figure, data) {
  const plot = figure.querySelector(".plot");
  const cursor = plot.querySelector(".cursor");
  const places = [...new Set(data.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  if (!places.length) return;
  let at = -1;
  const show = (index, y) => {
    at = clamp(index, 0, places.length - 1);
    const place = places[at];
    cursor.setAttribute("x1", `${place}%`);
    cursor.setAttribute("x2", `${place}%`);
    cursor.style.visibility = "visible";
    let title = "";
    const rows = [];
    for (const curve of data.curves) {
      const nearest = nearestReading(curve.x, place);
      // A curve that has no point near here says nothing rather than something of elsewhere.
      if (nearest < 0 || Math.abs(curve.x[nearest] - place) > 1.5) continue;
      if (curve.x[nearest] === place && !title) title = `${data.x_title}: ${curve.at[nearest]}`;
      rows.push([curve.label, curve.text[nearest]]);
    }
    const box = plot.getBoundingClientRect();
    showTip(title, rows, box.left + (box.width * place) / 100, y ?? box.top + 24);
  };
  const hide = () => {
    cursor.style.visibility = "hidden";
    hideTip();
  };
  figure.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    if (event.clientX < box.left || event.clientY < box.top || event.clientY > box.bottom) return hide();
    return show(nearestReading(places, (100 * (event.clientX - box.left)) / box.width), event.clientY);
  });
  figure.addEventListener("pointerleave", hide);
  figure.addEventListener("blur", hide);
  figure.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.key === "Escape") hide();
    if (!moves[event.key]) return;
    event.preventDefault();
    show(at + moves[event.key]);
  });
}
