// Planes of both models, brushed together.
import { announce, api, byId, choices, count, exclusive, h, ids, letter, names, notes, percent, photo, progressIn, remember, whenReady } from "/assets/common.js";
import { Plane } from "/assets/scatter.js";

const MOST_PHOTOS = 24;
let planes = [], indexes = [], kind = "pca";

function showBrushed(chosen) {
  const box = byId("brushed");
  if (chosen.size === 0) {
    box.replaceChildren(h("p", { class: "dim" }, "No image is chosen."));
    return;
  }
  const first = [...chosen].slice(0, MOST_PHOTOS).map((at) => indexes[at]);
  box.replaceChildren(h("h2", {}, `${count(chosen.size)} ${chosen.size === 1 ? "image" : "images"} in the rectangle`),
    chosen.size > MOST_PHOTOS ? h("p", { class: "small dim" }, `The first ${MOST_PHOTOS} of them.`) : "",
    h("ul", { class: "photos little" }, first.map((index) => h("li", {}, h("a", { class: "tile", href: `/inside/${index}` }, photo(index, `image ${index}`))))));
}

function brushed(source, chosen, finished) {
  for (const plane of planes) plane.light(chosen, plane === source);
  if (!finished) return;
  showBrushed(chosen);
  announce(`${chosen.size} images brushed.`);
}

function draw(reply) {
  indexes = reply.indexes;
  planes = Object.keys(reply.points).map((id) => {
    const plane = new Plane(reply.points[id], `Model ${id.toUpperCase()}`, (chosen, finished) => brushed(plane, chosen, finished));
    const explained = reply.explained?.[id];
    byId("planes").append(h("section", { class: "card" }, h("h2", {}, letter(id), ` ${names[id]}`), plane.canvas,
      explained && h("p", { class: "small dim" }, `The two axes show ${percent(explained[0])} % and ${percent(explained[1])} % of the variance of all embeddings.`)));
    return plane;
  });
  byId("note").replaceChildren(notes(reply.note ? [reply.note] : []));
}

async function open() {
  remember({ kind: kind === "pca" ? null : kind });
  const box = byId("planes");
  await exclusive("plane", box, async (signal) => {
    const reply = await api(`/api/plane?kind=${kind}&rows=${byId("rows").value}`, { signal, waiting: progressIn(box) });
    box.replaceChildren();
    showBrushed(new Set());
    draw(reply);
  });
}

async function start() {
  await whenReady();
  if (ids.length < 2) byId("planes").classList.remove("halves");
  kind = new URLSearchParams(location.search).get("kind") === "umap" ? "umap" : "pca";
  choices(byId("kinds"), [["pca", "PCA"], ["umap", "UMAP"]], kind, (value) => { kind = value; open(); });
  byId("rows").addEventListener("change", open);
  byId("clear").addEventListener("click", () => { for (const plane of planes) plane.lift(); brushed(null, new Set(), true); });
  await open();
}

start();
