// Moments: shown by how long ago they are, with the moment itself when pointed at.

import { h } from "./dom.js";
import { locale, t } from "./words.js";

let skew = 0;

/** The server's clock counts: a laptop's may be minutes off. */
export function learn(date) {
  const theirs = Date.parse(date ?? "");
  if (Number.isNaN(theirs)) return;
  const off = theirs - Date.now();
  skew = Math.abs(off) > 3000 ? off : 0;
}

export const now = () => Date.now() + skew;

export function when(moment) {
  if (!moment) return h("span", { class: "muted" }, "–");
  const at = new Date(moment);
  if (Number.isNaN(at.getTime())) return h("span", { class: "muted" }, "–");
  return h("time", { datetime: at.toISOString(), title: absolute(at) }, ago(at));
}

/** Words like "3min ago", as the language has them. */
export function ago(at) {
  const seconds = (at.getTime() - now()) / 1000;
  if (Math.abs(seconds) < 3) return t("time.now");
  const [amount, unit] = scaled(seconds);
  const format = new Intl.RelativeTimeFormat(locale(), { numeric: "always", style: "narrow" });
  return format.format(amount, unit);
}

function scaled(seconds) {
  const size = Math.abs(seconds);
  if (size < 60) return [Math.round(seconds), "second"];
  if (size < 3600) return [Math.round(seconds / 60), "minute"];
  if (size < 86400) return [Math.round(seconds / 3600), "hour"];
  return [Math.round(seconds / 86400), "day"];
}

export function absolute(at) {
  return `${new Intl.DateTimeFormat(locale(), {
    dateStyle: "medium",
    timeStyle: "medium",
  }).format(at)} · ${at.toISOString()}`;
}

/** The time of day, for the scale of a chart. */
export function clock(at) {
  return new Intl.DateTimeFormat(locale(), { timeStyle: "medium", hour12: false }).format(at);
}

/** How long something takes: 1.2s, 3m. */
export function lasting(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const format = (value, unit, digits) =>
    new Intl.NumberFormat(locale(), {
      style: "unit",
      unit,
      unitDisplay: "narrow",
      maximumFractionDigits: digits,
    }).format(value);
  if (seconds < 1) return format(seconds * 1000, "millisecond", 0);
  if (seconds < 60) return format(seconds, "second", 1);
  if (seconds < 3600) return format(seconds / 60, "minute", 0);
  if (seconds < 86400) return format(seconds / 3600, "hour", 1);
  return format(seconds / 86400, "day", 1);
}

/** Keep what is on the page true as time goes by. */
export function tick() {
  for (const node of document.querySelectorAll("time")) {
    const text = ago(new Date(node.dateTime));
    if (node.textContent !== text) node.textContent = text;
  }
}
