// Before anything is painted, so that a dark room stays dark. A plain script, not a module: a module
// would come after the first paint.
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
    // Storage is forbidden here: the browser's own wishes count.
  }
})();
