// Before the first paint: the theme that was chosen here, else that of the system.
"use strict";
(function () {
  try {
    const chosen = window.localStorage.getItem("conquiet-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch (error) {
    // Storage may be forbidden: the system's theme it is.
  }
})();
