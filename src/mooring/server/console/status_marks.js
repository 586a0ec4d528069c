// Status as colour, shape and text, so that no reader depends on one of them.

import { h, s } from "./dom.js";
import { stale } from "./fleet.js";
import { t } from "./i18n.js";

const SHAPES = {
  good: () => s("circle", { cx: 6, cy: 6, r: 5 }),
  warn: () => s("path", { d: "M6 1 11.500 11H.5z" }),
  bad: () => s("path", { d: "M1 1h10v10H1z" }),
  half: () => [
    s("circle", { cx: 6, cy: 6, r: 4.2, class: "hollow" }),
    s("path", { d: "M6 1.200a4.800 4.800 0 0 1 0 9.600z" }),
  ],
  off: () => [
    s("circle", { cx: 6, cy: 6, r: 4.2, class: "hollow" }),
    s("path", { d: "M3 9 9 3", class: "hollow" }),
  ],
  info: () => s("circle", { cx: 6, cy: 6, r: 4.2, class: "hollow" }),
  silent: () => s("path", { d: "M2 6h8", class: "hollow" }),
  old: () => s("circle", { cx: 6, cy: 6, r: 4.2, class: "hollow", "stroke-dasharray": "2 2" }),
};

export function shape(kind) {
  return s(
    "svg",
    { class: `shape ${kind}`, viewBox: "0 0 12 12", "aria-hidden": "true" },
    SHAPES[kind](),
  );
}

export function mark(kind, words, title) {
  return h("span", { class: `mark ${kind}`, title }, shape(kind), h("span", {}, words));
}

/** The state of an instance, from its own report and the operator's settings. */
export function stateOf(instance) {
  if (instance.state === "down" || instance.state === "silent") return instance.state;
  if (!instance.healthy) return "unhealthy";
  if (!instance.enabled) return "disabled";
  if (instance.state === "draining") return "draining";
  return "up";
}

const LOOKS = {
  up: "good",
  unhealthy: "warn",
  silent: "silent",
  down: "bad",
  draining: "half",
  disabled: "off",
};

/** While the registry is unreachable, this is the last known state, in grey. */
export function state(instance) {
  const name = stateOf(instance);
  if (stale()) return mark("old", t("state.stale", { state: t(`state.${name}`) }));
  return mark(LOOKS[name], t(`state.${name}`));
}

/** A share as a bar, with the numbers beside it. */
export function bar(some, all, label) {
  const rate = all ? some / all : 0;
  const kind = !all || stale() ? "none" : rate === 1 ? "good" : rate > 0 ? "warn" : "bad";
  return h(
    "span",
    { class: "rate" },
    s(
      "svg",
      {
        class: `bar ${kind}`,
        viewBox: "0 0 100 8",
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": label,
      },
      s("rect", { class: "ground", width: 100, height: 8, rx: 2 }),
      s("rect", { class: "filled", width: rate * 100, height: 8, rx: 2 }),
    ),
    h("span", { class: "number" }, `${some}/${all}`),
  );
}

const SEVERITIES = { critical: "bad", warning: "warn", info: "info" };

export function severity(level) {
  return mark(SEVERITIES[level] ?? "info", t(`severity.${level}`));
}
