// Formats times and durations. Times are shown relative to now, with the exact time as a title.

import { h } from "./dom.js";
import { locale, t } from "./i18n.js";

let skew = 0;

/** Use the server's clock, because the browser's clock may be wrong. */
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

/** A relative time such as "3min ago", in the current language. */
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

/** A duration, such as 1.2s or 3m. */
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

/** Update the relative times on the page. */
export function tick() {
  for (const node of document.querySelectorAll("time")) {
    const text = ago(new Date(node.dateTime));
    if (node.textContent !== text) node.textContent = text;
  }
}
