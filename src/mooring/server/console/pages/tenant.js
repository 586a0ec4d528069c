// One tenant: document, editor with a diff before publishing, history, rollback.

import { find, get, over, send } from "../api.js";
import { ask, note, show } from "../dialogs.js";
import { changes } from "../diff.js";
import { h } from "../dom.js";
import { brief, plain, safeText } from "../untrusted_text.js";
import { crumbs } from "../links.js";
import { writeButton } from "../actions.js";
import * as paths from "../api_paths.js";
import { everything } from "../fleet.js";
import { Table } from "../table.js";
import { when } from "../time_format.js";
import { say, t } from "../i18n.js";

const EMPTY = { meta: { name: "", code: "", status: "active" } };

export function page(app, [id, verb]) {
  const names = { id: plain(id, 30) };
  let tenant = null;
  let history = [];
  // While the user edits, the base revision stays the same, even if the tenant changes.
  let editing = verb === "new" ? { base: "", text: pretty(EMPTY), failure: "" } : null;

  const edit = () => {
    editing = {
      base: tenant?.revision ?? "",
      text: pretty(tenant?.document ?? EMPTY),
      failure: "",
    };
    app.redraw();
    document.getElementById("document")?.focus();
  };
  const stop = () => {
    editing = null;
    app.redraw();
  };
  const compare = async () => {
    try {
      const wanted = read(editing.text);
      const { changes: differences } = await send("POST", paths.tenantDiff(id), wanted);
      editing.failure = "";
      app.redraw();
      if (!differences.length) return note(t("tenant.same"));
      await publish(wanted, differences);
    } catch (error) {
      editing.failure = error.message || t("error.unreachable");
      app.redraw();
    }
  };
  const publish = async (wanted, differences) => {
    const done = await ask({
      title: t("tenant.publish.title", names),
      content: changes(differences),
      wide: true,
      fields: [{ name: "reason", label: t("tenant.note") }],
      yes: t("tenant.publish.yes"),
      act: ({ reason }) =>
        send("PUT", paths.because(paths.tenant(id), reason), wanted, over(editing.base)),
    });
    if (!done) return;
    editing = null;
    published(done, t("tenant.publish.done", names));
    app.soon();
  };
  const rollback = async (version) => {
    const base = tenant?.revision;
    let would;
    try {
      would = await send("POST", paths.tenantRollback(id), { version, dry: true });
    } catch (error) {
      return note(error.message || t("error.unreachable"), "bad");
    }
    const done = await ask({
      title: t("tenant.rollback.title", { ...names, number: String(version) }),
      text: t("tenant.rollback.text"),
      content: changes(would.changes),
      wide: true,
      fields: [{ name: "note", label: t("tenant.note") }],
      yes: t("tenant.rollback.yes"),
      act: ({ note: words }) =>
        send("POST", paths.tenantRollback(id), { version, note: words }, over(base)),
    });
    if (!done) return;
    published(done, t("tenant.rollback.done", names));
    app.soon();
  };
  const remove = async () => {
    const base = tenant.revision;
    const done = await ask({
      title: t("tenant.delete.title", names),
      text: t("tenant.delete.text"),
      danger: true,
      fields: [{ name: "reason", label: t("tenant.note") }],
      yes: t("tenant.delete.yes"),
      act: ({ reason }) =>
        send("DELETE", paths.because(paths.tenant(id), reason), undefined, over(base)),
    });
    if (!done) return;
    published(done, t("tenant.delete.done", names));
    app.soon();
  };
  const unmask = () =>
    ask({
      title: t("tenant.unmask.title", names),
      text: t("tenant.unmask.text"),
      yes: t("tenant.unmask.yes"),
      act: async () => {
        const { document: open } = await get(paths.unmasked(id));
        show(t("tenant.title", names), h("div", { class: "framed scrolled" }, shown(open)));
      },
    });
  const table = historyTable(
    app,
    (version) => paths.tenantVersion(id, version),
    () => history.at(-1)?.version,
    rollback,
  );

  return {
    title: () => tenant?.document.meta?.name || t("tenant.title", names),
    stays: ([other, again]) => other === id && again === verb,
    async load(signal) {
      [tenant, history] = await Promise.all([
        find(paths.tenant(id), { signal }),
        everything(paths.tenantHistory(id), signal).catch((error) => {
          if (error.status === 404) return [];
          throw error;
        }),
      ]);
      if (!tenant && !history.length && !editing) await get(paths.tenant(id), { signal });
    },
    draw() {
      const name = tenant?.document.meta?.name;
      return [
        crumbs(h("a", { href: "#/tenants" }, t("tenants.title"))),
        h(
          "div",
          { class: "head spaced" },
          h(
            "div",
            {},
            h("h1", {}, name ? brief(name, 120) : t("tenant.title", names)),
            h("p", { class: "lead" }, t("tenant.title", names)),
          ),
          app.may("operator") &&
            !editing &&
            h(
              "div",
              { class: "actions" },
              tenant &&
                app.may("admin") &&
                h("button", { type: "button", onclick: unmask }, t("tenant.unmask.do")),
              tenant &&
                writeButton(app, "operator", { id: "edit", onclick: edit }, t("tenant.edit")),
              tenant &&
                writeButton(
                  app,
                  "operator",
                  { class: "danger", onclick: remove },
                  t("tenant.delete.do"),
                ),
            ),
        ),
        tenant?.problems.map((problem) => h("p", { class: "failure" }, safeText(say(problem)))),
        editing ? editor(editing, compare, stop) : tenant && shown(tenant.document),
        history.length > 0 && [h("h2", {}, t("tenant.history")), table.draw(history.toReversed())],
      ];
    },
  };
}

/** Report success, and any warnings for the operator. */
export function published({ warnings }, words) {
  note(words);
  for (const warning of warnings) note(plain(say(warning), 400), "bad");
}

export const pretty = (document) => JSON.stringify(document, null, 2);

/** Parse JSON. Errors name the line. */
export function read(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    const at = /position (\d+)/.exec(error.message); // missing if the text ends too early
    const line = (at ? text.slice(0, Number(at[1])) : text).split("\n").length;
    throw new Error(t("tenant.broken", { line, why: error.message }));
  }
}

export function editor(editing, compare, stop, hint = t("tenant.editing")) {
  const area = h("textarea", {
    id: "document",
    class: "document",
    spellcheck: "false",
    autocapitalize: "off",
    "aria-label": t("tenant.document"),
    "aria-describedby": "editing",
    "data-kept": true,
    oninput: (event) => {
      editing.text = event.target.value;
    },
  });
  area.value = editing.text;
  return h(
    "section",
    { "data-key": "editor" },
    h("p", { class: "muted", id: "editing" }, hint),
    area,
    h("p", { class: "failure", role: "alert" }, editing.failure),
    h(
      "div",
      { class: "actions" },
      h(
        "button",
        { type: "button", id: "compare", class: "first", onclick: compare },
        t("tenant.compare"),
      ),
      h("button", { type: "button", onclick: stop }, t("tenant.stop")),
    ),
  );
}

/** The sections of a document. */
function shown(document) {
  const sections = Object.entries(document).filter(([name]) => name !== "id");
  return h(
    "div",
    { class: "columns", "data-key": "document" },
    sections.map(([name, value]) =>
      h("section", {}, h("h2", {}, brief(name)), h("div", { class: "framed" }, tree(value))),
    ),
  );
}

/** A nested value as nested lists. */
export function tree(value) {
  if (Array.isArray(value) && value.length && value.every((item) => typeof item !== "object")) {
    return h(
      "ul",
      { class: "plain" },
      value.map((item) => h("li", {}, safeText(item, { links: true }))),
    );
  }
  if (value !== null && typeof value === "object" && Object.keys(value).length) {
    return h(
      "dl",
      { class: "pairs" },
      Object.entries(value).map(([name, inner]) => [
        h("dt", {}, Array.isArray(value) ? `${Number(name) + 1}.` : safeText(name)),
        h("dd", {}, tree(inner)),
      ]),
    );
  }
  return typeof value === "string"
    ? safeText(value, { links: true })
    : h("span", { class: "muted" }, JSON.stringify(value));
}

const ACTIONS = ["publish", "delete", "rollback", "rekey", "migrate"];
const actionText = (action) =>
  ACTIONS.includes(action) ? t(`tenant.action.${action}`) : brief(action, 20);

/** `path(version)` is the API path of a version, `newest()` the latest version. */
export function historyTable(app, path, newest, rollback) {
  const look = async (version) => {
    const { changes: differences } = await get(path(version));
    show(`${t("tenant.history")} ${version}`, changes(differences));
  };
  return new Table({
    label: () => t("tenant.history"),
    key: ({ version }) => String(version),
    redraw: () => app.redraw(),
    empty: () => t("tenant.history.none"),
    columns: [
      {
        name: "version",
        title: () => t("column.version"),
        main: true,
        cell: ({ version, action }) =>
          h("span", {}, `${version} `, h("span", { class: "group" }, actionText(action))),
      },
      { name: "at", title: () => t("column.time"), cell: ({ at }) => when(at) },
      { name: "by", title: () => t("column.actor"), cell: ({ by }) => brief(by, 40) },
      {
        name: "paths",
        title: () => t("column.what"),
        cell: ({ paths: changed }) => safeText(changed.join(", "), { most: 100 }),
      },
      {
        name: "note",
        title: () => t("column.notes"),
        cell: ({ note: words }) => (words ? safeText(words, { most: 100 }) : "–"),
      },
      {
        name: "act",
        title: () => "",
        cell: ({ version, restorable }) =>
          h(
            "span",
            { class: "actions" },
            h(
              "button",
              { type: "button", class: "small", "data-item": true, onclick: () => look(version) },
              t("tenant.look"),
            ),
            app.may("operator") &&
              restorable &&
              version !== newest() &&
              writeButton(
                app,
                "operator",
                { class: "small", onclick: () => rollback(version) },
                t("tenant.rollback.do"),
              ),
          ),
      },
    ],
  });
}
