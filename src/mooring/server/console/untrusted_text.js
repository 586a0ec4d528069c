// Displays text from untrusted sources. Such text may be very long, change the text direction or look like a
// link.

import { show } from "./dialogs.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";

const MOST = 160;
// Characters that are invisible or change the order of others: C0 and C1, joiners, direction marks,
// overrides, isolates, line separators, fillers, tags and unpaired surrogates.
const UNSEEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}\p{Cs}]/u;

const LINK = /^https?:\/\/[!-~]+$/i;

/** A value as isolated text, shortened if it is long, with a button that shows all of it. */
export function safeText(value, { most = MOST, name = "", links = false } = {}) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  const whole = text.length <= most;
  const head = whole ? text : text.slice(0, most);
  const parts = escaped(head);
  const shown = h(
    "bdi",
    { class: "untrusted", dir: "auto" },
    links && whole ? linked(text, parts) : parts,
  );
  if (whole) return shown;
  const more = () => show(name || t("hostile.whole"), longText(text));
  return h(
    "span",
    { class: "cut" },
    shown,
    "… ",
    h(
      "button",
      { type: "button", class: "link", onclick: more },
      t("hostile.more", { n: text.length }),
    ),
  );
}

/** Like `safeText`, for a single line: without a button. */
export function brief(value, most = 48) {
  const text = String(value ?? "");
  const cut = text.length > most;
  return h(
    "bdi",
    { class: "untrusted", dir: "auto" },
    escaped(cut ? text.slice(0, most) : text),
    cut && "…",
  );
}

/** Like `safeText`, but a string, for titles and labels. */
export function plain(value, most = 80) {
  const text = String(value ?? "");
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return [...cut].map((sign) => (UNSEEN.test(sign) ? code(sign) : sign)).join("");
}

function linked(text, parts) {
  if (!LINK.test(text)) return parts;
  let url;
  try {
    url = new URL(text);
  } catch {
    return parts;
  }
  if (!["http:", "https:"].includes(url.protocol) || url.username || url.password) return parts;
  return h("a", { href: url.href, rel: "noopener noreferrer nofollow", target: "_blank" }, text);
}

function escaped(text) {
  const parts = [];
  let run = "";
  for (const sign of text) {
    if (UNSEEN.test(sign)) {
      if (run) parts.push(run);
      run = "";
      parts.push(h("span", { class: "escape", title: t("hostile.unseen") }, code(sign)));
    } else run += sign;
  }
  if (run) parts.push(run);
  return parts;
}

function code(sign) {
  return `⟨U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

function longText(text) {
  const area = h("textarea", {
    class: "long",
    readonly: true,
    dir: "ltr",
    rows: "16",
    "aria-label": t("hostile.whole"),
  });
  area.value = text.replace(new RegExp(UNSEEN.source, "gu"), code);
  return area;
}
