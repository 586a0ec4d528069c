// Locks with their holders and queues.

import { Failed, send } from "../api.js";
import { ask, note } from "../dialogs.js";
import { h } from "../dom.js";
import { brief, plain } from "../untrusted_text.js";
import { mark } from "../status_marks.js";
import { writeButton } from "../actions.js";
import * as paths from "../api_paths.js";
import { everything } from "../fleet.js";
import { filterField, Table } from "../table.js";
import { n, t } from "../i18n.js";

const SHOWN = 12;

export function page(app, [wanted = ""]) {
  let locks = [];
  let filter = wanted;
  const narrow = (wanted) => {
    filter = wanted;
    app.redraw();
  };
  let refused = "";
  const opened = new Set();
  const table = new Table({
    label: () => t("locks.title"),
    key: ({ name }) => name,
    by: "waiting",
    down: true,
    redraw: () => app.redraw(),
    empty: () => (filter ? t("table.nothing") : t("locks.none")),
    columns: [
      {
        name: "name",
        title: () => t("column.lock"),
        main: true,
        order: ({ name }) => name,
        cell: ({ name }) => h("span", { class: "mono" }, brief(name, 160)),
      },
      { name: "holders", title: () => t("column.holder"), cell: (row) => holders(app, row) },
      {
        name: "waiting",
        title: () => t("column.waiting"),
        order: ({ waiting }) => waiting.length,
        cell: (row) => queue(app, row, opened),
      },
    ],
  });
  return {
    title: () => t("locks.title"),
    look: 2000, // the event stream does not cover locks
    stays: ([name = ""]) => name === wanted,
    async load(signal) {
      try {
        locks = await everything(paths.locks(), signal);
        refused = "";
      } catch (error) {
        if (!(error instanceof Failed) || error.code !== "no_store") throw error;
        refused = error.message; // Redis alone has no locks; this is not a failure
      }
    },
    draw() {
      const rows = locks.filter(({ name }) => name.toLowerCase().includes(filter.toLowerCase()));
      return [
        h("h1", {}, t("locks.title"), h("span", { class: "count" }, ` ${n(locks.length)}`)),
        h("p", { class: "lead spaced" }, t("locks.lead")),
        refused
          ? h("p", { class: "empty framed" }, refused)
          : [filterField(t("locks.filter"), narrow, filter), table.draw(rows)],
      ];
    },
  };
}

const contenderName = ({ by, value, lease }) => by ?? value ?? t("locks.lease", { lease });

const KINDS = ["read", "place", "party"];

function contenderOf(contender) {
  const kind = KINDS.includes(contender.kind) ? ` ${t(`locks.${contender.kind}`)}` : "";
  return h(
    "span",
    {},
    h("span", { class: "mono" }, brief(contenderName(contender), 80)),
    h(
      "span",
      { class: "muted" },
      `${kind} · ${t("locks.token", { token: String(contender.token) })}`,
    ),
  );
}

function holders(app, { name, holders: held }) {
  if (!held.length) return mark("off", t("locks.unheld"));
  return h(
    "ul",
    { class: "plain" },
    held.map((holder) =>
      h(
        "li",
        { "data-key": String(holder.token) },
        contenderOf(holder),
        " ",
        release(app, name, holder),
      ),
    ),
  );
}

function queue(app, { name, waiting }, opened) {
  if (!waiting.length) return "–";
  const all = opened.has(name);
  const some = all ? waiting : waiting.slice(0, SHOWN);
  const more = () => {
    opened.add(name);
    app.redraw();
  };
  return h(
    "div",
    {},
    h("span", { class: "muted" }, t("locks.queue", { n: waiting.length })),
    h(
      "ol",
      { class: "queue" },
      some.map((waiter) => h("li", { "data-key": String(waiter.token) }, contenderOf(waiter))),
    ),
    some.length < waiting.length &&
      h(
        "button",
        { type: "button", class: "link", onclick: more },
        t("overview.all", { n: waiting.length }),
      ),
  );
}

function release(app, name, holder) {
  const names = { name: plain(name), by: plain(contenderName(holder)) };
  const press = async () => {
    const done = await ask({
      title: t("locks.release.title", names),
      text: t("locks.release.text"),
      yes: t("locks.release.yes"),
      danger: true,
      fields: [{ name: "reason", label: t("locks.release.reason"), required: true }],
      act: ({ reason }) => send("DELETE", paths.release(name, holder, reason)),
    });
    if (done) note(t("locks.release.done", names));
    app.soon();
  };
  const attributes = {
    class: "danger small",
    "data-item": true,
    "aria-label": `${t("locks.release.do")} ${names.name}`,
    onclick: press,
  };
  return writeButton(app, "operator", attributes, t("locks.release.do"));
}
