// Links within the console, and names as they are displayed.

import { h } from "./dom.js";
import { brief, safeText } from "./untrusted_text.js";

export const serviceHref = (name) => `#/service/${encodeURIComponent(name)}`;
export const instanceHref = (service, id) =>
  `#/instance/${encodeURIComponent(service)}/${encodeURIComponent(id)}`;
export const tenantHref = (id) => `#/tenant/${encodeURIComponent(id)}`;

/** The name of a service, with its group in muted colour. */
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

/** A list of untrusted names and values. */
export function pairs(entries) {
  return h(
    "dl",
    { class: "pairs" },
    entries.map(([name, value]) => [
      h("dt", {}, name instanceof Node ? name : safeText(name)),
      h(
        "dd",
        {},
        value instanceof Node || Array.isArray(value)
          ? value
          : safeText(value ?? "–", { links: true, name: String(name) }),
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

/** A decoded path segment, or the segment itself if it is malformed. */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
