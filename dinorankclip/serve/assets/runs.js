// Runs and their curves, as they grow.
import { announce, api, byId, count, errorBox, exclusive, h, percent, remember } from "/assets/common.js";
import { short } from "/assets/canvas.js";
import { curve } from "/assets/curves.js";

const EVERY = 3000; // milliseconds between two fetches of the shown curves while the run grows
const FIRST = 8; // curves that are shown at once
const WORTH = [/^val\/mean R@1$/, /^loss$/, /^val\/(?!chance).*R@1$/, /gate|lambda|spread|angle/, /^loss\//, /^val\//, /^logit_scale$|gram/];
const runs = new Map();
let open = null, due = null;

const LAST = [["loss", "loss", short], ["val/mean R@1", "validation R@1", (share) => `${percent(share)} %`], ["epoch", "epoch", short]];

const last = (values) => LAST.filter(([name]) => typeof values[name] === "number").map(([name, words, shown]) => `${words} ${shown(values[name])}`).join(" · ");

const worth = (name) => { const at = WORTH.findIndex((pattern) => pattern.test(name)); return at < 0 ? WORTH.length : at; };

function row(run) {
  return h("tr", { class: "run-row", "data-id": run.id, "aria-selected": String(run.id === open), onclick: () => show(run.id) },
    h("td", {}, h("button", { type: "button", class: "quiet" }, run.name)), h("td", { class: "text" }, run.method ?? ""), h("td", { class: "text" }, run.state),
    h("td", {}, run.steps ? `${count(run.step ?? 0)} of ${count(run.steps)}` : count(run.step ?? 0)), h("td", { class: "text small" }, last(run.last)));
}

function draw() {
  const focused = document.activeElement?.closest?.("tr")?.dataset.id;
  document.querySelector("#runs tbody").replaceChildren(...[...runs.values()].map(row));
  if (focused !== undefined) [...document.querySelectorAll("#runs tr")].find((line) => line.dataset.id === focused)?.querySelector("button")?.focus();
  byId("none").hidden = runs.size > 0;
}

async function show(id) {
  open = id;
  remember({ run: id });
  draw();
  byId("curves").hidden = false;
  await exclusive("curves", byId("curves"), async (signal) => {
    const { series } = await api(`/api/runs/${encodeURIComponent(id)}/curves`, { signal });
    const wasOpen = byId("curves").querySelector("details")?.open ?? false;
    const names = Object.keys(series).filter((name) => series[name].length > 0).sort((one, other) => worth(one) - worth(other));
    const drawn = (some) => h("div", { class: "curves" }, some.map((name) => curve(name, series[name])));
    byId("curves").replaceChildren(h("h2", {}, runs.get(id)?.name ?? id),
      names.length ? drawn(names.slice(0, FIRST)) : h("p", { class: "dim" }, "It has logged nothing yet."),
      names.length > FIRST ? h("details", { open: wasOpen }, h("summary", {}, `${names.length - FIRST} more curves`), drawn(names.slice(FIRST))) : "");
    announce(`${names.length} curves.`);
  });
}

function listen() {
  const events = new EventSource("/api/runs/events");
  events.addEventListener("open", () => { byId("live").textContent = "Live: changes appear by themselves."; });
  events.addEventListener("error", () => { byId("live").textContent = "The connection is gone; the page tries again."; });
  events.addEventListener("run", (event) => {
    const run = JSON.parse(event.data);
    runs.set(run.id, run);
    draw();
    if (run.id !== open || due) return;
    due = setTimeout(() => { due = null; show(open); }, EVERY);
  });
  addEventListener("pagehide", () => events.close());
}

async function start() {
  try {
    for (const run of await api("/api/runs")) runs.set(run.id, run);
  } catch (error) {
    byId("none").replaceWith(errorBox(error));
    return;
  }
  draw();
  const asked = new URLSearchParams(location.search).get("run");
  const first = runs.has(asked) ? asked : runs.keys().next().value;
  if (first !== undefined) await show(first);
  listen();
}

start();
