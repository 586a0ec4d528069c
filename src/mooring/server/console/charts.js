// Small time series charts in SVG.

import { h, s } from "./dom.js";
import { clock } from "./time_format.js";
import { n, t } from "./i18n.js";

const WIDTH = 300;
const HEIGHT = 64;

/** `points` are [milliseconds, number], in order of time. */
export function chart(name, points, { unit = "", title = null } = {}) {
  const values = points.map(([, value]) => value);
  const last = values.at(-1);
  const [low, high] = scale(values);
  const figure = h(
    "figure",
    { class: "chart", "data-key": name },
    h(
      "figcaption",
      {},
      h("span", { class: "name" }, title ?? name),
      h("span", { class: "last" }, withUnit(last, unit)),
    ),
    drawing(name, points, low, high, unit),
    h(
      "div",
      { class: "scale" },
      h("span", {}, points.length > 1 ? clock(new Date(points[0][0])) : ""),
      h(
        "span",
        {},
        t("chart.between", {
          low: withUnit(Math.min(...values), unit),
          high: withUnit(Math.max(...values), unit),
        }),
      ),
      h("span", {}, points.length ? clock(new Date(points.at(-1)[0])) : ""),
    ),
  );
  return figure;
}

function drawing(name, points, low, high, unit) {
  const values = points.map(([, value]) => value);
  const summary = t("chart.summary", {
    name,
    last: withUnit(values.at(-1), unit),
    low: withUnit(Math.min(...values), unit),
    high: withUnit(Math.max(...values), unit),
  });
  const places = points.map((point) => place(point, points, low, high));
  const line = places.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  const [x, y] = places.at(-1);
  return s(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": summary,
    },
    s("title", {}, summary),
    [0.25, 0.5, 0.75].map((part) =>
      s("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part }),
    ),
    places.length > 1 &&
      s("polygon", {
        class: "area",
        points: `${places[0][0].toFixed(1)},${HEIGHT} ${line} ${x.toFixed(1)},${HEIGHT}`,
      }),
    places.length > 1
      ? s("polyline", { class: "line", points: line })
      : s("line", { class: "line", x1: 0, x2: WIDTH, y1: y, y2: y }),
  );
}

function place([time, value], points, low, high) {
  const first = points[0][0];
  const span = points.at(-1)[0] - first || 1;
  const x = ((time - first) / span) * WIDTH;
  const y = HEIGHT - 4 - ((value - low) / (high - low)) * (HEIGHT - 8);
  return [x, y];
}

/** Starts at zero if zero is near, so that small changes do not look large. */
function scale(values) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low > 0 && low < high * 0.75) low = 0;
  if (low === high) {
    const room = Math.abs(high) * 0.1 || 1;
    low -= room;
    high += room;
  }
  return [low, high];
}

export function withUnit(value, unit) {
  if (value === undefined || !Number.isFinite(value)) return "–";
  if (unit === "bytes") return bytes(value);
  return unit ? `${n(value)} ${unit}` : n(value);
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = value;
  while (Math.abs(left) >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${n(left, 1)} ${units[at]}`;
}

/** The unit of a metric, from the end of its name. */
export function unitOf(name) {
  if (/percent$/i.test(name)) return "%";
  if (/bytes$|memory.*(used|total|rss|available)$/i.test(name)) return "bytes";
  if (/(ms|millis|milliseconds)$/i.test(name)) return "ms";
  if (/seconds$/i.test(name)) return "s";
  return "";
}
