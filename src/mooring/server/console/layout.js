// The frame around every page: navigation, search, connection state.

import { send } from "./api.js";
import { fill, h, s } from "./dom.js";
import { help } from "./shortcuts.js";
import { mark } from "./status_marks.js";
import { decoded } from "./links.js";
import { clock } from "./time_format.js";
import { choose, current, LANGUAGES, t } from "./i18n.js";

const THEMES = ["auto", "light", "dark"];

/** `app` provides the user, the connection state and `redraw`. */
export function frame(app) {
  const top = h("header", { class: "top" });
  const banner = h("div", { class: "banner", role: "status", "aria-live": "polite" });
  const main = h("main", { id: "main", tabindex: "-1" });
  const spoken = h("div", { class: "unseen", role: "status", "aria-live": "assertive" });
  const skip = h(
    "a",
    {
      class: "skip",
      href: "#/main",
      onclick: (event) => {
        event.preventDefault();
        (main.querySelector("h1") ?? main).focus();
      },
    },
    t("frame.skip"),
  );
  document.body.replaceChildren(skip, top, banner, main, spoken);
  const draw = () => {
    skip.textContent = t("frame.skip");
    fill(top, contents(app));
    const text = bannerText(app);
    if (banner.textContent !== text) banner.textContent = text; // screen readers announce each change
  };
  return { draw, main, speak: (text) => (spoken.textContent = text) };
}

function contents(app) {
  return [
    h("a", { class: "brand", href: "#/" }, anchor(), "Mooring"),
    app.user && navigation(app),
    app.user && search(),
    h(
      "div",
      { class: "tools" },
      app.user && state(app),
      languages(app),
      theme(app),
      keys(),
      app.user && logoutButton(app),
    ),
  ];
}

function navigation(app) {
  const places = [];
  if (app.sees("groups")) {
    places.push(["#/", "frame.overview", ["overview", "service", "instance"]]);
  }
  if (app.sees("tenants")) places.push(["#/tenants", "frame.tenants", ["tenants", "tenant", "shared"]]);
  if (app.unscoped) places.push(["#/locks", "frame.locks", ["locks"]]);
  if (app.unscoped && app.may("admin")) {
    places.push(["#/audit", "frame.audit", ["audit"]], ["#/tokens", "frame.tokens", ["tokens"]]);
  }
  return h(
    "nav",
    { "aria-label": t("frame.places") },
    places.map(([href, words, pages]) =>
      h("a", { href, "aria-current": pages.includes(app.place) ? "page" : null }, t(words)),
    ),
  );
}

function search() {
  const go = (event) => {
    const query = event.target.value.trim();
    if (event.key === "Enter" || event.type === "input") {
      const hash = `#/search/${encodeURIComponent(query)}`;
      if (!query) return;
      if (location.hash.startsWith("#/search")) location.replace(hash);
      else location.hash = hash;
    }
  };
  const input = h("input", {
    type: "search",
    placeholder: t("frame.search"),
    "aria-label": t("frame.search"),
    autocomplete: "off",
    spellcheck: "false",
    maxlength: "200",
    onkeydown: go,
    oninput: go,
  });
  const asked = /^#\/search\/(.+)$/.exec(location.hash);
  if (asked) input.defaultValue = decoded(asked[1]);
  return h(
    "div",
    { class: "search", role: "search" },
    input,
    h("kbd", { class: "keyboard-only", "aria-hidden": "true" }, "/"),
  );
}

function state(app) {
  const kind = app.live === "live" ? (app.stale ? "warn" : "good") : "warn";
  const words =
    app.live === "live" ? (app.stale ? "frame.stale" : "frame.live") : `frame.${app.live}`;
  return mark(kind, t(words), t(`${words}.title`));
}

function bannerText(app) {
  if (!app.user) return "";
  if (app.live === "broken") return t("frame.broken.banner");
  const disabled = app.away ? ` ${t("frame.disabled")}` : "";
  if (app.stale?.since) {
    return t("frame.stale.banner", { time: clock(new Date(app.stale.since)) }) + disabled;
  }
  if (app.stale) return t("frame.stale.banner.always") + disabled;
  return app.failure && t("frame.failure.banner", { why: app.failure });
}

function languages(app) {
  const other = current() === "en" ? "zh" : "en";
  const press = () => {
    choose(other);
    app.redraw();
  };
  return h(
    "button",
    {
      type: "button",
      class: "quiet",
      id: "language",
      lang: other === "zh" ? "zh-CN" : "en",
      onclick: press,
    },
    LANGUAGES[other],
  );
}

function theme(app) {
  const chosen = document.documentElement.dataset.theme ?? "auto";
  const press = () => {
    const next = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("mooring.theme", next);
    } catch {
      // Storage is unavailable: the choice lasts until the page is closed.
    }
    app.drawFrame();
  };
  const words = t(`theme.${chosen}`);
  return h(
    "button",
    {
      type: "button",
      class: "quiet",
      id: "theme",
      title: t("theme.title"),
      "aria-label": `${t("theme.title")}: ${words}`,
      onclick: press,
    },
    words,
  );
}

function keys() {
  return h(
    "button",
    {
      type: "button",
      class: "quiet keyboard-only",
      title: t("keys.title"),
      "aria-label": t("keys.title"),
      onclick: help,
    },
    "?",
  );
}

function logoutButton(app) {
  const leave = async () => {
    await send("POST", "/logout").catch(() => null);
    location.reload();
  };
  const title = `${app.user.name} · ${t(`role.${app.user.role}`)}`;
  return h(
    "button",
    { type: "button", class: "quiet", id: "leave", title, onclick: leave },
    t("frame.leave"),
  );
}

function anchor() {
  return s(
    "svg",
    { viewBox: "0 0 24 24", "aria-hidden": "true" },
    s("rect", { class: "ground", width: 24, height: 24, rx: 5 }),
    s("circle", { class: "anchor", cx: 12, cy: 6.5, r: 2 }),
    s("path", {
      class: "anchor",
      d: "M12 8.5v10M8 11.5h8M5.5 14c.4 3 3 4.8 6.5 4.8s6.100-1.800 6.500-4.800",
    }),
  );
}
