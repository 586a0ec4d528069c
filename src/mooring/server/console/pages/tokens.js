// Access tokens.

import { send } from "../api.js";
import { ask, note, show } from "../dialogs.js";
import { h } from "../dom.js";
import { brief, plain } from "../untrusted_text.js";
import { mark } from "../status_marks.js";
import { writeButton } from "../actions.js";
import * as paths from "../api_paths.js";
import { everything } from "../fleet.js";
import { Table } from "../table.js";
import { when } from "../time_format.js";
import { t } from "../i18n.js";

const ROLES = ["viewer", "operator", "admin", "service"];
const roles = () => Object.fromEntries(ROLES.map((role) => [role, t(`role.${role}`)]));

export function page(app) {
  let tokens = [];
  const table = new Table({
    label: () => t("tokens.title"),
    key: ({ id }) => id,
    by: "name",
    redraw: () => app.redraw(),
    empty: () => t("tokens.none"),
    columns: [
      {
        name: "name",
        title: () => t("column.name"),
        main: true,
        order: ({ name }) => name,
        cell: ({ name }) => brief(name, 80),
      },
      {
        name: "role",
        title: () => t("column.role"),
        order: ({ role }) => role,
        cell: ({ role }) => t(`role.${role}`),
      },
      { name: "scope", title: () => t("column.scope"), cell: scope },
      {
        name: "state",
        title: () => t("column.state"),
        order: ({ state }) => state,
        cell: ({ state }) => mark(state === "valid" ? "good" : "off", t(`tokens.${state}`)),
      },
      {
        name: "expires",
        title: () => t("column.expires"),
        order: ({ expires }) => expires,
        cell: ({ expires }) => (expires ? when(expires) : t("tokens.never")),
      },
      {
        name: "used",
        title: () => t("column.used"),
        order: ({ lastUsed }) => lastUsed,
        cell: ({ lastUsed }) => (lastUsed ? when(lastUsed) : t("tokens.unused")),
      },
      {
        name: "revoke",
        title: () => "",
        cell: (row) =>
          row.state === "valid" &&
          writeButton(
            app,
            "admin",
            { class: "danger small", onclick: () => revoke(app, row) },
            t("tokens.revoke.do"),
          ),
      },
    ],
  });
  return {
    title: () => t("tokens.title"),
    stays: () => true,
    async load(signal) {
      tokens = await everything(paths.tokens(), signal);
    },
    draw() {
      return [
        h(
          "div",
          { class: "head spaced" },
          h("div", {}, h("h1", {}, t("tokens.title")), h("p", { class: "lead" }, t("tokens.lead"))),
          writeButton(
            app,
            "admin",
            { class: "first", onclick: () => make(app) },
            t("tokens.make.do"),
          ),
        ),
        table.draw(tokens),
      ];
    },
  };
}

function scope({ groups, tenants }) {
  const all = [...groups, ...tenants.map((id) => t("tenant.title", { id: String(id) }))];
  return all.length ? brief(all.join(", "), 80) : t("tokens.all");
}

function revoke(app, { id, name }) {
  const names = { name: plain(name) };
  ask({
    title: t("tokens.revoke.title", names),
    text: t("tokens.revoke.text"),
    yes: t("tokens.revoke.yes"),
    danger: true,
    act: () => send("DELETE", paths.token(id)),
  }).then((done) => {
    if (done) note(t("tokens.revoke.done", names));
    app.soon();
  });
}

async function make(app) {
  let made = null;
  const parts = (text) =>
    text
      .split(",")
      .map((part) => part.trim())
      .filter(Boolean);
  const done = await ask({
    title: t("tokens.make.title"),
    yes: t("tokens.make.yes"),
    fields: [
      { name: "name", label: t("tokens.make.name"), required: true },
      { name: "role", label: t("tokens.make.role"), options: roles() },
      { name: "groups", label: t("tokens.make.groups") },
      { name: "tenants", label: t("tokens.make.tenants") },
      { name: "expires", label: t("tokens.make.expires"), value: "90d", required: true },
    ],
    act: async ({ name, role, groups, tenants, expires }) => {
      made = await send("POST", paths.tokens(), {
        name,
        role,
        groups: parts(groups),
        tenants: parts(tenants).map(Number),
        expires,
      });
    },
  });
  if (!done) return;
  const field = h("input", {
    readonly: true,
    class: "mono",
    value: made.token,
    "aria-label": t("tokens.made.text"),
  });
  show(
    t("tokens.made.title", { name: plain(made.name) }),
    h("div", {}, h("p", {}, t("tokens.made.text")), field),
    { wide: false },
  );
  field.select();
  app.soon();
}
