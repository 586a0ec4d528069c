// Where things are in the console, and how their names are shown.

import { h } from "./dom.js";
import { brief, told } from "./hostile.js";

export const serviceHref = (name) => `#/service/${encodeURIComponent(name)}`;
export const instanceHref = (service, id) =>
  `#/instance/${encodeURIComponent(service)}/${encodeURIComponent(id)}`;
export const tenantHref = (id) => `#/tenant/${encodeURIComponent(id)}`;

/** A service's name, its group held back. */
export function serviceName(name) {
  const slash = name.lastIndexOf("/");
  if (slash < 0) return brief(name, 120);
  return h(
    "span",
    {},
    h("span", { class: "group" }, brief(name.slice(0, slash + 1), 80)),
    brief(name.slice(slash + 1), 120),
  );
}

export function serviceLink(name, attributes = {}) {
  return h("a", { href: serviceHref(name), ...attributes }, serviceName(name));
}

export function instanceLink(service, id, attributes = {}) {
  return h("a", { href: instanceHref(service, id), class: "mono", ...attributes }, brief(id, 120));
}

/** Names with values, each hostile. */
export function pairs(entries) {
  return h(
    "dl",
    { class: "pairs" },
    entries.map(([name, value]) => [
      h("dt", {}, name instanceof Node ? name : told(name)),
      h(
        "dd",
        {},
        value instanceof Node || Array.isArray(value)
          ? value
          : told(value ?? "–", { links: true, name: String(name) }),
      ),
    ]),
  );
}

export function crumbs(...parts) {
  return h(
    "nav",
    { class: "crumbs", "aria-label": "breadcrumb" },
    parts.map((part, at) => [at > 0 && " / ", part]),
  );
}

/** A segment of a path as it was meant. */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
