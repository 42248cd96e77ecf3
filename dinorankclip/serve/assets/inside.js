// Inside an image: a chosen patch or words light patches of every source of every model.
import { announce, api, byId, exclusive, h, ids, imageAddress, letter, models, names, notes, photo, remember, whenReady } from "/assets/common.js";
import { minus } from "/assets/canvas.js";
import { PatchMap } from "/assets/patch_map.js";
import { gatePanel } from "/assets/gate.js";

const SOURCES = { trunk: "Trunk", student: "Student", teacher: "Teacher" };
const image = Number(byId("ready").dataset.image);
const place = { x: 0.5, y: 0.5 }; // of the chosen patch, as shares of the shown square
const panels = []; // one a model: {id, grid, view, cosine: {source: PatchMap}, words: PatchMap | null}

const patchOf = ([rows, columns]) => {
  const row = Math.min(rows - 1, Math.floor(place.y * rows));
  const column = Math.min(columns - 1, Math.floor(place.x * columns));
  return { row, column, patch: row * columns + column };
};

async function showAbout(set) {
  const about = await api(`/api/image/${image}/about`);
  byId("about").replaceChildren(photo(image, about.captions[0] ?? about.key, 480), h("div", {},
    h("h2", {}, about.key),
    h("p", { class: "small dim" }, `image ${image} of ${set.images}, ${about.size ? `${about.size[0]} × ${about.size[1]} pixels` : "size unknown"}`),
    about.damaged && h("p", { class: "note" }, `This file is damaged${about.why ? ` (${about.why})` : ""}, so there is nothing inside it to show.`),
    about.damaged ? "" : about.captions.length ? h("ul", { class: "captions" }, about.captions.map((caption) => h("li", {}, caption))) : h("p", { class: "dim" }, "It has no captions."),
    !about.damaged && h("p", { class: "small" }, "The pictures below show the square that the models see.")));
  return about;
}

function choose(x, y) {
  place.x = x;
  place.y = y;
  for (const panel of panels) showPatch(panel);
}

async function showPatch(panel) {
  const { row, column, patch } = patchOf(panel.grid);
  panel.view.mark(patch);
  panel.view.describe(`Photo as model ${panel.id.toUpperCase()} sees it. Patch in row ${row + 1}, column ${column + 1}`);
  for (const map of [...Object.values(panel.colours), ...Object.values(panel.cosine), panel.words].filter(Boolean)) map.mark(patch);
  await Promise.all(Object.entries(panel.cosine).map(([source, map]) => exclusive(`${panel.id} ${source}`, map.note, async (signal) => {
    const reply = await api(`/api/inside/${image}/patch?model=${panel.id}&source=${source}&patch=${patch}`, { signal });
    map.values(reply.map);
    map.note.textContent = `${sourceName(panel, source)}: cosine with the chosen patch, ${range(reply.map)}`;
  })));
  announce(`Patch in row ${row + 1}, column ${column + 1}.`);
}

const two = (value) => minus(value.toFixed(2));
const range = (values) => `${two(Math.min(...values))} (dark) to ${two(Math.max(...values))} (bright)`;

/** The name of a source of tokens; a model without students has its dense tokens in their place. */
const sourceName = (panel, source) => (source === "student" && !panel.has.students ? "Dense tokens" : SOURCES[source] ?? source);

async function showWords() {
  const q = byId("q").value.trim();
  remember({ q });
  if (!q) return;
  await Promise.all(panels.map((panel) => exclusive(`${panel.id} words`, panel.wordsBox, async (signal) => {
    const reply = await api(`/api/inside/${image}/words?model=${panel.id}&q=${encodeURIComponent(q)}`, { signal });
    panel.words = new PatchMap(panel.picture, panel.grid, "Patches that the words fit", choose);
    panel.words.values(reply.map);
    panel.words.mark(patchOf(panel.grid).patch);
    panel.words.note.textContent = `“${q}”: cosine with each patch of the ${sourceName(panel, reply.source).toLowerCase()}, ${range(reply.map)}`;
    panel.wordsBox.replaceChildren(panel.words.figure);
  })));
}

function drawModel(box, id, reply, picture, has) {
  const panel = { id, has, grid: reply.grid, picture, colours: {}, cosine: {}, words: null, wordsBox: h("div") };
  panel.view = new PatchMap(picture, reply.grid, "", choose);
  panel.view.note.textContent = `${reply.grid[0]} × ${reply.grid[1]} patches`;
  const figures = [panel.view.figure];
  for (const source of reply.sources) {
    const name = sourceName(panel, source);
    if (reply.pca?.[source]) {
      panel.colours[source] = new PatchMap(picture, reply.grid, `${name}: like patches have like colours (first three principal components)`, choose);
      panel.colours[source].colours(reply.pca[source]);
      figures.push(panel.colours[source].figure);
    }
    panel.cosine[source] = new PatchMap(picture, reply.grid, `${name}: cosine with the chosen patch`, choose);
    figures.push(panel.cosine[source].figure);
  }
  panels.push(panel);
  box.append(notes(reply.lacks ?? []), h("div", { class: "maps" }, figures, panel.wordsBox), reply.gate ? gatePanel(reply.gate) : "");
}

async function openModel(id, picture) {
  const box = h("section", { class: "card", "aria-label": `Model ${id.toUpperCase()}` }, h("h2", {}, letter(id), ` ${names[id]}`));
  byId("models").append(box);
  const inner = h("div", {}, h("p", { class: "dim" }, "Computing tokens …"));
  box.append(inner);
  await exclusive(`inside ${id}`, inner, async () => {
    const [reply, known] = await Promise.all([api(`/api/inside/${image}?model=${id}`), models()]);
    inner.replaceChildren();
    drawModel(inner, id, reply, picture, known.find((model) => model.id === id).has);
  });
}

async function start() {
  const set = await whenReady();
  const go = (index) => { location.href = `/inside/${Math.max(0, Math.min(set.images - 1, index))}${location.search}`; };
  byId("index").max = set.images - 1;
  byId("go").addEventListener("submit", (event) => { event.preventDefault(); go(Number(byId("index").value)); });
  byId("before").addEventListener("click", () => go(image - 1));
  byId("after").addEventListener("click", () => go(image + 1));
  byId("any").addEventListener("click", () => go(Math.floor(Math.random() * set.images)));
  byId("before").disabled = image <= 0;
  byId("after").disabled = image >= set.images - 1;
  byId("ask").addEventListener("submit", (event) => { event.preventDefault(); showWords(); });
  let about;
  try {
    about = await showAbout(set);
  } catch (error) {
    byId("about").replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
    return;
  }
  byId("words").hidden = about.damaged;
  if (about.damaged) return;
  const picture = new Image();
  picture.src = imageAddress(image, 480);
  await picture.decode();
  await Promise.all(ids.map((id) => openModel(id, picture)));
  choose(0.5, 0.5);
  byId("q").value = new URLSearchParams(location.search).get("q") ?? "";
  if (byId("q").value) showWords();
}

start();
