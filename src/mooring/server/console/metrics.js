// Numbers that instances tell of themselves.

import { unitOf, withUnit } from "./charts.js";
import { h } from "./dom.js";
import { brief } from "./hostile.js";
import { t } from "./words.js";

const SHARES = ["avg", "min", "p50", "p90", "p99", "max"];

/** Each metric of a whole service, in a table. */
export function aggregateTable(aggregates) {
  return h(
    "div",
    { class: "framed" },
    h(
      "table",
      { class: "cards", "aria-label": t("service.metrics") },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, t("column.metric")),
          SHARES.map((share) => h("th", { scope: "col", class: "number" }, t(`share.${share}`))),
        ),
      ),
      h(
        "tbody",
        {},
        Object.entries(aggregates).map(([name, aggregate]) =>
          h(
            "tr",
            { "data-key": name },
            h("td", { class: "main", "data-label": t("column.metric") }, brief(name, 80)),
            SHARES.map((share) =>
              h(
                "td",
                { class: "number", "data-label": t(`share.${share}`) },
                withUnit(aggregate[share], unitOf(name)),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Series for charts out of samples: for each path the moments and the numbers. */
export function series(samples) {
  const found = new Map();
  for (const { time, metrics } of samples) {
    const at = Date.parse(time);
    for (const [name, value] of Object.entries(metrics)) {
      if (!found.has(name)) found.set(name, []);
      found.get(name).push([at, value]);
    }
  }
  return [...found].sort(([a], [b]) => (a < b ? -1 : 1));
}
