// Texts of the console in the chosen language.

import en from "./locales/en.js";
import zh from "./locales/zh.js";
import MESSAGES from "./locales/zh_messages.js";

const ALL = { en, zh };
export const LANGUAGES = { en: "English", zh: "中文" };

let language = document.documentElement.lang.startsWith("zh") ? "zh" : "en";
let plural = new Intl.PluralRules(language);
let number = new Intl.NumberFormat(language);

export const current = () => language;

/** The locale for Intl formats. */
export const locale = () => (language === "zh" ? "zh-CN" : "en");

export function choose(chosen) {
  language = chosen in ALL ? chosen : "en";
  plural = new Intl.PluralRules(language);
  number = new Intl.NumberFormat(language);
  document.documentElement.lang = locale();
  try {
    localStorage.setItem("mooring.language", language);
  } catch {
    // Storage is unavailable: the choice lasts until the page is closed.
  }
}

/** The text for a key, with `{name}` replaced. Falls back to English. */
export function t(key, params = {}) {
  let words = ALL[language][key] ?? en[key];
  if (words === undefined) return key;
  if (typeof words === "object") words = words[plural.select(params.n ?? 0)] ?? words.other;
  return words.replace(/\{(\w+)\}/g, (_, name) => {
    const value = params[name];
    return typeof value === "number" ? n(value) : (value ?? "");
  });
}

/** A number in the format of the language. */
export function n(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return number.format(value);
  return new Intl.NumberFormat(language, { maximumFractionDigits: digits }).format(value);
}

export function percent(rate) {
  if (rate === null || rate === undefined) return "–";
  return new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 }).format(
    rate,
  );
}

/** A message of the server in the chosen language. English texts come with the message; Chinese ones are
 * made from its kind and parameters. */
export function say({ kind, params, text }) {
  const words = language === "zh" ? MESSAGES[kind] : undefined;
  if (words === undefined) return text;
  const filled = (section) =>
    [...section.matchAll(PLACEHOLDER)].some(([, name]) => String(params[name] ?? "") !== "");
  return words
    .replace(/\[([^[\]]*\{[^[\]]*)\]/g, (_, section) => (filled(section) ? section : ""))
    .replace(PLACEHOLDER, (_, name, quoted) => parameter(params[name], Boolean(quoted)));
}

export const sayAll = (messages) => messages.map(say).join(language === "zh" ? "；" : "; ");

const PLACEHOLDER = /\{(\w+)(!q)?\}/g;

// As in mooring/messages: a single word is shown as it is; anything else is quoted, so that it cannot look
// like a sentence of the server.
const NAME = /^(?:[\p{L}\p{N}_.:/@+%*…-]{1,200}|\[[0-9A-Fa-f:.%]+\](?::\d+)?)$/u;

function parameter(value, quoted = false) {
  if (Array.isArray(value)) return value.map((item) => parameter(item)).join("、");
  if (value?.kind) return say(value);
  if (Number.isInteger(value)) return String(value); // a port or a number of a version is not grouped
  if (typeof value === "number") return n(value, 6);
  if (typeof value !== "string") return String(value ?? null);
  if (quoted && !value.includes("'")) return `'${value}'`;
  return !quoted && NAME.test(value) ? value : JSON.stringify(value);
}
