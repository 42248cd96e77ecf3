// Shared by all pages: requests, elements without markup strings, announcements, readiness.

/** Build an element. Texts become text nodes, so captions and file names never become markup. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Build an element of a drawing (SVG). */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const byId = (id) => document.getElementById(id);

export class ApiError extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

/** Fetch JSON; an error carries the server's own sentence. A busy server (503) and long work (202) are asked again three
 *  times; with `waiting`, which gets the sentence about the progress, until the work is done. */
export async function api(path, { method = "GET", body, signal, waiting } = {}) {
  const json = body !== undefined && !(body instanceof Blob);
  const options = { method, signal, credentials: "same-origin", headers: json ? { "Content-Type": "application/json" } : {} };
  if (body !== undefined) options.body = json ? JSON.stringify(body) : body;
  for (let attempt = 0; ; attempt += 1) {
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server does not answer. Is it still running?", 0);
    }
    const reply = await response.json().catch(() => null);
    const later = [202, 503].includes(response.status) && Number(response.headers.get("Retry-After"));
    if (response.ok && !later) return reply;
    if (later && (waiting || attempt < 3)) {
      if (waiting) waiting(reply?.message ?? ""); else announce("The server is busy; the page asks again.");
      await new Promise((resolve) => setTimeout(resolve, 1000 * Math.min(5, later)));
      continue;
    }
    throw new ApiError(reply?.message ?? `The server answered with status ${response.status}.`, response.status);
  }
}

/** Tell readers of the screen what happened. */
export function announce(text) { byId("status").textContent = text; }

export const errorBox = (error) => h("p", { class: "error", role: "alert" }, error.message);
/** A function that shows in `node` how far the server is with long work. */
export const progressIn = (node) => (message) => {
  const words = `${message.charAt(0).toUpperCase()}${message.slice(1)} …`;
  node.replaceChildren(h("p", { class: "dim", role: "status" }, words));
};

/** One box with a line for each sentence; nothing without sentences. */
export const notes = (sentences) => (sentences.length ? h("ul", { class: "note notes" }, sentences.map((text) => h("li", {}, text))) : "");

/** Run `work` while `node` looks busy; only the newest call of a key may finish, older ones are dropped. */
const running = new Map();
export async function exclusive(key, node, work) {
  running.get(key)?.abort();
  const stop = new AbortController();
  running.set(key, stop);
  node.setAttribute("aria-busy", "true");
  try {
    await work(stop.signal);
  } catch (error) {
    if (error.name === "AbortError" || stop.signal.aborted) return;
    node.replaceChildren(errorBox(error));
    announce(error.message);
  } finally {
    if (running.get(key) === stop) { running.delete(key); node.removeAttribute("aria-busy"); }
  }
}

/** Wait until the server has read all rows (htmx swaps the progress in until then), show the page, and return the set.
 *  The page attaches its listeners right after that, before the reader can do anything. */
export async function whenReady() {
  const box = byId("progress");
  const isReady = () => box.querySelector("[data-ready]") !== null;
  if (!isReady()) await new Promise((resolve) => { box.addEventListener("htmx:afterSwap", () => { if (isReady()) resolve(); }); });
  try {
    return await theSet();
  } catch (error) {
    byId("ready").prepend(errorBox(error));
    throw error;
  } finally {
    box.remove();
    byId("ready").hidden = false;
  }
}

let known;
export const models = () => (known ??= api("/api/models"));

/** Short names of the models by id, as the head of the page shows them. */
export const names = Object.fromEntries([...document.querySelectorAll(".chip[data-model]")].map((chip) => [chip.dataset.model, chip.dataset.name]));
export const ids = Object.keys(names);
export const letter = (id) => h("span", { class: `letter letter-${id}` }, id.toUpperCase());
export const theSet = () => api("/api/set");

export const imageAddress = (index, size = 160) => `/api/image/${index}?size=${size}`;

/** A photo by its index. Photos are never addressed by a path. */
export const photo = (index, alt, size = 160) =>
  h("img", { src: imageAddress(index, size), alt: alt || `image ${index}`, loading: "lazy", decoding: "async" });

export const percent = (share, digits = 1) => (100 * share).toFixed(digits);
export const signed = (value, digits = 1) => `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value).toFixed(digits)}`;
export const count = (n) => n.toLocaleString("en");

/** True while the focus is where arrow keys and letters belong to the control itself. */
export function typing(event) {
  return event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea, canvas, [role=slider]") !== null;
}

/** A group of buttons of which one is pressed. `options` are [value, label]; `chosen` is called with the value. */
export function choices(box, options, value, chosen) {
  const press = (wanted, tell) => {
    for (const button of box.children) button.setAttribute("aria-pressed", String(button.dataset.value === wanted));
    if (tell) chosen(wanted);
  };
  box.replaceChildren(...options.map(([key, label]) =>
    h("button", { type: "button", "data-value": key, "aria-pressed": String(key === value), onclick: () => press(key, true) }, label)));
  return { press };
}

/** Keep what is shown in the address, so that a reload or a copied link shows it again. */
export function remember(values) {
  const address = new URL(location.href);
  address.search = "";
  for (const [name, value] of Object.entries(values)) if (value !== null && value !== undefined && value !== "") address.searchParams.set(name, value);
  history.replaceState(null, "", address);
}
