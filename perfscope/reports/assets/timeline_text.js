// Words that fit their box.

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let low = 0;
  let high = Math.min(text.length, 400);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `${text.slice(0, low)}…` : "";
}

// The end of a path says most: features.3.conv, then 3.conv, then conv; gloo:all_reduce, then all_reduce.
function fittedName(pen, name, width) {
  let rest = name;
  while (rest && pen.measureText(rest).width > width) {
    const cut = rest.slice(0, 200).search(/[.:](?=[^.:])/);
    if (cut < 0) return fitted(pen, rest, width);
    rest = rest.slice(cut + 1);
  }
  return /^\d+$/.test(rest) ? "" : rest; // a bare index names nothing
}
