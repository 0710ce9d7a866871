// Loaded before anything is drawn, so that a page in the dark does not begin with a white flash.
"use strict";
{
  let theme = null;
  try {
    theme = localStorage.getItem("theme");
  } catch {
    // A browser may refuse to store anything: the system's setting then decides.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
