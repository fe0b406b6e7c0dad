// Heat maps, lines and strips, drawn without help. Each can be read by keyboard and screen reader.

import { byId, draw, make, shown } from "./dom.js";

// Dark blue over teal to yellow, evenly spaced in lightness, so that grey printing keeps the order.
const RAMP = [[48, 18, 80], [53, 64, 122], [38, 108, 134], [44, 152, 128], [115, 190, 94], [232, 222, 72]];

export function colour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const below = Math.min(Math.floor(place), RAMP.length - 2);
  const mix = RAMP[below].map((from, i) => Math.round(from + (RAMP[below + 1][i] - from) * (place - below)));
  return `rgb(${mix.join(" ")})`;
}

/**
 * A heat map of rows of numbers as a figure.
 * `label(row, column)` says what a cell is; hovering, touching or arrow keys tell it.
 * `outlined(row)` gives the column that is to be outlined, or undefined.
 */
export function heatMap({ title, rows, range, label, outlined, rowNames, columnNames, cell }) {
  const height = rows.length, width = rows[0].length;
  const size = cell ?? Math.min(22, Math.max(3, Math.floor(560 / width)));
  const named = columnNames && size >= 10;
  const margin = named ? 18 : 0;
  const [low, high] = range;
  const canvas = make("canvas", {
    width: margin + width * size, height: margin + height * size, tabIndex: 0,
    role: "img", "aria-label": `${title}: ${height} rows, ${width} columns; arrow keys read the cells`,
  });
  const context = canvas.getContext("2d");
  const spoken = make("p", { className: "hint", "aria-live": "polite", textContent: "\u00a0" });
  let at = { row: 0, column: 0 };

  function paint() {
    context.clearRect(0, 0, canvas.width, canvas.height);
    rows.forEach((row, i) => row.forEach((value, j) => {
      context.fillStyle = colour((value - low) / (high - low || 1));
      context.fillRect(margin + j * size, margin + i * size, size, size);
    }));
    if (named) names();
    if (outlined) {
      context.strokeStyle = "#fff";
      context.lineWidth = size >= 8 ? 2 : 1;
      rows.forEach((_, i) => {
        const j = outlined(i);
        if (j !== undefined) context.strokeRect(margin + j * size + 1, margin + i * size + 1, size - 2, size - 2);
      });
    }
  }

  function names() {
    context.fillStyle = getComputedStyle(document.body).color;
    context.font = `${Math.min(size - 1, 13)}px ui-monospace, monospace`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    columnNames.forEach((name, j) => context.fillText(shown(name).slice(0, 3), margin + (j + 0.5) * size, margin / 2));
    rowNames.forEach((name, i) => context.fillText(shown(name).slice(0, 3), margin / 2, margin + (i + 0.5) * size));
  }

  function tell(row, column, event) {
    if (row < 0 || column < 0 || row >= height || column >= width) return;
    at = { row, column };
    const text = label(row, column);
    spoken.textContent = text;
    if (event) showTip(text, event);
  }

  const cellOf = (event) => {
    const box = canvas.getBoundingClientRect();
    const scale = canvas.width / box.width;
    return [Math.floor(((event.clientY - box.top) * scale - margin) / size),
      Math.floor(((event.clientX - box.left) * scale - margin) / size)];
  };
  canvas.addEventListener("pointermove", (event) => tell(...cellOf(event), event));
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    tell(at.row + step[0], at.column + step[1]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  paint();
  return make("figure", { className: "map" }, make("figcaption", { textContent: title }), canvas, spoken);
}

function showTip(text, event) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const { width } = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 4)}px`;
  tip.style.top = `${event.clientY + 14}px`;
}

export function hideTip() {
  byId("tip").hidden = true;
}

const WIDTH = 620, HEIGHT = 300, LEFT = 60, BOTTOM = 40, TOP = 12, RIGHT = 12;

/** Curves on two logarithmic axes: `series` of {name, kind, points: [[x, y]]}. */
export function lineChart({ title, xName, yName, series }) {
  const xs = series.flatMap((one) => one.points.map(([x]) => x));
  const ys = series.flatMap((one) => one.points.map(([, y]) => y));
  const place = (value, values, from, to) => {
    const [low, high] = [Math.log(Math.min(...values)), Math.log(Math.max(...values))];
    return from + ((Math.log(value) - low) / (high - low || 1)) * (to - from);
  };
  const x = (value) => place(value, xs, LEFT, WIDTH - RIGHT);
  const y = (value) => place(value, ys, HEIGHT - BOTTOM, TOP);
  const picture = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  const line = (x1, y1, x2, y2) => draw("line", { x1, y1, x2, y2, class: "axis" });
  picture.append(line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM), line(LEFT, TOP, LEFT, HEIGHT - BOTTOM));
  for (const value of [...new Set(xs)]) {
    picture.append(draw("text", { x: x(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, String(value)));
  }
  for (let power = Math.ceil(Math.log10(Math.min(...ys))); 10 ** power <= Math.max(...ys); power++) {
    const at = y(10 ** power);
    picture.append(line(LEFT - 4, at, LEFT, at),
      draw("text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, String(10 ** power)));
  }
  picture.append(draw("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, xName),
    draw("text", { x: 12, y: TOP + 4 }, yName));
  for (const { kind, points } of series) {
    picture.append(draw("polyline", { class: `series ${kind}`, points: points.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }));
    for (const [a, b] of points) {
      picture.append(draw("circle", { class: `dot ${kind}`, cx: x(a), cy: y(b), r: 4 },
        draw("title", {}, `${a}: ${b.toPrecision(3)} ${yName}`)));
    }
  }
  const legend = make("ul", { className: "legend" },
    ...series.map(({ name, kind }) => make("li", { className: kind, textContent: name })));
  return [make("figcaption", { textContent: title }), picture, legend, valueTable(xName, series)];
}

/** The same numbers for those who do not see the picture. */
function valueTable(xName, series) {
  const xs = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  const head = make("tr", {}, make("th", { scope: "col", textContent: xName }),
    ...series.map((one) => make("th", { scope: "col", textContent: one.name })));
  const body = xs.map((x) => make("tr", {}, make("th", { scope: "row", textContent: x }),
    ...series.map((one) => make("td", { textContent: one.points.find(([a]) => a === x)?.[1].toPrecision(3) ?? "" }))));
  return make("details", {}, make("summary", { textContent: "As a table" }),
    make("div", { className: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body))));
}

/** Bars under the characters of a text: `values` in [0, highest], ticks where `marked`. */
export function strip({ symbols, values, highest, marked, label }) {
  const step = 14, height = 70;
  const picture = draw("svg", {
    viewBox: `0 0 ${symbols.length * step} ${height + 34}`, width: symbols.length * step, role: "img",
    "aria-label": symbols.map((symbol, i) => label(i)).join("; "),
  });
  symbols.forEach((symbol, i) => {
    const tall = Math.max(1, (values[i] / highest) * height);
    picture.append(
      draw("rect", { x: i * step + 2, y: height - tall, width: step - 4, height: tall, fill: colour(values[i] / highest) },
        draw("title", {}, label(i))),
      draw("text", { x: (i + 0.5) * step, y: height + 14, "text-anchor": "middle", "font-family": "monospace" }, shown(symbol)));
    if (marked[i]) picture.append(draw("text", { x: (i + 0.5) * step, y: height + 30, "text-anchor": "middle" }, "✗"));
  });
  return make("div", { className: "scroll" }, picture);
}
