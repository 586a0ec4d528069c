// Dialogs and notifications.

import { h } from "./dom.js";
import { t } from "./i18n.js";

const SHORT = 6000;

/** Show content until the user closes it. */
export function show(title, content, { wide = true } = {}) {
  const close = h(
    "button",
    { type: "button", class: "first", onclick: () => dialog.close() },
    t("dialog.close"),
  );
  const dialog = opened(
    wide,
    h("div", { class: "inside" }, heading(title), content, h("div", { class: "actions" }, close)),
  );
  close.focus();
  return dialog;
}

/** Ask for confirmation and for `fields`, then run `act(values)`. If it throws, the dialog stays open and
 * shows the error. Resolves to the result of `act`, or true; false if the user cancelled. */
export function ask({ title, text, content, fields = [], yes, danger = false, wide = false, act }) {
  return new Promise((resolve) => {
    let done = false;
    const failure = h("p", { class: "failure", role: "alert" });
    const inputs = fields.map((field) => input(field));
    const go = h("button", { type: "submit", class: danger ? "first danger" : "first" }, yes);
    const stop = h("button", { type: "button", onclick: () => dialog.close() }, t("dialog.cancel"));
    const submitted = async (event) => {
      event.preventDefault();
      go.disabled = true;
      failure.textContent = "";
      try {
        const values = inputs.map(({ name, control }) => [name, control.value]);
        done = (await act(Object.fromEntries(values))) ?? true;
        dialog.close();
      } catch (error) {
        failure.textContent = error.message || t("error.unreachable");
        go.disabled = false;
      }
    };
    const form = h(
      "form",
      { onsubmit: submitted },
      heading(title),
      text && h("p", {}, text),
      content,
      inputs.map(({ row }) => row),
      failure,
      h("div", { class: "actions" }, stop, go),
    );
    const dialog = opened(wide, form);
    dialog.addEventListener("close", () => resolve(done));
    // Do not focus the confirm button of an action that cannot be undone.
    (inputs[0]?.control ?? (danger ? stop : go)).focus();
  });
}

function heading(title) {
  return h("h2", { id: "dialog-title" }, title);
}

function input({
  name,
  label,
  value = "",
  type = "text",
  required = false,
  options,
  min,
  step,
  hint,
}) {
  const common = { name, required, "aria-describedby": hint ? `hint-${name}` : null };
  const control = options
    ? h(
        "select",
        common,
        Object.entries(options).map(([option, words]) => h("option", { value: option }, words)),
      )
    : h("input", { ...common, type, min, step, value, autocomplete: "off", spellcheck: "false" });
  const row = h(
    "label",
    {},
    h("span", {}, label),
    control,
    hint && h("span", { id: `hint-${name}` }, hint),
  );
  return { name, control, row };
}

function opened(wide, content) {
  const dialog = h(
    "dialog",
    { class: wide ? "wide" : "", "aria-labelledby": "dialog-title" },
    content,
  );
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A notification in the corner. Errors stay for a minute, or until they are closed. */
export function note(text, kind = "good") {
  let corner = document.querySelector(".notes");
  if (corner === null) {
    corner = h("div", { class: "notes", role: "status", "aria-live": "polite" });
    document.body.append(corner);
  }
  const close = h(
    "button",
    {
      type: "button",
      class: "quiet",
      "aria-label": t("dialog.close"),
      onclick: () => shown.remove(),
    },
    "✕",
  );
  const shown = h("div", { class: `note ${kind}` }, h("span", {}, text), close);
  corner.append(shown);
  while (corner.children.length > 4) corner.firstChild.remove();
  setTimeout(() => shown.remove(), kind === "bad" ? 10 * SHORT : SHORT);
}
