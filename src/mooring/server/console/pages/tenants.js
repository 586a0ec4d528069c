// The list of tenants.

import { Failed } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { brief, plain } from "../untrusted_text.js";
import { mark } from "../status_marks.js";
import { tenantHref } from "../links.js";
import { writeButton } from "../actions.js";
import * as paths from "../api_paths.js";
import { everything } from "../fleet.js";
import { filterField, Table } from "../table.js";
import { n, t } from "../i18n.js";

const LOOKS = { active: "good", inactive: "off", suspended: "warn" };

export function page(app) {
  let tenants = [];
  let filter = "";
  const narrow = (wanted) => {
    filter = wanted;
    app.redraw();
  };
  let refused = "";
  const table = new Table({
    label: () => t("tenants.title"),
    key: ({ id }) => String(id),
    redraw: () => app.redraw(),
    empty: () => (filter ? t("table.nothing") : t("tenants.none")),
    columns: [
      {
        name: "name",
        title: () => t("column.tenant"),
        main: true,
        order: ({ name, id }) => name ?? String(id),
        cell: (row) =>
          h(
            "a",
            { href: tenantHref(row.id), "data-item": true },
            brief(row.name ?? row.code ?? String(row.id), 80),
          ),
      },
      {
        name: "id",
        title: () => t("column.id"),
        number: true,
        order: ({ id }) => id,
        cell: ({ id }) => String(id),
      },
      {
        name: "code",
        title: () => t("column.code"),
        order: ({ code }) => code,
        cell: ({ code }) => (code ? brief(code) : "–"),
      },
      {
        name: "state",
        title: () => t("column.state"),
        order: ({ status }) => status,
        cell: status,
      },
      {
        name: "domain",
        title: () => t("column.domain"),
        order: ({ primaryDomain }) => primaryDomain,
        cell: ({ primaryDomain }) => (primaryDomain ? brief(primaryDomain, 60) : "–"),
      },
      {
        name: "databases",
        title: () => t("column.databases"),
        number: true,
        order: ({ databases }) => databases,
        cell: ({ databases }) => (databases ? n(databases) : "–"),
      },
      {
        name: "ftp",
        title: () => t("column.ftp"),
        number: true,
        order: ({ ftpUsers }) => ftpUsers,
        cell: ({ ftpUsers }) => (ftpUsers ? n(ftpUsers) : "–"),
      },
      {
        name: "problems",
        title: () => t("column.notable"),
        order: ({ problems }) => problems,
        cell: ({ problems }) =>
          problems ? mark("warn", t("tenants.problems", { n: problems })) : "–",
      },
    ],
  });
  const matches = (tenant) => {
    const wanted = filter.toLowerCase();
    return [tenant.id, tenant.name, tenant.code, ...tenant.hosts].some((text) =>
      String(text ?? "")
        .toLowerCase()
        .includes(wanted),
    );
  };
  const create = async () => {
    await ask({
      title: t("tenants.new"),
      yes: t("tenants.new.yes"),
      fields: [
        {
          name: "id",
          label: t("tenants.new.label"),
          type: "number",
          min: "1",
          step: "1",
          required: true,
        },
      ],
      act: async ({ id }) => {
        if (tenants.some((tenant) => String(tenant.id) === String(Number(id))))
          throw new Error(t("tenants.new.exists", { id: plain(id, 30) }));
        location.hash = `${tenantHref(id)}/new`;
      },
    });
  };
  return {
    title: () => t("tenants.title"),
    stays: () => true,
    async load(signal) {
      try {
        tenants = await everything(paths.tenants(), signal);
        refused = "";
      } catch (error) {
        if (!(error instanceof Failed) || error.code !== "no_store") throw error;
        refused = error.message; // Redis alone has no tenants; this is not a failure
      }
    },
    draw() {
      return [
        h(
          "div",
          { class: "head spaced" },
          h("h1", {}, t("tenants.title"), h("span", { class: "count" }, ` ${n(tenants.length)}`)),
          !refused &&
            h(
              "div",
              { class: "actions" },
              app.unscoped && h("a", { class: "button", href: "#/shared" }, t("shared.title")),
              app.may("operator") &&
                writeButton(app, "operator", { onclick: create }, t("tenants.new")),
            ),
        ),
        refused
          ? h("p", { class: "empty framed" }, refused)
          : [filterField(t("tenants.filter"), narrow), table.draw(tenants.filter(matches))],
      ];
    },
  };
}

export function status({ status: name }) {
  if (!name) return "–";
  return mark(LOOKS[name] ?? "info", name in LOOKS ? t(`tenants.${name}`) : brief(name, 20));
}
