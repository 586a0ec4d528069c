// What is wrong, in words. The server says it in English; `kind` and `params` say the same for other
// languages.

import { h } from "./dom.js";
import { plain } from "./hostile.js";
import { severity } from "./marks.js";
import { when } from "./times.js";
import { current, knows, t } from "./words.js";

/** What is wrong, as a string. */
export function problemText(problem) {
  const key = `problem.${problem.kind}${problem.params?.count === 1 ? ".one" : ""}`;
  if (current() === "en" || !knows(key)) return plain(problem.text, 400);
  return plain(t(key, { service: problem.service, id: problem.id, ...problem.params }), 400);
}

function hintText(problem) {
  const key = `hint.${problem.kind}`;
  if (current() === "en" || !knows(key)) return plain(problem.hint, 400);
  return plain(t(key, { service: problem.service }), 400);
}

export function problemList(problems) {
  return h("ul", { class: "problems" }, problems.map(row));
}

function row(problem) {
  const text = problemText(problem);
  return h(
    "li",
    {
      class: `problem ${problem.severity}`,
      "data-key": `${problem.kind}:${problem.service}:${problem.id}`,
    },
    severity(problem.severity),
    h(
      "p",
      { class: "what" },
      problem.service ? h("a", { href: target(problem), "data-item": true }, text) : text,
    ),
    h("span", { class: "since" }, problem.since && when(problem.since)),
    h("p", { class: "hint" }, withCode(hintText(problem))),
  );
}

function target({ service, id }) {
  if (id) return `#/instance/${encodeURIComponent(service)}/${encodeURIComponent(id)}`;
  return `#/service/${encodeURIComponent(service)}`;
}

/** `between backticks` is something to type. */
function withCode(text) {
  return text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));
}
