// For who is not known here: how to get in.

import { send } from "../api.js";
import { h } from "../dom.js";
import { t } from "../words.js";

export function page(app, error) {
  document.title = `${t("entrance.title")} · Mooring`;
  if (error.status !== 401) return unreachable(error);
  const failure = h("p", { class: "failure", role: "alert" });
  const input = h("input", {
    type: "password",
    name: "token",
    required: true,
    autocomplete: "off",
  });
  const enter = async (event) => {
    event.preventDefault();
    try {
      await send("POST", "/admin/sessions", { token: input.value.trim() });
      location.reload();
    } catch (refused) {
      failure.textContent = refused.message || t("error.unreachable");
    }
  };
  return h(
    "div",
    { class: "entrance" },
    h("h1", {}, t("entrance.title")),
    h("p", {}, t("entrance.command")),
    h("pre", {}, "mooring login"),
    h("p", { class: "muted" }, t("entrance.link")),
    h(
      "form",
      { onsubmit: enter, "data-kept": true },
      h("label", {}, h("span", {}, t("entrance.token")), input),
      failure,
      h("button", { type: "submit", class: "first" }, t("entrance.enter")),
    ),
  );
}

function unreachable(error) {
  return h(
    "div",
    { class: "entrance" },
    h("h1", {}, t("error.title")),
    h("p", { class: "failure", role: "alert" }, error.message || t("error.unreachable")),
    h(
      "button",
      { type: "button", class: "first", onclick: () => location.reload() },
      t("error.again"),
    ),
  );
}
