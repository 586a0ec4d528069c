// Builds elements from names, attributes and text. Text is always inserted as text: callers cannot pass
// markup, styles or scripts.

const SVG = "http://www.w3.org/2000/svg";
const EVENTS = Symbol("events");

const FORBIDDEN = /^(on|style$|src$|srcdoc$|action$|formaction$)/i;

/** h("a", {href: "#/", class: "x", onclick: f}, "text", node, [more], null) */
export function h(name, attributes, ...children) {
  const node = build(document.createElement(name), attributes, children);
  if (name === "h1") node.tabIndex = -1; // receives the focus when a page opens
  return node;
}

/** Like `h`, for SVG elements. */
export function s(name, attributes, ...children) {
  return build(document.createElementNS(SVG, name), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function" && name.startsWith("on")) listen(node, name, value);
    else if (value !== null && value !== undefined && value !== false) set(node, name, value);
  }
  append(node, children);
  return node;
}

function listen(node, name, handler) {
  (node[EVENTS] ??= {})[name] = handler;
  node[name] = handler;
}

function set(node, name, value) {
  if (FORBIDDEN.test(name)) throw new TypeError(`no ${name} is set from here`);
  if (name === "href" && !/^(#\/|https?:\/\/|\/admin\/)/i.test(value)) {
    throw new TypeError("a link leads to a page of the console, or to http(s)");
  }
  node.setAttribute(name, value === true ? "" : String(value));
  if (name === "value") node.value = value;
}

function append(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false || child === "") continue;
    if (Array.isArray(child)) append(node, child);
    else node.append(child instanceof Node ? child : String(child));
  }
}

/** Make `old` equal to `fresh` with few changes, which keeps focus, selection and scroll position. Children
 * with a `data-key` are matched by it. */
export function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  if (old.hasAttribute("data-kept") && fresh.hasAttribute("data-kept")) return old;
  patchAttributes(old, fresh);
  patchEvents(old, fresh);
  patchChildren(old, fresh);
  return old;
}

function patchAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old instanceof HTMLOptionElement) old.selected = fresh.selected;
}

function patchEvents(old, fresh) {
  const before = old[EVENTS] ?? {};
  const after = fresh[EVENTS] ?? {};
  for (const name of Object.keys(before)) if (!(name in after)) old[name] = null;
  for (const [name, handler] of Object.entries(after)) old[name] = handler;
  old[EVENTS] = after;
}

const keyOf = (node) =>
  node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;

function patchChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (keyOf(child) !== null) keyed.set(keyOf(child), child);
  const stays = new Set([...fresh.children].map(keyOf));
  const gone = (node) => node !== null && keyOf(node) !== null && !stays.has(keyOf(node));
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    // Remove old children first. Moving the others around them would take the focus away.
    while (gone(at)) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
    const key = keyOf(child);
    if (key !== null) {
      const known = keyed.get(key);
      if (known === undefined) {
        old.insertBefore(child, at);
      } else {
        if (known === at) at = at.nextSibling;
        else old.insertBefore(known, at);
        patch(known, child);
        keyed.delete(key);
      }
    } else if (at === null || keyOf(at) !== null) {
      old.insertBefore(child, at);
    } else {
      const next = at.nextSibling;
      patch(at, child);
      at = next;
    }
  }
  while (at !== null) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** Replace the content of a node, with few changes. */
export function fill(node, ...children) {
  const fresh = node.cloneNode(false);
  append(fresh, children);
  patchChildren(node, fresh);
}
