// A list under the Plackett–Luce model of any order: the slider re-sorts it.
import { announce, api, ApiError, byId, errorBox, h, ids, imageAddress, models, notes, photo, remember, whenReady } from "/assets/common.js";
import { barTable, matrix } from "/assets/matrix.js";

const FEWEST = 4, MOST = 16;
const shown = { from: "image", anchor: 0, items: [], order: 1, position: 1 };
const captions = new Map(); // of an image, its first
let answer = null, set = null, turn = 0;

const model = () => byId("model")?.value ?? "a";
const problem = (error) => { byId("problem").replaceChildren(...(error ? [errorBox(error)] : [])); };

async function caption(index) {
  if (!captions.has(index)) captions.set(index, (await api(`/api/image/${index}/about`)).captions[0] ?? `pair ${index}`);
  return captions.get(index);
}

async function ask() {
  const now = (turn += 1);
  const body = () => ({ model: model(), from: shown.from, anchor: shown.anchor, items: shown.items, order: shown.order });
  let reply;
  try {
    reply = await api("/api/lists", { method: "POST", body: body() });
  } catch (error) {
    const without = shown.items.filter((item) => item !== shown.anchor);
    if (!(error instanceof ApiError && error.status === 422) || without.length === shown.items.length || without.length < FEWEST) throw error;
    shown.items = without; // this model's lists leave their own pair out
    return ask();
  }
  if (now !== turn) return null;
  await Promise.all([shown.anchor, ...shown.items].map(caption));
  return now === turn ? reply : null;
}

async function refresh() {
  remember({ model: byId("model") && model(), from: shown.from, anchor: shown.anchor, items: shown.items.join(","), order: shown.order });
  problem(null);
  try {
    const reply = await ask();
    if (!reply) return;
    answer = reply;
    draw();
  } catch (error) {
    problem(error);
  }
}

function drawAnchor() {
  const words = h("div", {}, h("h2", {}, shown.from === "image" ? `Image ${shown.anchor} ranks captions` : `Caption of pair ${shown.anchor} ranks images`),
    h("p", {}, shown.from === "image" ? "" : `“${captions.get(shown.anchor)}”`));
  byId("anchored").replaceChildren(h("div", { class: "query-now" }, shown.from === "image" && photo(shown.anchor, captions.get(shown.anchor), 240), words));
}

function drawOrders() {
  const highest = Math.max(...answer.orders.filter((entry) => entry.at_hand).map((entry) => entry.order));
  byId("order").max = highest;
  byId("order").value = answer.order;
  byId("order").setAttribute("aria-valuetext", `order ${answer.order}`);
  byId("order-words").textContent = String(answer.order);
  byId("orders").replaceChildren(...answer.orders.map((entry) => h("li", { class: `${entry.inert || !entry.at_hand ? "off" : ""} ${entry.order === answer.order ? "now" : ""}`, title: entry.why ?? "" },
    `order ${entry.order}`, entry.order > 1 ? `, λ ${entry.lambda.toPrecision(2)}` : "", !entry.at_hand ? ", not at hand" : entry.inert ? ", inert" : "")));
  const why = answer.orders.filter((entry) => entry.why && (entry.order === answer.order || entry.inert)).map((entry) => `Order ${entry.order}: ${entry.why}`);
  byId("notes").replaceChildren(notes([...why, ...(answer.notes ?? [])]));
  byId("nll").textContent = answer.nll.toFixed(3);
  const reference = answer.reference, same = answer.sorted.slice(0, reference.length).filter((item, at) => item === reference[at]).length;
  byId("moved").textContent = `${same} of ${reference.length} positions as in the reference order`;
}

function line(item, at, step) {
  const past = at < step.position - 1;
  const share = step.probabilities[String(item)];
  const bar = h("span");
  bar.style.width = `${100 * (share ?? 0)}%`;
  const expected = answer.reference.indexOf(item) + 1;
  return h("li", { "data-item": item, class: `${past ? "past" : ""} ${item === step.chosen ? "chosen" : ""}` },
    h("span", { class: "rank" }, String(at + 1)),
    answer.ranked === "images" && h("a", { href: `/inside/${item}` }, h("img", { src: imageAddress(item), alt: `pair ${item}` })),
    h("span", {}, h("span", { class: "caption" }, captions.get(item)), h("button", { type: "button", class: "quiet small dim", disabled: shown.items.length <= FEWEST, "aria-label": `Take pair ${item} out`, onclick: () => { shown.items = shown.items.filter((other) => other !== item); refresh(); } }, `pair ${item} ✕`),
      h("span", { class: "small dim" }, ` · place ${expected || "none"} in the reference`)),
    h("span", { class: "meter" }, bar),
    h("span", { class: "number" }, share === undefined ? "listed" : `${(100 * share).toFixed(1)} %`));
}

function drawList() {
  const box = byId("sorted");
  const before = new Map([...box.children].map((node) => [node.dataset.item, node.getBoundingClientRect().top]));
  shown.position = Math.min(shown.position, answer.steps.length);
  byId("position").max = answer.steps.length;
  byId("position").value = shown.position;
  const step = answer.steps[shown.position - 1];
  byId("position-words").textContent = `${step.position}: probability of each item that is not yet listed`;
  box.className = `sorted ${answer.ranked === "images" ? "" : "no-photos"}`;
  box.replaceChildren(...answer.sorted.map((item, at) => line(item, at, step)));
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const node of box.children) {
    const was = before.get(node.dataset.item);
    const moved = was === undefined ? 0 : was - node.getBoundingClientRect().top;
    if (moved) node.animate([{ transform: `translateY(${moved}px)` }, { transform: "none" }], { duration: 260, easing: "ease-out" });
  }
}

function drawTables() {
  const items = shown.items;
  byId("tables").replaceChildren(barTable("Utility θ of each item", items, answer.theta),
    answer.beta ? matrix("β̃: just listed (row) → candidate (column)", items, answer.beta) : h("p", { class: "note" }, answer.order < 2 ? "Order 2 and above have transitions β̃ between items; this order has utilities alone." : "This model has no transitions."),
    answer.gamma ? matrix(`γ̃ after pair ${answer.gamma_before}: just listed (row) → candidate (column)`, items, answer.gamma) : "");
}

function draw() {
  drawAnchor();
  drawOrders();
  drawList();
  drawTables();
  announce(`Order ${answer.order}: the list begins with pair ${answer.sorted[0]}; NLL ${answer.nll.toFixed(3)}.`);
}

async function fill() {
  problem(null);
  shown.anchor = Number(byId("anchor").value);
  shown.from = byId("from").value;
  const many = Math.min(MOST, Math.max(FEWEST, Number(byId("many").value)));
  try {
    const found = await api(`/api/search?model=${model()}&q=${encodeURIComponent(await caption(shown.anchor))}&k=${many}`);
    const near = found.items.map((item) => item.index).filter((index) => index !== shown.anchor);
    shown.items = [shown.anchor, ...near].slice(0, many).sort((one, other) => one - other);
  } catch (error) {
    problem(error);
    return;
  }
  await refresh();
}

async function anything() {
  const many = Math.min(MOST, Math.max(FEWEST, Number(byId("many").value)), set.images);
  const drawn = new Set();
  while (drawn.size < many) drawn.add(Math.floor(Math.random() * set.images));
  shown.items = [...drawn];
  shown.anchor = shown.items[0];
  shown.from = byId("from").value;
  byId("anchor").value = shown.anchor;
  await refresh();
}

/** Bring the order down to the highest that the chosen model can show. */
async function lower() {
  const about = (await models()).find((one) => one.id === model());
  shown.order = Math.min(shown.order, about.has.heads ? about.order : 1);
}

function listen() {
  byId("choose").addEventListener("submit", (event) => { event.preventDefault(); fill(); });
  byId("any").addEventListener("click", anything);
  byId("model")?.addEventListener("change", async () => { await lower(); refresh(); });
  byId("from").addEventListener("change", () => { shown.from = byId("from").value; refresh(); });
  byId("order").addEventListener("input", () => { shown.order = Number(byId("order").value); byId("order-words").textContent = String(shown.order); refresh(); });
  byId("position").addEventListener("input", () => { shown.position = Number(byId("position").value); if (answer) drawList(); });
  byId("add").addEventListener("submit", (event) => {
    event.preventDefault();
    const item = Number(byId("more").value);
    if (byId("more").value === "" || shown.items.includes(item) || shown.items.length >= MOST) return;
    shown.items = [...shown.items, item];
    refresh().then(() => { if (byId("problem").children.length) shown.items = shown.items.filter((other) => other !== item); });
  });
}

async function start() {
  set = await whenReady();
  if (!set.known_pairs) {
    byId("ready").replaceChildren(h("p", { class: "note" }, "Lists rank captions and images of pairs, and this set has no captions: open one with --data."));
    return;
  }
  listen();
  const asked = new URLSearchParams(location.search);
  const learnt = (await models()).find((one) => one.has.heads)?.id; // a model with transitions has more to show
  if (byId("model")) byId("model").value = ids.includes(asked.get("model")) ? asked.get("model") : learnt ?? "a";
  byId("from").value = shown.from = asked.get("from") === "caption" ? "caption" : "image";
  byId("anchor").value = shown.anchor = Number(asked.get("anchor") ?? 0);
  shown.order = Number(asked.get("order") ?? 1);
  await lower();
  const items = (asked.get("items") ?? "").split(",").filter(Boolean).map(Number);
  if (items.length >= FEWEST) { shown.items = items; await refresh(); } else await fill();
}

start();
