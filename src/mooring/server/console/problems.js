// What is wrong, and what to do about it.

import { h } from "./dom.js";
import { plain } from "./hostile.js";
import { severity } from "./marks.js";
import { when } from "./times.js";
import { say } from "./words.js";

/** What is wrong, as a string. */
export function problemText(problem) {
  const kind = `problem_${problem.kind}${problem.id ? "_one" : ""}`;
  return plain(say({ kind, params: paramsOf(problem), text: problem.text }), 400);
}

function hintText(problem) {
  const kind = `hint_${problem.kind}`;
  return plain(say({ kind, params: paramsOf(problem), text: problem.hint }), 400);
}

const paramsOf = ({ service, params }) => ({ service, ...params });

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
