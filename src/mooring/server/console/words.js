// What the console says, in the language that was chosen.

import en from "./words/en.js";
import zh, { SENTENCES } from "./words/zh.js";

const ALL = { en, zh };
export const LANGUAGES = { en: "English", zh: "中文" };

let language = document.documentElement.lang.startsWith("zh") ? "zh" : "en";
let plural = new Intl.PluralRules(language);
let number = new Intl.NumberFormat(language);

export const current = () => language;

/** The language of the browser's own formats. */
export const locale = () => (language === "zh" ? "zh-CN" : "en");

export function choose(chosen) {
  language = chosen in ALL ? chosen : "en";
  plural = new Intl.PluralRules(language);
  number = new Intl.NumberFormat(language);
  document.documentElement.lang = locale();
  try {
    localStorage.setItem("mooring.language", language);
  } catch {
    // It is forgotten when the page is closed.
  }
}

/** The words for a key, with `{name}` filled. English stands in for what another language lacks. */
export function t(key, params = {}) {
  let words = ALL[language][key] ?? en[key];
  if (words === undefined) return key;
  if (typeof words === "object") words = words[plural.select(params.n ?? 0)] ?? words.other;
  return words.replace(/\{(\w+)\}/g, (_, name) => {
    const value = params[name];
    return typeof value === "number" ? n(value) : (value ?? "");
  });
}

/** Whether there are words for a key. */
export const knows = (key) => key in ALL[language];

/** A number as people write it. */
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

/** What the server says in English words of its own, in the language that was chosen; as it is
 * where nobody translated it. */
export function said(text) {
  if (language !== "zh") return text;
  return text.split("; ").map(translated).join("；");
}

function translated(sentence) {
  for (const [pattern, words] of SENTENCES) {
    if (pattern.test(sentence)) return sentence.replace(pattern, words);
  }
  return sentence;
}
