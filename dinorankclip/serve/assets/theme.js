// Applies the reader's own choice of light or dark before the page is drawn; without a choice the system's holds.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

if (stored() === "dark" || stored() === "light") root.dataset.theme = stored();

addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  if (!button) return; // the page of an error has no switch
  const label = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* the choice lasts for this page only */ }
    label();
    document.dispatchEvent(new CustomEvent("theme"));
  });
  dark.addEventListener("change", () => { label(); document.dispatchEvent(new CustomEvent("theme")); });
  label();
});
