// Metrics that instances report.

import { unitOf, withUnit } from "./charts.js";
import { h } from "./dom.js";
import { brief } from "./untrusted_text.js";
import { t } from "./i18n.js";

const SHARES = ["avg", "min", "p50", "p90", "p99", "max"];

/** A table of the aggregated metrics of a service. */
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

/** Time series for charts, by metric name. */
export function series(samples) {
  const byName = new Map();
  for (const { time, metrics } of samples) {
    const at = Date.parse(time);
    for (const [name, value] of Object.entries(metrics)) {
      if (!byName.has(name)) byName.set(name, []);
      byName.get(name).push([at, value]);
    }
  }
  return [...byName].sort(([a], [b]) => (a < b ? -1 : 1));
}
