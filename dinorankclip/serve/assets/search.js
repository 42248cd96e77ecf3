// Search with one model, by words or by a photo.
import { announce, api, byId, count, exclusive, h, notes, photo, remember, whenReady } from "/assets/common.js";

let file = null; // the photo that was asked with last, or null after words

const model = () => byId("model")?.value ?? "a";

function tile(item) {
  return h("li", {}, h("a", { class: "tile", href: `/inside/${item.index}` }, photo(item.index, item.caption, 320),
    h("span", { class: "words" }, h("span", { class: "top" }, h("b", {}, String(item.rank)), item.score.toFixed(3)),
      h("span", { class: "caption" }, item.caption ?? `image ${item.index}`))));
}

function draw(answer, heading) {
  byId("result").replaceChildren(
    h("h2", {}, heading), h("p", { class: "small dim" }, `The nearest ${answer.items.length} pictures, found in ${Math.max(1, Math.round(1000 * answer.seconds))} ms. The number at each is its cosine with the query: 1 is the same direction, 0 unrelated.`),
    notes(answer.note ? [answer.note] : []), h("ol", { class: "photos" }, answer.items.map(tile)));
  announce(`${answer.items.length} pictures found.`);
}

async function words() {
  file = null;
  const q = byId("q").value.trim();
  if (!q) return;
  remember({ q, model: model() === "a" ? null : model(), k: byId("k").value === "12" ? null : byId("k").value });
  await exclusive("search", byId("result"), async (signal) => {
    draw(await api(`/api/search?model=${model()}&q=${encodeURIComponent(q)}&k=${byId("k").value}`, { signal }), `“${q}”`);
  });
}

async function like(chosen) {
  if (!chosen) return;
  file = chosen;
  await exclusive("search", byId("result"), async (signal) => {
    draw(await api(`/api/search/photo?model=${model()}&k=${byId("k").value}`, { method: "POST", body: chosen, signal }), `Like ${chosen.name}`);
  });
}

const again = () => (file ? like(file) : words());

async function start() {
  const set = await whenReady();
  byId("result").replaceChildren(h("p", { class: "empty" }, `${count(set.images)} pictures of ${set.name} are ready: type some words or choose a photo.`));
  byId("ask").addEventListener("submit", (event) => { event.preventDefault(); words(); });
  byId("k").addEventListener("change", again);
  byId("model")?.addEventListener("change", again);
  byId("file").addEventListener("change", () => like(byId("file").files[0]));
  const drop = byId("drop");
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); like(event.dataTransfer.files[0]); });
  const asked = new URLSearchParams(location.search);
  if (asked.get("k")) byId("k").value = asked.get("k");
  if (asked.get("model") && byId("model")) byId("model").value = asked.get("model");
  if (asked.get("q")) { byId("q").value = asked.get("q"); words(); }
}

start();
