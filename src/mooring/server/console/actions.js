// Operator actions on an instance or a service. Each asks for confirmation and names its target.

import { send } from "./api.js";
import { ask, note } from "./dialogs.js";
import { h } from "./dom.js";
import { plain } from "./untrusted_text.js";
import * as paths from "./api_paths.js";
import { t } from "./i18n.js";

export function instanceActions(app, service, instance) {
  const id = instance.instanceId;
  const names = { id: plain(id), service: plain(service) };
  const press = (what, options) =>
    button(app, what, async () => {
      const words = {
        title: t(`${what}.title`, names),
        text: t(`${what}.text`, names),
        yes: t(`${what}.yes`),
      };
      finished(app, await ask({ ...options, ...words }), t(`${what}.done`, names));
    });
  return h(
    "div",
    { class: "actions" },
    instance.enabled
      ? press("drain", { act: () => send("POST", paths.act(service, id, "drain")) })
      : press("enable", { act: () => send("POST", paths.act(service, id, "enable")) }),
    press("weight", {
      fields: [
        {
          name: "weight",
          label: t("weight.label"),
          type: "number",
          min: "0",
          step: "any",
          value: instance.weight,
          required: true,
          hint: t("weight.hint"),
        },
      ],
      act: ({ weight }) =>
        send("PUT", paths.act(service, id, "weight"), { weight: Number(weight) }),
    }),
    press("deregister", {
      danger: true,
      fields: [reason()],
      act: (values) => send("DELETE", paths.because(paths.instance(service, id), values.reason)),
    }),
  );
}

export function brakeAction(app, service) {
  const names = { service: plain(service) };
  const press = () =>
    ask({
      title: t("brake.title", names),
      text: t("brake.text", names),
      yes: t("brake.yes"),
      danger: true,
      fields: [reason()],
      act: (values) => send("DELETE", paths.because(paths.brake(service), values.reason)),
    }).then((done) => finished(app, done, t("brake.done", names)));
  return button(app, "brake", press);
}

/** Forget a service that has no instances. */
export function forgetAction(app, service) {
  const names = { service: plain(service) };
  const press = () =>
    ask({
      title: t("forget.title", names),
      text: t("forget.text", names),
      yes: t("forget.yes"),
      fields: [reason()],
      act: (values) => send("DELETE", paths.because(paths.service(service), values.reason)),
    }).then((done) => {
      if (done) location.hash = "#/";
      finished(app, done, t("forget.done", names));
    });
  return button(app, "forget", press);
}

const reason = () => ({ name: "reason", label: t("reason.label") });

function button(app, what, onclick) {
  const danger = what === "deregister" || what === "brake";
  const attributes = { id: `do-${what}`, class: danger ? "danger" : null, onclick };
  return writeButton(app, "operator", attributes, t(`${what}.do`));
}

/** A button that changes something. It is disabled, with the reason as its title, for users without the
 * role and while the store is unreachable. */
export function writeButton(app, role, attributes, words) {
  const refusal = app.refusal(role);
  const state = { disabled: refusal !== null, title: refusal };
  return h("button", { type: "button", ...attributes, ...state }, words);
}

function finished(app, done, words) {
  if (!done) return;
  note(words);
  app.soon();
}
