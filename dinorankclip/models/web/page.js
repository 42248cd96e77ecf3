// Searches photos by words or by another photo, in this browser alone. Nothing leaves the machine.
import { pixelsOf } from "./pixels.js";
import { tokenizer } from "./tokens.js";

const MOST = 24; // photos shown
const part = (id) => document.getElementById(id);
const say = (text) => { part("state").textContent = text; };

async function load(file, kind = "json") {
  const answer = await fetch(file);
  if (!answer.ok) throw new Error(`${file} is missing (${answer.status})`);
  return answer[kind]();
}

async function runtime() {
  try {
    const ort = await import("./runtime/ort.wasm.min.mjs");
    ort.env.wasm.wasmPaths = new URL("./runtime/", import.meta.url).href;
    ort.env.wasm.numThreads = 1; // more threads need headers that a plain file server does not send
    return ort;
  } catch {
    throw new Error("runtime/ is missing: copy ort.wasm.min.mjs, ort-wasm-simd-threaded.mjs and .wasm from dist/ of the "
      + "npm package onnxruntime-web into it, or export with --runtime FOLDER; open this page over HTTP, not as a file");
  }
}

export class PhotoSearch {
  constructor(ort, about, tokens, image, text, photos) {
    Object.assign(this, { ort, about, tokens, image, text, photos });
  }

  static async open() {
    const ort = await runtime();
    const [about, data] = await Promise.all([load("page.json"), load("tokens.json")]);
    const options = { executionProviders: ["wasm"] };
    const text = await ort.InferenceSession.create("text.onnx", options);
    const image = await ort.InferenceSession.create("image.onnx", options);
    const rows = about.photos.length ? new Float32Array(await load("photos.f32", "arrayBuffer")) : new Float32Array();
    const photos = about.photos.map((name, place) => ({
      name, source: `photos/${place}.jpg`, row: rows.subarray(place * about.dim, (place + 1) * about.dim),
    }));
    return new PhotoSearch(ort, about, tokenizer(data, about.context_length), image, text, photos);
  }

  async embedWords(words) {
    const ids = new this.ort.Tensor("int64", this.tokens.row(words), [1, this.about.context_length]);
    return (await this.text.run({ ids })).embeddings.data;
  }

  async embedPhoto(blob) {
    const size = this.about.size;
    const images = new this.ort.Tensor("uint8", await pixelsOf(blob, this.about), [1, 3, size, size]);
    return (await this.image.run({ images })).embeddings.data;
  }

  async add(file) {
    const photo = { name: file.name, source: URL.createObjectURL(file), row: Float32Array.from(await this.embedPhoto(file)) };
    this.photos.push(photo);
    return photo;
  }

  nearest(row) {
    const score = (photo) => photo.row.reduce((sum, value, place) => sum + value * row[place], 0);
    return this.photos.map((photo) => ({ ...photo, score: score(photo) })).sort((a, b) => b.score - a.score).slice(0, MOST);
  }
}

function show(search, hits) {
  part("hits").replaceChildren(...hits.map((hit) => {
    const item = document.createElement("li"), picture = document.createElement("img"), words = document.createElement("p");
    picture.src = hit.source;
    picture.alt = hit.name;
    picture.title = "photos like this one";
    picture.addEventListener("click", () => show(search, search.nearest(hit.row)));
    words.textContent = `${hit.score.toFixed(3)}  ${hit.name}`;
    item.append(picture, words);
    return item;
  }));
}

async function main() {
  const search = await PhotoSearch.open();
  const ready = () => say(`${search.photos.length} photos. Everything runs in this browser; no photo leaves this machine.`);
  part("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    const words = part("words").value.trim();
    if (words) show(search, search.nearest(await search.embedWords(words)));
  });
  part("files").addEventListener("change", async () => {
    let last;
    for (const file of part("files").files) {
      say(`Reading ${file.name}…`);
      try {
        last = await search.add(file);
      } catch {
        say(`${file.name} is no image that this browser can read.`);
      }
    }
    if (last) {
      show(search, search.nearest(last.row));
      ready();
    }
  });
  for (const element of document.querySelectorAll("input, button")) element.disabled = false;
  ready();
  window.photoSearch = search;
}

main().catch((error) => say(`The page cannot start: ${error.message}`));
