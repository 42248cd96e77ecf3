// Queues of doubtful items. htmx swaps their pages in; ticks last as long as this page, over all queues.
import { announce, byId, count, errorBox, remember, whenReady } from "/assets/common.js";

const ticked = new Set();
let current = "";
const boxes = () => [...document.querySelectorAll('#queue input[name="key"]')];

function tell() {
  byId("ticked").textContent = ticked.size ? `${count(ticked.size)} ticked, over all queues.` : "Nothing is ticked.";
  byId("export").disabled = ticked.size === 0;
}

/** An image can be in a queue with several captions; all boxes of its key agree. */
function tick(key, on) {
  if (on) ticked.add(key); else ticked.delete(key);
  for (const box of boxes()) if (box.value === key) box.checked = on;
}

async function save() {
  byId("problem").replaceChildren();
  const options = { method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ keys: [...ticked] }) };
  const response = await fetch("/api/data/export", options).catch(() => null);
  if (!response?.ok) {
    const reply = await response?.json().catch(() => null);
    byId("problem").replaceChildren(errorBox(new Error(reply?.message ?? "The server does not answer. Is it still running?")));
    return;
  }
  const address = URL.createObjectURL(await response.blob());
  const link = document.createElement("a");
  link.href = address;
  link.download = "keys.txt";
  link.click();
  URL.revokeObjectURL(address);
  announce(`${ticked.size} keys exported.`);
}

function press(name) {
  current = name;
  for (const button of document.querySelectorAll("#queues button")) button.setAttribute("aria-pressed", String(button.dataset.value === name));
}

async function start() {
  await whenReady();
  document.addEventListener("change", (event) => { if (event.target.name === "key") { tick(event.target.value, event.target.checked); tell(); } });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("#queues button");
    if (button) { press(button.dataset.value); remember({ queue: current }); }
  });
  document.addEventListener("htmx:afterSwap", () => { // fragments know neither ticks nor the chosen queue
    for (const box of boxes()) box.checked = ticked.has(box.value);
    if (current) press(current);
  });
  byId("all").addEventListener("click", () => { for (const box of boxes()) tick(box.value, true); tell(); });
  byId("none").addEventListener("click", () => { ticked.clear(); for (const box of boxes()) box.checked = false; tell(); });
  byId("export").addEventListener("click", save);
  const asked = new URLSearchParams(location.search).get("queue") ?? "";
  await window.htmx.ajax("GET", "/part/data", { target: "#queues", swap: "outerHTML" });
  const first = [...document.querySelectorAll("#queues button")].find((button) => Number(button.dataset.count) > 0);
  const chosen = asked || first?.dataset.value || "damaged";
  press(chosen);
  await window.htmx.ajax("GET", `/part/data/${encodeURIComponent(chosen)}`, { target: "#queue", swap: "innerHTML" });
}

start();
