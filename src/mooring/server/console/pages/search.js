// Search results.

import { get } from "../api.js";
import { h } from "../dom.js";
import { brief, plain } from "../untrusted_text.js";
import { instanceHref, serviceHref, tenantHref } from "../links.js";
import * as paths from "../api_paths.js";
import { Table } from "../table.js";
import { t } from "../i18n.js";

export function page(app, [first = ""]) {
  let query = first;
  let results = [];
  const table = new Table({
    label: () => t("search.title"),
    key: (row) => row.path,
    redraw: () => app.redraw(),
    empty: () => (query ? t("search.none") : t("search.type")),
    columns: [
      {
        name: "name",
        title: () => t("column.name"),
        main: true,
        cell: (row) => h("a", { href: target(row), "data-item": true }, brief(row.name, 100)),
      },
      { name: "kind", title: () => t("column.kind"), cell: ({ kind }) => t(`search.${kind}`) },
      {
        name: "of",
        title: () => t("column.service"),
        cell: ({ service }) => (service ? brief(service, 80) : "–"),
      },
      { name: "where", title: () => t("column.where"), cell: where },
    ],
  });
  return {
    title: () => t("search.title"),
    stays(params) {
      query = params[0] ?? "";
      return true;
    },
    look: 15000,
    async load(signal) {
      results = query ? await get(paths.search(query), { signal }) : [];
    },
    draw() {
      return [
        h("h1", {}, t("search.title")),
        h(
          "p",
          { class: "lead spaced", role: "status" },
          query
            ? `${t("search.lead", { query: plain(query, 60) })} · ${t("search.found", { n: results.length })}`
            : t("search.type"),
        ),
        table.draw(results),
      ];
    },
  };
}

function target({ kind, name, service, tenant }) {
  if (kind === "service") return serviceHref(name);
  if (kind === "instance") return instanceHref(service, name);
  if (kind === "tenant") return tenantHref(tenant);
  return `#/locks/${encodeURIComponent(name)}`;
}

function where({ field, text, name }) {
  if (text === name) return "–";
  return h("span", {}, h("span", { class: "muted" }, brief(field, 60), ": "), brief(text, 100));
}
