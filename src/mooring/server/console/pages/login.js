// The login page.

import { send } from "../api.js";
import { h } from "../dom.js";
import { t } from "../i18n.js";

export function page(app, error) {
  document.title = `${t("login.title")} · Mooring`;
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
    { class: "login" },
    h("h1", {}, t("login.title")),
    h("p", {}, t("login.command")),
    h("pre", {}, "mooring login"),
    h("p", { class: "muted" }, t("login.link")),
    h(
      "form",
      { onsubmit: enter, "data-kept": true },
      h("label", {}, h("span", {}, t("login.token")), input),
      failure,
      h("button", { type: "submit", class: "first" }, t("login.enter")),
    ),
  );
}

function unreachable(error) {
  return h(
    "div",
    { class: "login" },
    h("h1", {}, t("error.title")),
    h("p", { class: "failure", role: "alert" }, error.message || t("error.unreachable")),
    h(
      "button",
      { type: "button", class: "first", onclick: () => location.reload() },
      t("error.again"),
    ),
  );
}
