// Applies the theme before the first paint. This is a classic script, because modules run after it.
"use strict";

(() => {
  const root = document.documentElement;
  try {
    const theme = localStorage.getItem("mooring.theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    const language = localStorage.getItem("mooring.language");
    root.lang =
      language === "zh" || (!language && navigator.language.startsWith("zh")) ? "zh-CN" : "en";
  } catch {
    // Storage is unavailable: use the browser's preferences.
  }
})();
