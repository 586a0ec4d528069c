// Entry point of the console: login, routing, loading pages and applying live updates.

import { Failed, find } from "./api.js";
import { fill, h } from "./dom.js";
import { frame } from "./layout.js";
import { listen } from "./shortcuts.js";
import { Live } from "./event_stream.js";
import { decoded } from "./links.js";
import { apply, stale } from "./fleet.js";
import { problemText } from "./problems.js";
import { tick } from "./time_format.js";
import { t } from "./i18n.js";

const PAGES = {
  "": "overview",
  service: "service",
  instance: "instance",
  tenants: "tenants",
  tenant: "tenant",
  shared: "shared",
  locks: "locks",
  search: "search",
  audit: "audit",
  tokens: "tokens",
};
// Pages that the server answers from memory while the registry is unreachable. Tenants and locks may be
// in another store, and are read from it on each request.
const FROM_MEMORY = ["overview", "service", "instance", "search", "tokens"];
const RANK = { viewer: 1, operator: 2, admin: 3 };
// Heartbeat delays grow without any event, so pages are reloaded at this interval, in milliseconds.
const LOOK = 5000;
const SOONEST = 400;
const HIDDEN = 30000;

class App {
  user = null;
  live = "connecting";
  stale = null;
  failure = "";
  place = "";
  #hash = "";
  #page = null;
  #frame;
  #stream;
  #asked = 0;
  #timer = 0;
  #busy = null;
  #again = false;
  #abort = new AbortController();
  #known = null;
  #shown = null;
  #leaving = 0;
  #drawing = 0;

  async start() {
    this.#frame = frame(this);
    this.drawFrame();
    listen();
    window.addEventListener("hashchange", () => this.#go());
    document.addEventListener("visibilitychange", () => this.#seen());
    setInterval(() => this.#tick(), 1000);
    this.#stream = new Live(
      (kind, data) => this.#changed(kind, data),
      (state) => this.#connectionChanged(state),
    );
    await this.#enter();
  }

  may(role) {
    return (RANK[this.user?.role] ?? 0) >= RANK[role];
  }

  /** Whether this page may be outdated because the server or its store is unreachable. */
  get away() {
    const stale = this.stale !== null && FROM_MEMORY.includes(this.place);
    return stale || this.live === "broken" || this.failure !== "";
  }

  /** Why an action that requires this role is disabled now; null if it is enabled. */
  refusal(role) {
    if (!this.may(role)) return t("role.needed", { role: t(`role.${role}`) });
    return this.away ? t("frame.unwritable") : null;
  }

  /** Whether the user may see any `groups` or `tenants`. A token scoped to one sees none of the other. */
  sees(what) {
    return this.user?.[what] === null || this.user?.[what].length > 0;
  }

  /** Whether the user's token is not scoped. */
  get unscoped() {
    return this.user !== null && this.user.groups === null && this.user.tenants === null;
  }

  drawFrame() {
    this.#frame.draw();
  }

  /** Draw everything again from the data in memory. */
  redraw() {
    this.drawFrame();
    this.#draw();
  }

  /** A hidden tab closes its event stream after a while, because browsers limit connections per host. */
  #seen() {
    clearTimeout(this.#leaving);
    if (document.hidden) {
      this.#leaving = setTimeout(() => this.#stream.close(), HIDDEN);
    } else if (this.user) {
      this.#stream.open();
      this.soon();
    }
  }

  #tick() {
    tick();
    const old = performance.now() - this.#asked > (this.#page?.look ?? LOOK);
    if (old && !document.hidden) this.soon();
  }

  /** Schedule a reload of the page's data, at a limited rate. */
  soon() {
    if (this.#timer || !this.#page) return;
    const wait = Math.max(SOONEST - (performance.now() - this.#asked), 0);
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#read();
    }, wait);
  }

  async #enter() {
    try {
      this.user = await find("/admin/whoami");
    } catch (error) {
      return this.#refused(error);
    }
    await this.#go();
  }

  async #go() {
    if (!this.user) return;
    const [name, ...params] = location.hash.replace(/^#\//, "").split("/").map(decoded);
    const asked = PAGES[name ?? ""] ?? "overview";
    const module = asked === "overview" && !this.sees("groups") ? "tenants" : asked;
    const same = this.place === module && this.#page?.stays?.(params);
    this.#abort.abort();
    this.#abort = new AbortController();
    this.place = module;
    this.drawFrame();
    const hash = location.hash || "#/";
    if (same) {
      this.#hash = hash;
      return this.#read();
    }
    const { signal } = this.#abort;
    const { page } = await import(`./pages/${module}.js`);
    if (signal.aborted) return; // the user navigated away
    this.#page = page(this, params);
    this.#hash = hash;
    this.#stream.open(this.#page.service ?? "");
    await this.#read();
  }

  /** Show content. A new page gets the focus, unless the user is typing a search. The very first page does
   * not, so that the first Tab reaches the skip link. */
  #show(page, ...content) {
    fill(this.#frame.main, content);
    this.#frame.main.dataset.shown = this.#hash;
    if (page === this.#shown) return;
    const first = this.#shown === null;
    this.#shown = page;
    if (first || document.activeElement?.closest(".search")) return;
    window.scrollTo(0, 0);
    this.#frame.main.querySelector("h1")?.focus({ preventScroll: true });
  }

  async #read() {
    const page = this.#page;
    if (!page) return;
    if (this.#busy === page) {
      this.#again = true;
      return;
    }
    this.#busy = page;
    this.#again = false;
    this.#asked = performance.now();
    try {
      await page.load(this.#abort.signal);
      page.ready = true;
      if (page === this.#page) {
        this.#answered("");
        this.#draw();
      }
    } catch (error) {
      if (page === this.#page) this.#failed(error);
    } finally {
      if (this.#busy === page) {
        this.#busy = null;
        if (this.#again) this.soon();
      }
    }
  }

  #draw() {
    if (!this.user || !this.#page?.ready) return;
    const title = this.#page.title();
    document.title = title ? `${title} · Mooring` : "Mooring";
    this.#show(this.#page, this.#page.draw());
  }

  #failed(error) {
    if (error.name === "AbortError") return;
    if (error instanceof Failed && error.status === 401) return this.#refused(error);
    if (!(error instanceof Failed)) throw error;
    const words = error.message || t("error.unreachable");
    if (error.status === 0 || error.status >= 500) this.#answered(words);
    if (this.#page.ready && error.status !== 404) return; // keep the old content; the banner reports the failure
    this.#page.ready = false;
    this.#show(
      this.#page,
      h(
        "h1",
        {},
        error.status === 404
          ? t("error.missing")
          : error.status === 403
            ? t("error.forbidden")
            : t("error.title"),
      ),
      h("p", { class: "failure", role: "alert" }, words),
      h("p", {}, h("a", { href: "#/" }, t("error.back"))),
    );
  }

  /** Record whether and why the last load of this page failed. */
  #answered(failure) {
    if (failure === this.failure) return;
    this.failure = failure;
    this.redraw();
  }

  /** The session is missing or has ended: show the login page. */
  async #refused(error) {
    this.#stream.close();
    this.user = null;
    this.#page = null;
    this.drawFrame();
    const { page } = await import("./pages/login.js");
    fill(this.#frame.main, page(this, error));
  }

  #changed(said, data) {
    // A new stream does not report changes from before it was opened.
    const kind = said === "hello" && !data?.resumed ? "reset" : said;
    if (kind === "problems") this.#announce(data);
    apply(kind, data);
    if (kind === "problems") {
      this.stale = stale();
      this.drawFrame();
      this.#drawSoon();
    }
    const page = this.#page;
    if (!page) return;
    if (kind === "reset" || page.wants?.(kind, data)) this.soon();
    else if (page.ready && page.takes?.(kind, data)) this.#drawSoon();
  }

  #drawSoon() {
    this.#drawing ||= requestAnimationFrame(() => {
      this.#drawing = 0;
      this.#draw();
    });
  }

  /** Announce new problems to screen readers. */
  #announce(problems) {
    const name = ({ kind, service }) => `${kind}:${service}`;
    const before = this.#known;
    this.#known = new Set(problems.map(name));
    if (before === null) return; // these existed when the page was opened
    const fresh = problems.filter((problem) => !before.has(name(problem)));
    if (fresh.length) this.#frame.speak(fresh.slice(0, 3).map(problemText).join(". "));
    else if (!problems.length && before.size) this.#frame.speak(t("overview.calm"));
  }

  #connectionChanged(state) {
    this.live = state;
    this.redraw();
    if (state === "live") this.soon();
    else if (state === "broken") this.#check();
  }

  /** An ended session also breaks the stream, and the stream does not report why. */
  async #check() {
    try {
      await find("/admin/whoami");
    } catch (error) {
      if (error.status === 401) this.#refused(error);
    }
  }
}

new App().start();
