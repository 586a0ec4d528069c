// Keyboard shortcuts, and moving through lists with the arrow keys.

import { show } from "./dialogs.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";

const PLACES = { o: "#/", t: "#/tenants", l: "#/locks", a: "#/audit", k: "#/tokens" };

const HELP = [
  ["/", "keys.search"],
  ["g o", "keys.overview"],
  ["g t", "keys.tenants"],
  ["g l", "keys.locks"],
  ["↑ ↓", "keys.move"],
  ["Enter", "keys.open"],
  ["Backspace", "keys.up"],
  ["Esc", "keys.close"],
  ["?", "keys.help"],
];

let prefix = "";

export function listen() {
  document.addEventListener("keydown", pressed);
}

export function help() {
  const rows = HELP.flatMap(([key, words]) => [
    h(
      "dt",
      {},
      key.split(" ").map((name) => [h("kbd", {}, name), " "]),
    ),
    h("dd", {}, t(words)),
  ]);
  show(t("keys.title"), h("dl", { class: "keys" }, rows), { wide: false });
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    if (event.key === "ArrowDown" && typing.matches(".filters input, .search input"))
      walk(event, null);
    return;
  }
  const chord = `${prefix}${event.key}`;
  prefix = "";
  if (chord === "/") {
    event.preventDefault();
    document.querySelector(".search input")?.focus();
  } else if (chord === "?") help();
  else if (chord === "g") prefix = "g ";
  else if (chord.startsWith("g ") && PLACES[event.key]) location.hash = PLACES[event.key];
  else if (event.key === "Backspace") document.querySelector(".crumbs a:last-of-type")?.click();
  else if (["ArrowDown", "ArrowUp", "j", "k", "Home", "End"].includes(event.key)) {
    walk(event, event.target.closest("[data-item]"));
  }
}

/** Move to the next item. Each row of a list has one link or button marked as its item. */
function walk(event, from) {
  const items = [...document.querySelectorAll("main [data-item]")];
  if (!items.length) return;
  if (from === null && ["Home", "End"].includes(event.key)) return;
  const at = items.indexOf(from);
  const down = event.key === "ArrowDown" || event.key === "j";
  const to =
    event.key === "Home"
      ? 0
      : event.key === "End"
        ? items.length - 1
        : at < 0
          ? 0
          : at + (down ? 1 : -1);
  if (to < 0 || to >= items.length) return;
  event.preventDefault();
  items[to].focus();
  items[to].scrollIntoView({ block: "nearest" });
}
