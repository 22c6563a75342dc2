"use strict";
for (const choice of document.querySelectorAll("input[name=notation]")) choice.addEventListener("change", () => { document.body.dataset.notation = choice.value; });
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  root.dataset.theme = dark ? "light" : "dark";
});
