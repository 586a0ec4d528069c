// Current problems, each with a hint what to do.

import { h } from "./dom.js";
import { plain } from "./untrusted_text.js";
import { severity } from "./status_marks.js";
import { when } from "./time_format.js";
import { say } from "./i18n.js";

/** The text of a problem. */
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

/** Show text between backticks as code. */
function withCode(text) {
  return text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));
}
