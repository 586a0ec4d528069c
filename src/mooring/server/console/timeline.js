// What happened, the newest first.

import { h } from "./dom.js";
import { plain, told } from "./hostile.js";
import { instanceLink, serviceLink } from "./names.js";
import { when } from "./times.js";
import { say, t } from "./words.js";

/** Events, the newest first; with whose they are, unless `of` says that all are the same's. */
export function timeline(events, { of = "" } = {}) {
  if (!events.length)
    return h("div", { class: "framed" }, h("p", { class: "empty" }, t("timeline.none")));
  return h(
    "div",
    { class: "framed" },
    h(
      "ol",
      { class: "timeline" },
      events.map((event) =>
        h(
          "li",
          {
            "data-key": `${event.time} ${event.service} ${event.id} ${event.kind} ${plain(event.text, 60)}`,
          },
          when(event.time),
          h("span", {}, whose(event, of), told(say(event.message), { most: 300 })),
        ),
      ),
    ),
  );
}

function whose(event, of) {
  if (of === "instance" || (!event.id && of === "service")) return null;
  if (event.id) {
    const parts = of === "service" ? [] : [serviceLink(event.service), " "];
    return [...parts, instanceLink(event.service, event.id), ": "];
  }
  return event.service ? [serviceLink(event.service), ": "] : null;
}
