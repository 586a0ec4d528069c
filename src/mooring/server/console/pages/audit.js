// The audit log.

import { list } from "../api.js";
import { h } from "../dom.js";
import { brief, safeText } from "../untrusted_text.js";
import { mark } from "../status_marks.js";
import * as paths from "../api_paths.js";
import { Table } from "../table.js";
import { when } from "../time_format.js";
import { t } from "../i18n.js";

export function page(app) {
  let entries = [];
  const table = new Table({
    label: () => t("audit.title"),
    key: ({ id }) => id,
    redraw: () => app.redraw(),
    empty: () => t("audit.none"),
    columns: [
      { name: "time", title: () => t("column.time"), main: true, cell: ({ time }) => when(time) },
      {
        name: "actor",
        title: () => t("column.actor"),
        cell: (row) =>
          h("span", {}, brief(row.actor), " ", h("span", { class: "muted" }, brief(row.from, 40))),
      },
      {
        name: "what",
        title: () => t("column.what"),
        cell: (row) =>
          h("span", { class: "mono" }, `${row.method} `, safeText(row.path, { most: 120 })),
      },
      {
        name: "result",
        title: () => t("column.result"),
        cell: ({ status }) => mark(status < 400 ? "good" : "warn", String(status)),
      },
      {
        name: "notes",
        title: () => t("column.notes"),
        cell: ({ notes }) =>
          Object.keys(notes).length
            ? h("span", { class: "mono" }, safeText(JSON.stringify(notes)))
            : "–",
      },
    ],
  });
  return {
    title: () => t("audit.title"),
    stays: () => true,
    async load(signal) {
      entries = (await list(paths.audit(), { signal })).value;
    },
    draw() {
      return [
        h("h1", {}, t("audit.title")),
        h("p", { class: "lead spaced" }, t("audit.lead")),
        table.draw(entries),
      ];
    },
  };
}
