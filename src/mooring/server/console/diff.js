// Line-by-line differences.

import { h } from "./dom.js";
import { plain, safeText } from "./untrusted_text.js";
import { t } from "./i18n.js";

const MOST = 600;
const WIDEST = 400;

/** Show changes, each `{path, action, before, after, sensitive}`. */
export function changes(parts) {
  if (!parts.length) return h("p", { class: "muted" }, t("tenant.same"));
  return h("div", { class: "changes" }, parts.map(change));
}

function change({ path, before, after, sensitive }) {
  return h(
    "div",
    { class: "framed" },
    h("div", { class: "path mono" }, safeText(path)),
    h(
      "div",
      { class: "diff mono" },
      lines(text(before), text(after)).map(([sign, line]) => row(sign, line)),
    ),
    sensitive.length > 0 &&
      h(
        "div",
        { class: "path muted" },
        t("diff.hidden", { names: sensitive.map((name) => plain(name, 60)).join(", ") }),
      ),
  );
}

function row(sign, line) {
  const kind = sign === "+" ? "added" : sign === "-" ? "removed" : "same";
  return h("div", { class: kind }, `${sign} `, safeText(line, { most: WIDEST }));
}

function text(value) {
  if (value === null || value === undefined) return [];
  return (typeof value === "string" ? value : JSON.stringify(value, null, 2)).split("\n");
}

/** The shortest edit script between two lists of lines (longest common subsequence). */
export function lines(before, after) {
  if (before.length > MOST || after.length > MOST) {
    return [...before.map((line) => ["-", line]), ...after.map((line) => ["+", line])];
  }
  const common = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      common[i][j] =
        before[i] === after[j]
          ? common[i + 1][j + 1] + 1
          : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      lines.push([" ", before[i]]);
      i += 1;
      j += 1;
    } else if (j >= after.length || (i < before.length && common[i + 1][j] >= common[i][j + 1])) {
      lines.push(["-", before[i]]);
      i += 1;
    } else {
      lines.push(["+", after[j]]);
      j += 1;
    }
  }
  return lines;
}
