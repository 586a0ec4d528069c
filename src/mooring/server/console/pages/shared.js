// Settings that all tenants share: common and platform, each with its history.

import { get, over, send } from "../api.js";
import { ask, note, show } from "../dialogs.js";
import { changes } from "../diff.js";
import { h } from "../dom.js";
import { plain, safeText } from "../untrusted_text.js";
import { crumbs } from "../links.js";
import { writeButton } from "../actions.js";
import * as paths from "../api_paths.js";
import { everything } from "../fleet.js";
import { when } from "../time_format.js";
import { say, t } from "../i18n.js";
import { editor, historyTable, pretty, published, read, tree } from "./tenant.js";

const AREAS = ["common", "platform"];
const KNOWN = {
  resolver: { httpType: "header", httpHeaderName: "X-Tenant-ID" },
  "storage-directory": { directory: "tenants" },
};

export function page(app) {
  const areas = Object.fromEntries(AREAS.map((name) => [name, new Area(app, name)]));
  return {
    title: () => t("shared.title"),
    stays: () => true,
    async load(signal) {
      await Promise.all(AREAS.map((name) => areas[name].load(signal)));
    },
    draw() {
      const last = areas.common.settings?.lastPublish;
      return [
        crumbs(h("a", { href: "#/tenants" }, t("tenants.title"))),
        h(
          "div",
          { class: "spaced" },
          h("h1", {}, t("shared.title")),
          h(
            "p",
            { class: "lead" },
            `${t("shared.lead")} ${t("shared.last")} `,
            last ? when(last) : "–",
          ),
        ),
        AREAS.map((name) => areas[name].draw()),
      ];
    },
  };
}

class Area {
  settings = null;
  #app;
  #name;
  #history = [];
  #editing = null;
  #table;

  constructor(app, name) {
    this.#app = app;
    this.#name = name;
    this.#table = historyTable(
      app,
      (version) => paths.sharedVersion(name, version),
      () => this.#history.at(-1)?.version,
      (version) => this.#rollback(version),
    );
  }

  async load(signal) {
    [this.settings, this.#history] = await Promise.all([
      get(paths.shared(this.#name), { signal }),
      everything(paths.sharedHistory(this.#name), signal),
    ]);
  }

  draw() {
    const values = Object.entries(this.settings?.values ?? {});
    return h(
      "section",
      { "data-key": this.#name },
      h(
        "div",
        { class: "titled" },
        h("h2", {}, t(`shared.${this.#name}`)),
        !this.#editing && this.#buttons(values),
      ),
      this.settings?.problems.map((problem) => h("p", { class: "failure" }, safeText(say(problem)))),
      this.#editing && this.#editor(),
      values.length
        ? h(
            "div",
            { class: "columns" },
            values.map(([key, value]) => this.#value(key, value)),
          )
        : h("p", { class: "empty framed" }, t("shared.none")),
      this.#history.length > 0 && [
        h("h3", {}, t("tenant.history")),
        this.#table.draw(this.#history.toReversed()),
      ],
    );
  }

  #buttons(values) {
    return h(
      "div",
      { class: "actions" },
      values.length > 0 &&
        this.#app.may("admin") &&
        h("button", { type: "button", onclick: () => this.#unmask() }, t("tenant.unmask.do")),
      this.#app.may("operator") && this.#add(),
    );
  }

  /** Platform settings have arbitrary keys; a common setting can be added if it is not set. */
  #add() {
    const missing = Object.keys(KNOWN).filter((key) => !(key in (this.settings?.values ?? {})));
    const common = this.#name === "common";
    if (common && !missing.length) return null;
    const field = { name: "key", label: t("shared.key"), required: true };
    const create = () =>
      ask({
        title: t("shared.new"),
        yes: t("tenants.new.yes"),
        fields: [common ? { ...field, options: named(missing) } : field],
        act: async ({ key }) => {
          if (key in (this.settings?.values ?? {})) throw new Error(t("shared.exists", shown(key)));
          this.#edit(key, KNOWN[key] ?? {}, "");
        },
      });
    return writeButton(this.#app, "operator", { onclick: create }, t("shared.new"));
  }

  #value(key, value) {
    return h(
      "section",
      { "data-key": key },
      h(
        "div",
        { class: "titled" },
        h("h3", { class: "mono" }, safeText(key, { most: 80 })),
        this.#app.may("operator") &&
          !this.#editing &&
          h(
            "span",
            { class: "actions" },
            writeButton(
              this.#app,
              "operator",
              {
                class: "small",
                "aria-label": `${t("tenant.edit")} ${plain(key, 80)}`,
                onclick: () => this.#edit(key, value, this.settings.revision),
              },
              t("tenant.edit"),
            ),
            writeButton(
              this.#app,
              "operator",
              {
                class: "small danger",
                "aria-label": `${t("shared.remove.do")} ${plain(key, 80)}`,
                onclick: () => this.#remove(key),
              },
              t("shared.remove.do"),
            ),
          ),
      ),
      h("div", { class: isMap(value) ? "framed" : "framed padded" }, tree(value)),
    );
  }

  /** While the user edits, the base revision stays the same. */
  #edit(key, value, base) {
    this.#editing = { key, base, text: pretty(value), failure: "" };
    this.#app.redraw();
    document.getElementById("document")?.focus();
  }

  #editor() {
    const stop = () => {
      this.#editing = null;
      this.#app.redraw();
    };
    return [
      h("h3", { class: "mono" }, safeText(this.#editing.key, { most: 80 })),
      editor(this.#editing, () => this.#compare(), stop, t("shared.editing")),
    ];
  }

  async #compare() {
    const editing = this.#editing;
    try {
      const body = { value: read(editing.text) };
      const path = paths.sharedDiff(this.#name, editing.key);
      const { changes: differences } = await send("POST", path, body);
      editing.failure = "";
      this.#app.redraw();
      if (!differences.length) return note(t("tenant.same"));
      await this.#publish(editing, body, differences);
    } catch (error) {
      editing.failure = error.message || t("error.unreachable");
      this.#app.redraw();
    }
  }

  async #publish({ key, base }, body, differences) {
    const path = paths.sharedValue(this.#name, key);
    const done = await ask({
      title: t("shared.set.title", shown(key)),
      content: changes(differences),
      wide: true,
      fields: [{ name: "reason", label: t("tenant.note") }],
      yes: t("shared.set.yes"),
      act: ({ reason }) => send("PUT", paths.because(path, reason), body, over(base)),
    });
    if (!done) return;
    this.#editing = null;
    published(done, t("shared.set.done", shown(key)));
    this.#app.soon();
  }

  async #remove(key) {
    const base = this.settings.revision;
    const path = paths.sharedValue(this.#name, key);
    const done = await ask({
      title: t("shared.remove.title", shown(key)),
      text: t("shared.remove.text"),
      danger: true,
      fields: [{ name: "reason", label: t("tenant.note") }],
      yes: t("shared.remove.yes"),
      act: ({ reason }) => send("DELETE", paths.because(path, reason), undefined, over(base)),
    });
    if (!done) return;
    published(done, t("shared.remove.done", shown(key)));
    this.#app.soon();
  }

  async #rollback(version) {
    const base = this.settings.revision;
    const path = paths.sharedRollback(this.#name);
    let would;
    try {
      would = await send("POST", path, { version, dry: true });
    } catch (error) {
      return note(error.message || t("error.unreachable"), "bad");
    }
    const done = await ask({
      title: t("shared.rollback.title", { number: String(version) }),
      text: t("shared.rollback.text"),
      content: changes(would.changes),
      wide: true,
      fields: [{ name: "note", label: t("tenant.note") }],
      yes: t("tenant.rollback.yes"),
      act: ({ note: words }) => send("POST", path, { version, note: words }, over(base)),
    });
    if (!done) return;
    published(done, t("shared.rollback.done"));
    this.#app.soon();
  }

  #unmask() {
    return ask({
      title: t("shared.unmask.title"),
      text: t("tenant.unmask.text"),
      yes: t("tenant.unmask.yes"),
      act: async () => {
        const { values } = await get(paths.sharedUnmasked(this.#name));
        show(
          t(`shared.${this.#name}`),
          h("div", { class: "framed scrolled" }, tree(values)),
        );
      },
    });
  }
}

const named = (keys) => Object.fromEntries(keys.map((key) => [key, key]));
const isMap = (value) =>
  value !== null &&
  typeof value === "object" &&
  !Array.isArray(value) &&
  Object.keys(value).length > 0;
const shown = (key) => ({ key: plain(key, 80) });
