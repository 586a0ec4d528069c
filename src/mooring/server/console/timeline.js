// A list of events, newest first.

import { h } from "./dom.js";
import { plain, safeText } from "./untrusted_text.js";
import { instanceLink, serviceLink } from "./links.js";
import { when } from "./time_format.js";
import { say, t } from "./i18n.js";

/** `of`: "service" or "instance" if all events belong to the same one; its name is then omitted. */
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
          h("span", {}, whose(event, of), safeText(say(event.message), { most: 300 })),
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
