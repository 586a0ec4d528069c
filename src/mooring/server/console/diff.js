// What changes, line by line, as people read it.

import { h } from "./dom.js";
import { plain, told } from "./hostile.js";
import { t } from "./words.js";

const MOST = 600;
const WIDEST = 400;

/** Changes of parts, `{path, action, before, after, sensitive}`. */
export function changes(parts) {
  if (!parts.length) return h("p", { class: "muted" }, t("tenant.same"));
  return h("div", { class: "changes" }, parts.map(change));
}

function change({ path, before, after, sensitive }) {
  return h(
    "div",
    { class: "framed" },
    h("div", { class: "path mono" }, told(path)),
    h(
      "div",
      { class: "diff mono" },
      lines(text(before), text(after)).map(([sign, line]) => row(sign, line)),
    ),
    sensitive.length > 0 &&
      h(
        "div",
        { class: "path muted" },
        t("diff.hidden", { names: sensitive.map((each) => plain(each, 60)).join(", ") }),
      ),
  );
}

function row(sign, line) {
  const kind = sign === "+" ? "added" : sign === "-" ? "removed" : "same";
  return h("div", { class: kind }, `${sign} `, told(line, { most: WIDEST }));
}

function text(value) {
  if (value === null || value === undefined) return [];
  return (typeof value === "string" ? value : JSON.stringify(value, null, 2)).split("\n");
}

/** The shortest way from some lines to others, by their longest common part. */
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
  const found = [];
  let [i, j] = [0, 0];
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      found.push([" ", before[i]]);
      i += 1;
      j += 1;
    } else if (j >= after.length || (i < before.length && common[i + 1][j] >= common[i][j + 1])) {
      found.push(["-", before[i]]);
      i += 1;
    } else {
      found.push(["+", after[j]]);
      j += 1;
    }
  }
  return found;
}
